"""Attention in blocks is the reference's, value and gradient, under everything that JAX does with a
function.
"""

import os
import subprocess
import sys
from functools import partial
from itertools import cycle
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from bench import naive
from tests.helpers.arrays import jax_normal
from tests.helpers.implementations import attend
from transformer_jax.attention import inputs as inputs_module
from transformer_jax.attention.biases import alibi, relative_bias
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.costs.jaxpr import count

pytestmark = pytest.mark.usefixtures("strict")

ROOT = Path(__file__).parents[3]
B, T, S, N, K, H, O = 2, 7, 11, 6, 2, 3, 5  # noqa: E741
RATE = 0.3


def qkv(seed=0, dtype=jnp.float32, T=T, S=S):
    shapes = (B, T, N, H), (B, S, K, H), (B, S, K, O)
    return tuple(jax_normal(seed + i, *shape, dtype=dtype) for i, shape in enumerate(shapes))


def assert_close(ours, theirs, bound=1e-5):
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        one, other = (np.asarray(x, np.float64) for x in (one, other))
        finite = np.isfinite(other)  # else the log of nothing
        np.testing.assert_array_equal(finite, np.isfinite(one))
        size = max(1.0, np.abs(other[finite]).max(initial=0))
        np.testing.assert_allclose(one, other, rtol=0, atol=bound * size)


# Whatever the reference takes
# ----------------------------------------------------------------------------


def data(seed):
    """Return the arrays of masks and biases, all of them traced."""
    rng = np.random.default_rng(seed)
    return {
        "is_token": rng.random((B, S)) < 0.7,
        "lengths": rng.integers(0, S + 1, B),
        "query_ids": np.sort(rng.integers(0, 3, (B, T))),
        "key_ids": np.sort(rng.integers(0, 3, (B, S))),
        "query_positions": rng.permuted(np.tile(np.arange(T), (B, 1)), axis=1),
        "key_positions": rng.permutation(S),
        "seen": rng.random((B, N, T, S)) < 0.5,
    }


def numbers(seed, dtype=jnp.float32):
    """Return the arrays of biases, which have a gradient."""
    shapes = {"slopes": (N,), "table": (8, N), "whole": (1, N, T, S), "keys": (B, 1, 1, S)}
    return {name: jax_normal(seed, *shape, dtype=dtype) for name, shape in shapes.items()}


MASKS = {
    "none": lambda d: None,
    "causal": lambda d: causal(),
    "window": lambda d: sliding_window(3, 2),
    "window at positions": lambda d: sliding_window(
        2, None, query_positions=d["query_positions"], key_positions=d["key_positions"]
    ),
    "causal or prefix": lambda d: (
        causal(query_positions=d["query_positions"][0]) | prefix(d["lengths"])
    ),
    "padding": lambda d: padding(d["is_token"]),
    "causal and segments": lambda d: causal() & segments(d["query_ids"], d["key_ids"]),
    "array BNTS": lambda d: d["seen"],
    "array N1S": lambda d: d["seen"][0, :, :1],
    "array T1, or padding": lambda d: d["seen"][0, 0, :, :1] | padding(d["is_token"]),
    "array B1TS and window": lambda d: d["seen"][:, :1] & sliding_window(None, 1),
    "one position of all queries": lambda d: causal(query_positions=jnp.array([7])),
    "one text of all": lambda d: segments(np.array([1]), np.array([1])),
}
BIASES = {
    "alibi": lambda p, d: alibi(p["slopes"]),
    "none": lambda p, d: None,
    "relative at positions": lambda p, d: relative_bias(
        p["table"], max_distance=6, query_positions=d["query_positions"]
    ),
    "array 1NTS": lambda p, d: p["whole"],
    "sum": lambda p, d: p["keys"] + alibi(p["slopes"]) + relative_bias(p["table"]) + p["whole"],
    "array B11S": lambda p, d: p["keys"],
}
OPTIONS = (
    {},
    {"scale": 0.9, "at_once": True},
    {"soft_cap": 1.5, "blocks": (4, 4)},
    {"dropout_rate": RATE},
    {"dropout_rate": RATE, "soft_cap": 0.7, "blocks": (3, 11), "at_once": True},
    {"scale": 2.0, "blocks": (7, 2)},
    {"blocks": (16, 16)},
)
CASES = list(zip(MASKS, cycle(BIASES), cycle(OPTIONS), strict=False))


