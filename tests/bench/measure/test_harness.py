"""The benchmark harness waits, does not time what is wrong, and sees who forgets to wait."""

import json
import os
import platform
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bench.measure import harness, machine
from bench.measure.blocking_guard import NotBlocked, blocked
from bench.measure.harness import Contestant
from bench.micro import test_attention as attention
from bench.micro import test_heads as heads
from bench.micro import test_layers as layers
from bench.micro import test_parts as parts
from bench.micro import test_sequences as sequences

ROOT = Path(__file__).parents[3]

# A fifth of a second of products each: no machine is done when the call returns.
BENCHMARKS = """
import jax
import pytest
from bench.measure.harness import Long

x = jax.random.normal(jax.random.key(0), (1000, 1000))
multiply = jax.jit(lambda x: x @ x @ x @ x @ x)
multiply(x).block_until_ready()

def test_waits(benchmark):
    benchmark.pedantic(lambda: multiply(x).block_until_ready(), rounds=2)

def test_forgets(benchmark):
    benchmark.pedantic(lambda: multiply(x), rounds=2)

def test_forgets_with_warmup(benchmark):
    benchmark.pedantic(multiply, args=(x,), rounds=1, warmup_rounds=1)

def test_forgets_in_automatic_mode(benchmark):
    benchmark(lambda: multiply(x))

def test_forgets_one_of_two(benchmark):
    benchmark.pedantic(lambda: {"a": multiply(x).block_until_ready(), "b": [multiply(x)]})

def test_drops_what_it_computes(benchmark):
    def call():
        multiply(x)
    benchmark.pedantic(call)

@pytest.mark.parametrize("length", [Long(3)])
def test_long(benchmark, length):
    benchmark.pedantic(lambda: 1)
"""


def pytest_in_child(*arguments, cwd=ROOT):
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        # Of a worker of pytest-xdist the child would think that it is one: it measures nothing
        # then.
        env={k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST")},
        check=False,
    )


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    """The output of pytest for the benchmarks above, with the hooks of bench/conftest.py."""
    folder = tmp_path_factory.mktemp("benchmarks")
    (folder / "conftest.py").write_text("from bench.conftest import *\n")
    (folder / "test_some.py").write_text(BENCHMARKS)
    (folder / "pytest.ini").write_text(f"[pytest]\npythonpath = {ROOT}\n")
    out = folder / "out.json"
    done = pytest_in_child("--benchmark-only", "-rA", f"--benchmark-json={out}", cwd=folder)
    return done.stdout, json.loads(out.read_text())


def test_a_benchmark_that_forgets_to_block_fails(child):
    output, data = child
    passed = set(re.findall(r"^PASSED \S+::(\w+)", output, re.MULTILINE))
    failed = set(re.findall(r"^FAILED \S+::(\w+)", output, re.MULTILINE))
    assert passed == {"test_waits"}
    assert failed == {
        "test_forgets",
        "test_forgets_with_warmup",
        "test_forgets_in_automatic_mode",
        "test_forgets_one_of_two",
        "test_drops_what_it_computes",
    }
    # One line "E  ..." a failure: where CI is set, pytest repeats each in its summary.
    errors = re.findall(r"^E +\S*(NotBlocked: .*)", output, re.MULTILINE)
    forgotten = "NotBlocked: the benchmarked function returned an array that was still"
    assert sum(error.startswith(forgotten) for error in errors) == 4
    nothing = "NotBlocked: the benchmarked function returned nothing"
    assert sum(error.startswith(nothing) for error in errors) == 1
    assert [bench["name"] for bench in data["benchmarks"]] == ["test_waits"]


def test_the_long_benchmarks_need_their_option(child):
    assert "1 deselected" in child[0]


def test_the_option_is_known_from_the_root_and_brings_the_long_ones():
    words = "--collect-only", "-q", "-o", "testpaths=bench", "--ignore-glob=*/test_[b-z]*"
    found = pytest_in_child(*words, "--bench-full").stdout
    assert "bench/micro/test_attention.py::test_forward[2048-transformer_jax]" in found
    assert "bench/micro/test_attention.py::test_forward[4096-transformer_jax]" in found


