"""The programs that measure attention and the training step run from end to end, and refuse what is
wrong.
"""

import json
import sys

import jax
import numpy as np
import pytest

from bench import attention
from bench.attention import error, main, measure, too_large
from bench.measure import harness, turns
from bench.measure.harness import Contestant
from bench.measure.records import Record
from bench.naive import numpy_attention
from bench.pages import analysis
from bench.pages.markdown import milliseconds, quotient
from bench.peers import contestants, mask_kinds, resident_memory
from bench.peers.contestants import OURS, Cell, definition
from transformer_jax.attention.kernels import dispatch
from transformer_jax.cpu.library import is_built

PEERS = ("reference", "jax.nn", "flax.nnx")
TORCH = ("PyTorch", "PyTorch, written out")


@pytest.mark.parametrize("kind", mask_kinds.KINDS)
@pytest.mark.parametrize("T", [3, 300, 1100])
def test_rule_and_positions_say_the_same(kind, T):
    mask = mask_kinds.our_mask(kind, *mask_kinds.our_arrays(kind, T))
    expected = np.broadcast_to(mask_kinds.visible(kind, T), (T, T))
    found = True if mask is None else mask.to_array(T)
    np.testing.assert_array_equal(np.broadcast_to(found, (1, 1, T, T))[0, 0], expected)
    assert mask_kinds.pairs(kind, T) == expected.sum()
    rows = slice(1, T, 2)
    np.testing.assert_array_equal(
        np.broadcast_to(mask_kinds.visible(kind, T, rows), expected[rows].shape), expected[rows]
    )
    assert expected.any(axis=1).all()  # nobody sees nothing: peers disagree on what that is


def test_texts_in_a_row_are_as_many_and_of_different_lengths():
    ids = mask_kinds.text_ids(1000)
    lengths = np.bincount(ids)
    assert (np.diff(ids) >= 0).all() and len(lengths) == mask_kinds.TEXTS
    assert len(set(lengths)) > 1 and lengths.min() > 50


def test_definition_is_that_of_the_loops_and_its_gradient_is_autodiffs(monkeypatch):
    monkeypatch.setattr(contestants, "ROWS", 7)  # several blocks, the last one shorter
    cell = Cell("packed", 19, gradient=True)
    inputs = cell.inputs(seed=1)[0]
    query, key, value, cotangent = inputs
    seen = mask_kinds.visible("packed", 19)
    output, *gradients = definition(cell, inputs, head=2)
    parts = [numpy_attention(query[:, [t]], key[:, seen[t]], value[:, seen[t]]) for t in range(19)]
    np.testing.assert_allclose(output, np.concatenate(parts, axis=1)[:, :, 2], atol=1e-6)

    def attend(*qkv):
        return jax.nn.dot_product_attention(*qkv, mask=seen[None, None])

    expected = jax.vjp(attend, query, key, value)[1](cotangent)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other[:, :, 2], atol=1e-5)


def test_cell_counts_what_is_visible():
    assert Cell("full", 8).flops == 4 * 8 * 64 * 8 * 8
    assert Cell("causal", 8, gradient=True, batch=2).flops == 2 * 3 * 4 * 8 * 64 * 36
    assert Cell("padded", 8).flops == 4 * 8 * 64 * 8 * 2


@pytest.mark.parametrize(
    ("kind", "dtype", "gradient"), [("window", "float32", True), ("packed", "bfloat16", False)]
)
def test_everybody_computes_the_definition_and_is_timed(kind, dtype, gradient):
    pytest.importorskip("torch")
    found = measure(Cell(kind, 144, dtype, gradient), seed=0, seconds=0.0)
    assert found["left_out"] == {}
    assert set(found["seconds"]) == {OURS, *PEERS, *TORCH} <= set(found["errors"])
    assert set(found["ratios"]) == {*PEERS, *TORCH} and found["rounds"] == 5
    assert found["flops_per_second"][OURS] == found["flops"] / found["seconds"][OURS]
    assert 0 < max(found["errors"].values()) <= attention.TOLERANCE[dtype]


def test_wrong_contestant_is_not_timed():
    cell = Cell("causal", 16)
    calls = []

    def unmasked(query, key, value):
        calls.append(query.shape)
        return jax.nn.dot_product_attention(query, key, value)

    found = measure(
        cell,
        0,
        0.0,
        only=(OURS, "unmasked"),
        added={"unmasked": (Contestant(unmasked, "eager"), ())},
    )
    assert "wrong by" in found["left_out"]["unmasked"]
    assert set(found["seconds"]) == {OURS} and found["ratios"] == {}
    assert len(calls) == 2  # the two of the check


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("spoil", ["nan", "one gradient", "no mask"])
def test_what_is_slightly_wrong_is_seen(spoil, dtype):
    cell = Cell("window", 300, dtype, gradient=True)
    inputs = cell.inputs(seed=2)[0]
    right = definition(cell, inputs, head=0)
    value = [np.zeros((*x.shape[:2], 8, x.shape[2])) for x in right]
    for whole, part in zip(value, right, strict=True):
        whole[:, :, 0] = part
    assert error(cell, value, {0: right}) == 0
    if spoil == "nan":
        value[3][0, 5, 0, 7] = np.nan
    elif spoil == "one gradient":
        value[2][:, :, 0] *= 1.1
    else:
        unmasked = definition(Cell("full", 300, dtype, gradient=True), inputs, head=0)
        value[0][:, :, 0] = unmasked[0]
    assert error(cell, value, {0: right}) > attention.TOLERANCE[dtype]