def both_ways(mask, bias, implementation, **options):
    """(inputs, numbers, data, key, cotangents) -> output, logsumexp and the gradient of both,
    compiled.
    """

    def run(inputs, numbers, data, key, cotangents):
        def loss(inputs, numbers):
            outputs = attend(
                *inputs,
                mask=MASKS[mask](data),
                bias=BIASES[bias](numbers, data),
                dropout_rng=key if "dropout_rate" in options else None,
                return_logsumexp=True,
                implementation=implementation,
                **options,
            )
            terms = (
                jnp.where(jnp.isfinite(y), y, 0).astype(c.dtype) * c
                for y, c in zip(outputs, cotangents, strict=True)
            )
            return sum(jnp.sum(term) for term in terms), outputs

        grads, outputs = jax.grad(loss, argnums=(0, 1), has_aux=True)(inputs, numbers)
        return outputs, grads

    return jax.jit(run)


def drawn(seed, dtype=jnp.float32):
    wide = jnp.promote_types(dtype, jnp.float32)
    cotangents = tuple(
        jax_normal(seed + i, *shape, dtype=wide) for i, shape in ((3, (B, T, N, O)), (4, (B, T, N)))
    )
    return qkv(seed, dtype), numbers(seed, dtype), data(seed), jax.random.key(seed), cotangents


# Those that a mutation names; the others are slow.
CATCH = {
    "none, alibi", "causal, none", "window, relative at positions",
    "window at positions, array 1NTS", "padding, array B11S",
}  # fmt: skip


@pytest.mark.parametrize(
    ("mask", "bias", "options"),
    [
        pytest.param(*case, id=name, marks=() if name in CATCH else pytest.mark.slow)
        for case in CASES
        for name in [", ".join(case[:2])]
    ],
)
def test_value_and_gradient_equal_the_reference(mask, bias, options):
    ours, theirs = (both_ways(mask, bias, i, **options) for i in ("blockwise", "reference"))
    for seed in range(4):
        assert_close(ours(*drawn(seed)), theirs(*drawn(seed)))


def test_every_mask_bias_and_option_is_in_a_case():
    for column, table in enumerate((MASKS, BIASES)):
        assert {case[column] for case in CASES} == set(table)
    assert all(options in [case[2] for case in CASES] for options in OPTIONS)


@pytest.mark.usefixtures("mixed_dtypes")
def test_float64_is_computed_in_float64():
    with jax.enable_x64(True):
        ours, theirs = (
            both_ways("causal", "sum", i, soft_cap=1.5)(*drawn(0, jnp.float64))
            for i in ("blockwise", "reference")
        )
        assert {x.dtype for x in jax.tree.leaves(ours)} == {jnp.dtype(jnp.float64)}
        assert_close(ours, theirs, 1e-10)


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize("operands", ["as here", "bfloat16"])
def test_bfloat16_is_no_less_accurate_than_the_reference(operands, monkeypatch):
    """Against loops in float64, also where a machine multiplies in bfloat16."""
    if operands == "bfloat16":
        monkeypatch.setattr(inputs_module, "operands_dtype", jnp.dtype)
    inputs = [jax_normal(i, 1, 64, 2, 16, dtype=jnp.bfloat16) for i in range(3)]
    exact = naive.attention(
        *(np.asarray(x, np.float64) for x in inputs), mask=np.tri(64, dtype=bool)
    )
    error = {}
    for implementation in ("blockwise", "reference"):
        run = partial(attend, mask=causal(), blocks=(16, 12), implementation=implementation)
        output = jax.jit(run)(*inputs)
        assert output.dtype == jnp.bfloat16
        error[implementation] = np.sqrt(np.mean((np.asarray(output, np.float64) - exact) ** 2))
    assert 0 < error["blockwise"] < 1.1 * error["reference"]


@pytest.mark.usefixtures("mixed_dtypes")
def test_the_gradient_in_bfloat16_is_near_that_in_float32():
    """That of the reference, which compiles sooner and in float32 is the same to five digits; the
    first of the cases has it too.
    """
    *inputs, data, key, cotangents = drawn(5, jnp.bfloat16)
    short, wide = (both_ways("none", "alibi", i) for i in ("blockwise", "reference"))
    outputs, grads = short(*inputs, data, key, cotangents)
    assert {x.dtype for x in jax.tree.leaves(grads)} == {jnp.dtype(jnp.bfloat16)}
    inputs = jax.tree.map(lambda x: np.asarray(x, np.float32), inputs)
    assert_close((outputs, grads), wide(*inputs, data, key, cotangents), 2e-2)


def test_huge_logits_do_not_overflow():
    query, key, value = qkv()
    run = jax.jit(
        lambda i: attend(1e15 * query, 1e15 * key, value, implementation=i), static_argnums=0
    )
    ours = run("blockwise")
    assert np.isfinite(ours).all()
    assert_close(ours, run("reference"))


# What JAX does with a function
# ---------------------------------------------------------------------------


def gradient(implementation):
    """(query, key, value, mask) -> the gradient of a sum over the output."""

    def loss(query, key, value, mask):
        return jnp.sum(attend(query, key, value, mask=mask, implementation=implementation) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))