def test_the_machine_is_described_without_its_name(child):
    described = child[1]["machine_info"]
    assert described["versions"]["jax"] == jax.__version__
    assert described["cores"] > 0 and described["threads"] and described["devices"]
    assert described["command"] == "pytest --benchmark-only"
    text = json.dumps([described, machine.describe()])
    assert platform.node() not in text.split('"')
    assert str(Path.home()) + "/" not in text and "/tmp" not in text


def test_what_is_there_passes_and_what_is_nothing_does_not():
    array = jnp.ones(3).block_until_ready()
    for value in (array, (array, 1), np.ones(2), 3.0):
        assert blocked(lambda value=value: value)() is value
    for nothing in (None, (), {}):
        with pytest.raises(NotBlocked, match="returned nothing"):
            blocked(lambda nothing=nothing: nothing)()


def fake_benchmark():
    """Runs as pytest-benchmark's fixture does, and measures nothing."""

    def pedantic(call, rounds=1, warmup_rounds=0, iterations=1):
        for _ in range(warmup_rounds + rounds):
            value = call()
        return value

    return SimpleNamespace(pedantic=pedantic, extra_info={})


def test_every_call_sees_other_numbers_than_the_call_before():
    seen = []

    def remember(x):
        seen.append(x)
        return x

    inputs = harness.random_inputs((3,))
    harness.run(fake_benchmark(), Contestant(remember, "host"), inputs, flops=1)
    seen = seen[len(inputs) + 2 :]  # the first call with each, and the one whose memory is watched
    assert len(seen) > harness.MIN_ROUNDS
    assert all(one is not other for one, other in pairwise(seen))
    assert {id(x) for x in seen} == {id(x) for (x,) in inputs}
    with pytest.raises(ValueError, match="two or more tuples of arguments, got 1"):
        harness.run(fake_benchmark(), Contestant(remember, "host"), inputs[:1], flops=1)


def test_compiled_once_before_the_clock_and_called_on_device_arrays():
    traced = []

    def double(x):
        traced.append(type(x))
        return 2 * x

    inputs = harness.random_inputs((3, 5))
    prepared = harness.prepare(Contestant(double), inputs, [2 * x for (x,) in inputs], 0.0)
    assert len(traced) == 1 and prepared.compile_seconds > 0
    for i in range(5):
        value = prepared.call()
        assert isinstance(value, jax.Array) and value.is_ready()
        np.testing.assert_array_equal(value, 2 * inputs[i % len(inputs)][0])
    assert len(traced) == 1
    assert prepared.bytes_moved == 2 * 3 * 5 * 4
    assert prepared.peak_bytes is None or prepared.peak_bytes >= 3 * 5 * 4


def test_memory_of_numpy_is_what_it_allocates():
    def twice(x):
        between = x + 1
        return x + between

    inputs = harness.random_inputs((1000, 250))
    prepared = harness.prepare(Contestant(twice, "host"), inputs, None, 0.0)
    assert prepared.compile_seconds is None
    assert 2e6 <= prepared.peak_bytes < 2.1e6  # what is in between, and the result
    assert prepared.bytes_moved == 2e6


@pytest.mark.parametrize("how", ["compiled", "eager", "host"])
def test_what_computes_something_else_is_not_timed(how):
    inputs = harness.random_inputs((7,))
    expected = [x + 1 for (x,) in inputs]
    wrong_at_the_last = [*expected[:-1], expected[-1] + 1e-3]
    one_more = Contestant(lambda x: x + 1, how)
    harness.run(fake_benchmark(), one_more, inputs, flops=1, expected=expected)
    benchmark = fake_benchmark()
    benchmark.pedantic = lambda *_, **__: pytest.fail("it was timed")
    for run in (
        lambda: harness.run(benchmark, one_more, inputs, flops=1, expected=wrong_at_the_last),
        lambda: harness.compare(
            benchmark, one_more, one_more, inputs, expected=wrong_at_the_last, atol=1e-4
        ),
    ):
        with pytest.raises(AssertionError, match="Not equal to tolerance"):
            run()