def test_who_would_take_too_much_is_left_out_and_said_to_be(monkeypatch):
    long = Cell("full", 16384)
    assert too_large("jax.nn", long, {}) == "about 17 GB"
    assert too_large(OURS, long, {}) is None and too_large("PyTorch", long, {}) is None
    assert too_large("PyTorch", long, {"PyTorch": (8192, 12.0)}) == "about 48 s a call"
    monkeypatch.setitem(attention.LIMITS, "bytes", 1.0)
    found = measure(Cell("full", 16), 0, 0.0, only=(OURS, "jax.nn"))
    assert set(found["left_out"]) == {"jax.nn"} and set(found["seconds"]) == {OURS}


def test_turns_are_rounds_and_ratios_are_within_one():
    order = []
    times = turns.take_turns(
        {name: lambda name=name: order.append(name) for name in "ABC"}, 0.0, least=2
    )
    assert order == list("ABCBCA") and {len(t) for t in times.values()} == {2}
    # Twice as slow in every other round: the ratio is 3 all the same, that of the medians is not.
    found = turns.summary({"A": [3.0, 6.0, 12.0], "B": [1.0, 2.0, 4.0]}, "A")
    assert found["ratios"]["B"] == {"median": 3.0, "quartiles": [3.0, 3.0]}
    assert found["seconds"] == {"A": 6.0, "B": 2.0} and found["rounds"] == 3


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Every part at tiny sizes."""
    docs = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatch, "widest_instructions", lambda: "other")
        patch.setattr(attention, "MEMORY_OF_PEERS", 256)
        patch.setattr(attention, "MEMORY_LENGTHS", (256,))
        patch.setattr(
            resident_memory,
            "in_child",
            lambda *words: {int(length): 1000 * 2**20 for length in words[5:]},
        )
        words = "--lengths 16 --kinds causal --dtypes float32 --passes forward --seconds 0"
        words += " --longest 256"
        assert main([*words.split(), "--docs", str(docs)]) == 0
    return docs


def test_file_says_what_ran_where_and_when(written):
    results = json.loads((written / "results" / "attention.json").read_text())
    (run,) = results["runs"]
    assert run["command"].startswith("python -m bench.attention --lengths 16")
    assert {"date", "seed", "seconds", "machine"} <= set(run)
    assert {"versions", "processor", "settings", "threads"} <= set(run["machine"])
    (cell,) = results["cells"]
    plan = "cpu" if is_built() else "reference"
    assert (cell["kind"], cell["length"], cell["plan"]) == ("causal", 16, plan)
    assert cell["load_average"] is None or cell["load_average"] >= 0


def test_page_is_made_of_the_file(written, capsys):
    page = (written / "benchmarks/attention.md").read_text()
    (cell,) = json.loads((written / "results" / "attention.json").read_text())["cells"]
    assert quotient(cell["ratios"]["jax.nn"]) in page
    assert milliseconds(cell["seconds"][OURS]) in page
    assert "## Memory" in page
    for name in ("time-float32", "memory"):
        assert f"(../figures/attention-{name}.svg)" in page
        assert (written / "figures" / f"attention-{name}.svg").read_text().startswith("<?xml")
    assert main(["--page", "--docs", str(written)]) == 0
    assert (written / "benchmarks/attention.md").read_text() == page


def test_adding_replaces_what_is_measured_anew_and_keeps_the_rest(written, tmp_path):
    file = tmp_path / "some.json"
    file.write_text((written / "results" / "attention.json").read_text())
    words = "--parts cells --dtypes float32 --passes forward --seconds 0 --add --lengths 16 --kinds"
    common = ["--docs", str(tmp_path), "--json", str(file)]
    assert main([*words.split(), "causal", "padded", *common]) == 0
    results = json.loads(file.read_text())
    assert [cell["kind"] for cell in results["cells"]] == ["causal", "padded"]
    assert len(results["runs"]) == 2 and len(results["memory"]) > 0


@pytest.mark.parametrize(
    ("contents", "message"),
    [(None, "No such file"), ("{", "Expecting"), ("[]", "is not what"), ("{}", "is not what")],
)
def test_file_of_something_else_is_one_line(tmp_path, capsys, contents, message):
    file = tmp_path / "x.json"
    if contents is not None:
        file.write_text(contents)
    assert main(["--page", "--json", str(file), "--docs", str(tmp_path)]) == 2
    captured = capsys.readouterr().err
    assert message in captured and captured.count("\n") == 1
    assert not (tmp_path / "benchmarks/attention.md").exists()


def test_nothing_to_measure_is_one_line(tmp_path, capsys):
    assert main(["--parts", "memory", "--longest", "128", "--docs", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert "nothing was written" in said and said.count("\n") == 1
    if resident_memory.can_be_read():
        assert "--longest must be 1024 or more to measure memory; got 128" in said
    assert not (tmp_path / "results" / "attention.json").exists()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--help"], "usage: python -m bench.peers.resident_memory"),
        ([OURS, "full", "float32", "sideways", "16"], "invalid choice: 'sideways'"),
        ([OURS, "full", "float32", "forward", "0"], "LENGTH must be 1 or more; got 0"),
        (["nobody", "full", "float32", "forward", "16"], "got 'nobody'"),
    ],
)
def test_resident_memory_says_what_it_wants(words, says, capsys, monkeypatch):
    monkeypatch.setattr(resident_memory, "can_be_read", lambda: True)
    with pytest.raises(SystemExit) as stopped:
        resident_memory.main(words)
    captured = capsys.readouterr()
    assert stopped.value.code == (0 if words == ["--help"] else 2)
    assert says in captured.out + captured.err


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.skipif(
    not resident_memory.can_be_read(), reason="reads Linux's /proc, of a CPU's memory"
)
def test_child_sees_the_logits_of_who_stores_them():
    stored = 8 * 1024**2 * 4
    naive = resident_memory.in_child(
        "bench.peers.resident_memory", "jax.nn", "full", "float32", "forward", 1024
    )
    ours = resident_memory.in_child(
        "bench.peers.resident_memory", OURS, "full", "float32", "forward", 1024
    )
    # Linux counts the pages of a process by batches, so a few megabytes may be seen as none.
    assert naive[1024] > 0.9 * stored > ours[1024]
    with pytest.raises(RuntimeError, match="nobody"):
        resident_memory.in_child(
            "bench.peers.resident_memory", "nobody", "full", "float32", "forward", 16
        )


@pytest.mark.parametrize(
    "subject",
    [
        pytest.param(name, marks=(pytest.mark.slow, pytest.mark.optimized))
        for name in ("step without dropout", "step")
    ],
)
def test_training_step_is_measured_and_its_page_written(tmp_path, subject):
    pytest.importorskip("torch")
    from bench import training_step

    names = training_step.SUBJECTS[subject][3]
    words = ["--small", "--docs", str(tmp_path), "--subjects", subject, "inference of one text"]
    assert training_step.main(words) == 0
    results = json.loads((tmp_path / "results" / "training_step.json").read_text())
    step, inference = results["subjects"]
    assert set(step["seconds"]) == set(step["errors"]) == set(names) and step["rounds"] == 1
    assert set(step["ratios"]) == {name for name in names if name.startswith(OURS)}
    assert set(step["ratios"][OURS]) == set(names) - {OURS}
    assert 0.1 < step["padding"] < 0.6 and inference["dropout"] is None
    assert {"command", "date", "seed", "machine", "seconds"} <= set(results)
    page = (tmp_path / "benchmarks/training-step.md").read_text()
    assert "the tutorial's classifier with a few features" in page
    assert quotient(step["ratios"][OURS]["eager"]) in page


@pytest.mark.optimized
@pytest.mark.slow
def test_step_that_computes_something_else_is_refused(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    from bench import training_step
    from bench.peers import contender

    right = contender.Contender.__call__
    monkeypatch.setattr(
        contender.Contender, "__call__", lambda self: right(self) + (self.name == OURS)
    )
    words = ["--small", "--subjects", "inference of one text", "--docs", str(tmp_path)]
    assert training_step.main(words) == 1
    assert "transformer_jax computes something else" in capsys.readouterr().err
    assert not (tmp_path / "results").exists()


def test_without_torch_the_opponent_is_named(monkeypatch, capsys):
    from bench import training_step

    monkeypatch.setitem(sys.modules, "torch", None)
    assert training_step.main([]) == 2
    assert "pip install torch" in capsys.readouterr().err


def test_skipped_blocks_are_a_goal():
    found = [
        Record("attention that skips", "full", 4096, 1.0, 9, reference=kind, ratio=ratio)
        for kind, ratio in (("causal", 1.4), ("window", 4.9))
    ]
    goals = analysis.goals(found)
    assert [goal.met for goal in goals] == [True, False]
    assert [goal.wanted for goal in goals] == pytest.approx([1 / 0.75, 1 / 0.2])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_have_the_same_numbers(dtype):
    pytest.importorskip("torch")
    x = Cell("full", 3, dtype).inputs(seed=0)[0][0]
    tensor = harness.to_torch(x)
    assert str(tensor.dtype) == f"torch.{dtype}"
    np.testing.assert_array_equal(harness.to_numpy(tensor), x.astype(np.float32))
    np.testing.assert_array_equal(harness.to_numpy(jax.numpy.asarray(x)), x.astype(np.float32))
