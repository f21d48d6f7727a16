"""The chosen implementation of attention is the fastest, or nearly, in every row of the table."""

import json

import pytest

from bench.measure import harness, machine
from bench.pages.plan import WITHIN, chosen, fitted, fitted_kernel, of_group, slowdown
from bench.peers import contestants as who
from bench.peers.contestants import Cell
from bench.plan import PROGRAM, main, measure
from docs.build.results import DOCS
from transformer_jax.attention.kernels.thresholds import KERNEL_FROM, LIMITS, KernelFrom, Limits
from transformer_jax.cpu.library import is_built

MACHINES = PROGRAM.read(DOCS)["machines"]
ROWS = [(machine, row) for machine in MACHINES for row in machine["rows"]]


def row_of(seconds, queries=64, keys=64, batch=1, gradient=False, kind="full"):
    sizes = {"batch": batch, "heads": 8, "queries": queries, "keys": keys, "kind": kind}
    return {**sizes, "dtype": "float32", "gradient": gradient, "seconds": seconds}


def test_the_slowdown_is_the_time_of_the_chosen_over_that_of_the_fastest():
    row = row_of({"reference": 3.0, "blockwise": 2.0, "cpu": 1.0})
    assert chosen(row, "other") == "cpu" and slowdown(row, "other") == 1
    assert slowdown(row | {"gradient": True}, "other") == 3
    assert chosen(row, "other", kernel=False) == "reference"
    assert slowdown(row, "other", kernel=False) == 1.5
    del row["seconds"]["cpu"]
    assert chosen(row, "other") == "reference"
    long = row_of({"reference": 1.0, "blockwise": 2.0}, 1024, 1024)
    assert chosen(long, "other") == "blockwise" and slowdown(long, "other") == 2
    some = row_of({"reference": 1.0, "blockwise": 2.0}, 256, 256)
    assert chosen(some, "other") == "reference"
    assert chosen(some | {"kind": "causal"}, "other") == "blockwise"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    docs = tmp_path_factory.mktemp("docs")
    words = "--lengths 16 --batches 1 2 --kinds causal --seconds 0 --no-few"
    assert main([*words.split(), "--docs", str(docs)]) == 0
    return docs


def test_every_implementation_is_measured(written):
    (machine,) = json.loads((written / "results" / "plan.json").read_text())["machines"]
    names = {"reference", "blockwise"}
    assert {row["dtype"]: set(row["seconds"]) for row in machine["rows"]} == {
        "float32": names | ({"cpu"} if is_built() else set()),
        "bfloat16": names | ({"cpu"} if is_built() else set()),
    }
    assert len(machine["rows"]) == 8  # two dtypes, batches and passes
    (run,) = machine["runs"]
    assert run["command"].startswith("python -m bench.plan --lengths 16")


def test_a_page_says_if_there_were_no_kernels(monkeypatch, tmp_path):
    words = "--lengths 16 --batches 1 --kinds full --dtypes float32 --seconds 0 --no-few"
    for has_kernels in (True, False):
        monkeypatch.setattr(machine, "is_built", lambda built=has_kernels: built)
        docs = tmp_path / str(has_kernels)
        assert main([*words.split(), "--docs", str(docs)]) == 0
        page = (docs / "benchmarks" / "plan.md").read_text()
        assert ("; without the kernels in C++" in page) is not has_kernels


def test_rows_that_are_not_measured_again_stay(written, capsys):
    words = "--lengths 16 --batches 1 --kinds full --dtypes float32 --seconds 0 --no-few"
    assert main([*words.split(), "--docs", str(written)]) == 0
    (machine,) = json.loads((written / "results" / "plan.json").read_text())["machines"]
    assert len(machine["rows"]) == 10 and len(machine["runs"]) == 2
    page = (written / "benchmarks" / "plan.md").read_text()
    assert "\n### Full, forward\n" in page and "\n### Window" not in page
    assert "of 10 rows" in page
    assert main(["--page", "--docs", str(written)]) == 0
    assert (written / "benchmarks" / "plan.md").read_text() == page


def test_a_damaged_table_is_one_line_and_stays(tmp_path, capsys):
    path = tmp_path / "results" / "plan.json"
    path.parent.mkdir()
    path.write_text('{"machines": [')
    words = "--lengths 16 --batches 1 --kinds full --dtypes float32 --seconds 0 --no-few"
    assert main([*words.split(), "--docs", str(tmp_path)]) == 2
    assert path.read_text() == '{"machines": ['
    assert "plan.json: " in capsys.readouterr().err


def test_few_queries_see_many_keys():
    cell = Cell("padded", 64, batch=2, queries=1)
    row = measure(cell, seed=0, seconds=0.0)
    assert (row["queries"], row["keys"]) == (1, 64)
    assert cell.flops == 2 * 4 * 8 * 64 * 16


def test_wrong_values_are_not_timed(monkeypatch):
    monkeypatch.setattr(who, "our_attention", lambda *_: lambda query, key, value: value)
    with pytest.raises(harness.Disagreement, match="reference, Cell"):
        measure(Cell("full", 16), seed=0, seconds=0.0)


def test_the_chosen_implementation_is_nearly_always_the_fastest():
    """The kernel in C++ is built; the limits know whether there is a mask, and not its kind."""
    ratios = [slowdown(row, machine["instructions"]) for machine, row in ROWS]
    assert sum(ratio <= WITHIN for ratio in ratios) >= 0.95 * len(ratios)
    assert max(ratios) < 1.25


def test_the_limits_are_those_of_the_table():
    for case, limits in LIMITS.items():
        rows = [row for machine, row in ROWS if machine["instructions"] == case.instructions]
        of_case = of_group(rows, "bfloat16" if case.narrow else "float32", *case[2:])
        assert fitted(of_case) == limits
        assert fitted_kernel(of_case, case.instructions) == KERNEL_FROM[case]


def test_limits_are_the_lowest_that_part_the_rows():
    """The reference is faster below 2**19 logits of the only example, 2**18 of each of four."""
    rows = [
        row_of({"reference": 1.0, "blockwise": 2.0 if 8 * 256 * queries < limit else 0.5},
               queries, keys=256, batch=batch)
        for queries in (32, 64, 128, 256, 512)
        for batch, limit in ((1, 2**19), (4, 2**18))
    ]  # fmt: skip
    assert fitted(rows) == Limits(2**19, 2**18, 2**20)


def test_the_kernel_is_used_from_where_it_is_faster():
    """Here that is 2**12 logits of a head for the only example, and 2**14 for each of four."""
    rows = [
        row_of({"reference": 1.0, "blockwise": 3.0, "cpu": 0.5 if 64 * queries >= limit else 2.0},
               queries, keys=64, batch=batch)
        for queries in (16, 32, 64, 128, 256)
        for batch, limit in ((1, 2**12), (4, 2**14))
    ]  # fmt: skip
    assert fitted_kernel(rows, "avx512") == KernelFrom(2**12, 2**14)