def test_a_comparison_calls_in_turns_and_reports_the_median_ratio(monkeypatch):
    now, calls = [0.0], []

    def takes(seconds, name):
        def call():
            calls.append(name)
            # The machine becomes slower and slower: two separate medians would say something else.
            now[0] += seconds * 1.1 ** len(calls[:-1:2])
            return seconds

        return call

    def clock(call, *args):
        before = now[0]
        value = call(*args)
        return now[0] - before, value

    monkeypatch.setattr(harness, "clock", clock)
    benchmark = fake_benchmark()
    ratio = harness.compare(benchmark, takes(6.0, "A"), takes(2.0, "B"), subject="s")
    assert "".join(calls) == "AB" * (len(calls) // 2)
    assert ratio == pytest.approx(3, rel=0.11)
    low, high = benchmark.extra_info["ratio_quartiles"]
    assert low <= ratio <= high and benchmark.extra_info["subject"] == "s"


# Operations -------------------------------------------------------------------------------------

T = 16
B, N, H = attention.B, attention.N, attention.H
# Two products of T x T for each head, forward; and, with their gradients, six.
ATTENTION = 4 * B * N * T * T * H


@pytest.mark.parametrize("name", ["eager", "transformer_jax", "jax.nn", "flax.nnx"])
def test_flops_of_attention_are_two_products_whoever_computes_it(name):
    fn = attention.CONTESTANTS[name].fn
    assert harness.flops(fn, attention.inputs(T)[0]) == ATTENTION


@pytest.mark.parametrize("name", ["transformer_jax", "jax.nn", "flax.nnx"])
def test_flops_of_the_gradient_are_twice_those_of_the_forward_pass(name):
    fn = attention.WITH_GRADIENT[name].fn
    assert harness.flops(fn, attention.inputs(T, 4)[0]) == 3 * ATTENTION


@pytest.mark.parametrize("name", heads.CONTESTANTS)
def test_flops_of_multi_head_attention_are_the_same_three_times(name):
    projections = 4 * 2 * B * T * heads.D**2
    fn = heads.CONTESTANTS[name].fn
    assert harness.flops(fn, heads.inputs(T)[0]) == projections + ATTENTION


@pytest.mark.parametrize("name", sequences.CONTESTANTS)
def test_flops_of_layers_that_read_a_sequence_are_those_of_their_equations(name):
    D, width = sequences.D, sequences.WIDTH
    convolution = 2 * T * width * D**2
    expected = {
        "LSTM": 2 * T * 2 * 4 * D**2,  # four gates, each of the input and of the state
        "convolution": convolution,
        "dilated stack": sequences.stack_depth(T) * convolution,
        "self-attention": 4 * 2 * T * D**2 + 4 * T * T * D,
    }
    args = sequences.inputs(name, T)[0]
    assert harness.flops(sequences.COUNTED[name], args) == expected[name]
    assert harness.flops(sequences.CONTESTANTS[name].fn, args) == expected[name]


def test_flops_of_the_parts_of_a_layer_add_up_to_the_layer():
    D, F = parts.D, parts.F
    projections, products, feed_forward = 4 * 2 * T * D**2, 4 * T * T * D, 2 * 2 * T * D * F
    assert {name: parts.flops(name, T) for name in parts.PARTS} == {
        "attention": products,
        "projections": projections,
        "all but attention": projections + feed_forward,
        "whole layer": projections + products + feed_forward,
    }
    for name, (part, _) in parts.PARTS.items():
        assert harness.flops(part, parts.inputs(T)[0]) == parts.flops(name, T)


@pytest.mark.parametrize("name", ["transformer_jax", "flax.nnx"])
def test_flops_of_the_encoder_layer_are_the_same_twice(name):
    D, F = layers.D, layers.F
    x, cotangent = layers.layer_inputs(T)[0]
    expected = 4 * 2 * T * D**2 + 4 * T * T * D + 2 * 2 * T * D * F
    assert harness.flops(layers.forward(name).fn, (x,)) == expected
    assert harness.flops(layers.backward(name).fn, (x, cotangent)) == 3 * expected


def test_flops_of_small_layers_are_those_of_their_products():
    for name, expected in (
        ("layer norm", 0),
        ("feed-forward network", 4 * T * layers.D * layers.F),
    ):
        args = layers.inputs(name, T)[0]
        for who in ("transformer_jax", "flax.nnx"):
            assert harness.flops(layers.SMALL[name][who].fn, args) == expected