@pytest.fixture(scope="module")
def batches():
    """Three batches, each with its own mask, and the gradients of the reference."""
    inputs = tuple(np.stack(x) for x in zip(*(qkv(10 * i) for i in range(3)), strict=True))
    masks = np.random.default_rng(0).random((3, B, N, T, S)) < 0.5
    reference = jax.jit(gradient("reference"))
    each = [reference(*(x[i] for x in inputs), masks[i]) for i in range(3)]
    return (*inputs, masks), jax.tree.map(lambda *x: np.stack(x), *each)


def checkpointed(query, key, value, mask):
    def loss(*inputs):
        kept = jax.checkpoint(partial(attend, mask=mask, implementation="blockwise"))
        return jnp.sum(kept(*inputs) ** 2)

    return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)


def scanned(*batches):
    return lax.scan(lambda _, batch: ((), gradient("blockwise")(*batch)), (), batches)[1]


def differentiated_scan(query, key, value, mask):
    def loss(*inputs):
        def step(total, batch):
            *inputs, mask = batch
            return total + jnp.sum(attend(*inputs, mask=mask, implementation="blockwise") ** 2), ()

        return lax.scan(step, 0.0, (*inputs, mask))[0]

    return jax.grad(loss, argnums=(0, 1, 2))(query, key, value)


@pytest.mark.parametrize(
    "transformed",
    [
        pytest.param(jax.vmap(gradient("blockwise")), id="vmap"),
        pytest.param(scanned, id="scan"),
        pytest.param(differentiated_scan, id="gradient of a scan"),
        pytest.param(jax.vmap(checkpointed), id="checkpoint"),
    ],
)
def test_it_composes(transformed, batches):
    inputs, expected = batches
    assert_close(jax.jit(transformed)(*inputs), expected)


def test_vmap_over_one_argument_alone(batches):
    (query, key, value, masks), _ = batches
    over_keys = jax.vmap(partial(attend, implementation="blockwise"), in_axes=(None, 0, None))
    found = jax.jit(over_keys)(query[0], key, value[0])
    assert_close(found, np.stack([naive.attention(query[0], x, value[0]) for x in key]))
    over_masks = jax.vmap(lambda mask: attend(*qkv(), mask=mask, implementation="blockwise"))
    found = jax.jit(over_masks)(masks)
    assert_close(found, np.stack([naive.attention(*qkv(), mask=mask) for mask in masks]))


SHARDED = """
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P
from tests.attention.kernels.test_blockwise import attend, causal, qkv, padding, B, S
from transformer_jax.attention.masked_rows import find_masked_rows
assert len(jax.devices()) == 2
mesh = jax.make_mesh((2,), ("devices",), axis_types=(jax.sharding.AxisType.Auto,))
is_token = jnp.asarray(np.random.default_rng(0).random((B, S)) < 0.7)

def both(function):
    def loss(*x):
        return jnp.sum(function(*x, is_token) ** 2)

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))

def attention(query, key, value, is_token, implementation="blockwise"):
    mask = causal() & padding(is_token)
    return attend(query, key, value, mask=mask, implementation=implementation)

def assert_close(got, expected):
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)

expected = both(lambda *x: attention(*x, implementation="reference"))(*qkv())
for spec, tokens in ((P("devices"), P("devices")), (P(None, None, "devices"), P())):
    ours = jax.shard_map(attention, mesh=mesh, in_specs=(spec,) * 3 + (tokens,), out_specs=spec)
    split = jax.device_put(qkv(), NamedSharding(mesh, spec))  # by jit alone, with no shard_map
    for run, inputs in ((ours, qkv()), (attention, split)):
        got = both(run)(*inputs)
        jax.tree.map(assert_close, got, expected)

def dropped(query, key, value, rng):
    return attend(query, key, value, dropout_rate=0.3, dropout_rng=rng, implementation="blockwise")

spec = P(None, "devices")  # each device has half of the queries, and all the keys
ours = jax.shard_map(dropped, mesh=mesh, in_specs=(spec, P(), P(), P()), out_specs=spec)
query, key, value = qkv()
assert jax.jit(ours)(query[:, :6], key, value, jax.random.key(0)).shape == (B, 6, 6, 5)

long = jnp.asarray(np.random.default_rng(0).random((B, 530)) < 0.02)  # more than one block
see = lambda is_token: find_masked_rows(causal() & padding(is_token), 530, 530)
ours = jax.shard_map(see, mesh=mesh, in_specs=P("devices"), out_specs=P("devices"))
jax.tree.map(np.testing.assert_array_equal, jax.jit(ours)(long), see(long))
"""


@pytest.mark.slow
def test_examples_and_heads_are_split_over_two_devices():
    flags = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", SHARDED], env=environment, cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.usefixtures("mixed_dtypes")
def test_it_lowers_for_cuda_and_tpu(dtype):
    def loss(inputs, numbers, data):
        mask = causal() & padding(data["is_token"]) | prefix(data["lengths"])
        bias = BIASES["sum"](numbers, data)
        options = {"dropout_rate": RATE, "dropout_rng": jax.random.key(0), "soft_cap": 2.0}
        options |= {"return_logsumexp": True, "implementation": "blockwise"}
        return sum(
            jnp.sum(y.astype(jnp.float32)) for y in attend(*inputs, mask=mask, bias=bias, **options)
        )

    inputs, numbers, data, *_ = drawn(0, dtype)
    both = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
    exported = jax.export.export(both, platforms=["cuda", "tpu"])(inputs, numbers, data)
    assert exported.platforms == ("cuda", "tpu")


# A gradient of a derivative (more are in tests/contracts/test_transformations.py)
# ------------------------------------------------------------------------------

SECOND = {
    "backwards twice": lambda f: jax.grad(
        lambda *x: sum((y**2).sum() for y in jax.tree.leaves(jax.grad(f, (0, 1))(*x))), (0, 1)
    ),
    "of the way back": lambda f: jax.grad(
        lambda x, *more: jnp.sum(jax.vjp(f, x, *more)[1](jnp.sum(x[0]))[0][0]), (0, 1)
    ),
    "of a tangent": lambda f: jax.grad(
        lambda *x: jax.jvp(f, x, jax.tree.map(jnp.cos, x))[1], (0, 1)
    ),
}


@pytest.mark.parametrize("name", SECOND)
@pytest.mark.parametrize(
    "options",
    [{}, {"dropout_rate": RATE, "soft_cap": 1.5}],
    ids=["plain", "dropout and soft cap"],
)
def test_a_second_gradient_is_that_of_the_reference(name, options):
    is_token = data(0)["is_token"] & np.array([[True], [False]])  # the second sees no key
    options = {**options, "return_logsumexp": True, "mask": causal() & padding(is_token)}
    if "dropout_rate" in options:
        options["dropout_rng"] = jax.random.key(0)

    def values(implementation):
        def function(arrays, bias):
            found = attend(
                *arrays, bias=BIASES["sum"](bias, None), implementation=implementation, **options
            )
            return sum(jnp.sin(jnp.where(jnp.isfinite(x), x, 0)).sum() for x in found)

        return jax.jit(SECOND[name](function))(qkv(), numbers(1))

    right = values("reference")
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(right))
    assert_close(values("blockwise"), right)


# Nothing of size T x S
# -----------------------------------------------------------------------------------

LONG_MASKS = {
    "none": lambda ids: None,
    "causal": lambda ids: causal(),
    "window": lambda ids: sliding_window(128, 128),
    "padding": lambda ids: padding(ids > 0),
    "segments": lambda ids: segments(ids) & causal(),
}
LONG_BIASES = {
    "none": lambda slopes, table: None,
    "alibi": lambda slopes, table: alibi(slopes),
    "relative": lambda slopes, table: relative_bias(table),
}


def largest(length, mask, bias):
    def run(inputs, numbers, ids):
        options = {"mask": LONG_MASKS[mask](ids), "bias": LONG_BIASES[bias](*numbers)}
        options |= {"dropout_rate": RATE, "dropout_rng": jax.random.key(0)}
        output = dot_product_attention(*inputs, **options, implementation="blockwise")
        return output.astype(jnp.float32).sum()

    x, N = jax.ShapeDtypeStruct((1, length, 8, 64), jnp.float32), 8
    numbers = jax.ShapeDtypeStruct((N,), jnp.float32), jax.ShapeDtypeStruct((32, N), jnp.float32)
    both = jax.value_and_grad(run, argnums=(0, 1))
    return count(both, (x, x, x), numbers, jax.ShapeDtypeStruct((1, length), jnp.int32))


@pytest.mark.usefixtures("mixed_dtypes")
@pytest.mark.parametrize(
    ("mask", "bias"),
    [
        ("none", "none"), ("segments", "none"), ("none", "alibi"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                ("causal", "none"), ("window", "none"), ("padding", "none"),
                ("causal", "relative"), ("causal", "alibi"),
            )
        ),
    ],
)  # fmt: skip
def test_the_largest_array_grows_with_T_and_not_with_T_S(mask, bias):
    """Forwards and backwards."""
    short, long = (largest(length, mask, bias) for length in (4096, 8192))
    assert np.prod(short.largest_shape) < 4096**2
    assert long.largest_bytes < 8192**2  # no mask of bytes either
    assert long.largest_bytes <= 2 * short.largest_bytes


def test_the_reference_is_not_so():
    """The figure would show it."""
    x = jax.ShapeDtypeStruct((1, 2048, 8, 64), jnp.float32)
    found = count(partial(dot_product_attention, implementation="reference"), x, x, x)
    assert found.largest_bytes == 8 * 2048 * 2048 * 4
