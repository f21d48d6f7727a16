"""The report finds the laws again in benchmarks that follow known ones."""

import io
import json
import math
import subprocess
from contextlib import redirect_stdout
from itertools import pairwise

import jax
import numpy as np
import pytest
from matplotlib.text import Text

from bench import report
from bench.measure import records
from bench.micro import test_attention as attention
from bench.micro import test_heads as heads
from bench.micro import test_parts as parts
from bench.micro import test_sequences as sequences
from bench.pages import analysis, plots
from bench.pages import benchmarks as page
from transformer_jax.runtime.errors import InputError

MACHINE = {
    "processor": "a processor",
    "system": "Linux",
    "cores": 2,
    "threads": {"numpy": 2},
    "devices": ["cpu: cpu"],
    "python": "3.11",
    "versions": {"jax": "0.10"},
    "settings": {},
    "command": "pytest --benchmark-only",
}
# Seconds at length T of an overhead, a linear and a quadratic part.
TIMES = {
    ("attention", "Python loops"): (0, 0, 1e-4),
    ("attention", "NumPy, loop over queries"): (1e-5, 3e-4, 0),
    ("attention", "transformer_jax"): (2e-5, 1e-7, 1e-8),
    ("attention with its gradient", "transformer_jax"): (2e-5, 1e-7, 4e-8),
    ("parts of an encoder layer", "attention"): (0, 0, 4e-8),
    ("parts of an encoder layer", "projections"): (0, 8e-6, 0),
    ("parts of an encoder layer", "all but attention"): (0, 32e-6, 0),
    ("layers that read a sequence", "self-attention"): (1e-5, 4e-6, 4e-8),
    ("layers that read a sequence", "LSTM"): (1e-5, 1e-5, 0),
    ("layers that read a sequence", "convolution"): (1e-5, 1e-3, 0),
}
LENGTHS = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048]


def benchmark(seconds, **extra):
    return {"name": "n", "extra_info": extra, "stats": {"median": seconds, "rounds": 5}}


def benchmarks():
    """The file that pytest-benchmark would have written."""
    found = []
    for (subject, implementation), (a, b, c) in TIMES.items():
        loops = implementation == "Python loops"
        for T in LENGTHS[:5] if loops else LENGTHS[2:]:
            found.append(
                benchmark(
                    a + b * T + c * T**2,
                    subject=subject,
                    implementation=implementation,
                    length=T,
                    how="host" if loops else "compiled",
                    flops=1000 * (b > 0) * T + 2000 * (b == 0) * T**2,
                    bytes_moved=100 * T,
                    peak_bytes=300 * T + T**2 if implementation == "transformer_jax" else 64 * T,
                    compile_seconds=None if loops else 0.5,
                    path_length=T if subject.startswith("layers") else None,
                    load_average=0.5,
                    sizes={"N": 8, "H": 64, "D": 512, "F": 2048},
                )
            )
    found.append(
        benchmark(
            1.0,
            subject="attention",
            implementation="NumPy, loop over queries",
            reference="transformer_jax",
            length=128,
            ratio=6.0,
            ratio_quartiles=[5.5, 6.5],
        )
    )
    for T in (512, 1024, 2048):
        found.append(
            benchmark(
                1.0,
                subject="resident memory of attention",
                implementation="transformer_jax",
                length=T,
                resident_bytes=100 * T**2,
            )
        )
    return [*found, benchmark(1.0, summary="the summary of one that has no subject")]


def file_contents():
    return {
        "machine_info": dict(MACHINE),
        "datetime": "2026-01-02T03:04:05",
        "benchmarks": benchmarks(),
    }


@pytest.fixture(scope="module")
def run():
    return records.read(file_contents())


@pytest.fixture(scope="module")
def laws(run):
    return {(law.subject, law.implementation): law for law in analysis.laws(run.records)}


def test_the_exponents_are_those_of_the_times(laws):
    loops = laws["attention", "Python loops"]
    assert loops.lengths == (16, 32, 64)  # ten times as long as the shortest, at least
    assert loops.time.exponent == pytest.approx(2)
    compiled = laws["attention", "transformer_jax"]
    assert compiled.lengths[0] == 256
    assert 1.7 < compiled.time.exponent < 2
    assert compiled.quadratic.crossover == pytest.approx(10)
    assert laws["attention", "NumPy, loop over queries"].quadratic.crossover > 1e6


def test_the_exponents_of_operations_and_memory_are_their_own(laws):
    assert laws["attention", "Python loops"].flops.exponent == pytest.approx(2)
    assert laws["layers that read a sequence", "LSTM"].flops.exponent == pytest.approx(1)
    assert 1.3 < laws["attention", "transformer_jax"].memory.exponent < 2
    # 16 times the shortest at 2048 alone: one length is no law.
    assert laws["resident memory of attention", "transformer_jax"].resident is None


def test_attention_overtakes_where_the_times_say(run):
    found = {c.other: c for c in analysis.crossings(run.records)}
    assert found["projections"].clock == pytest.approx(200)
    assert found["all but attention"].clock == pytest.approx(800)
    # 4e-8 T^2 = 6e-6 T, between lengths that are not straight lines: close, not equal.
    assert found["LSTM"].clock == pytest.approx(150, rel=0.05)
    assert found["convolution"].clock is None
    assert "dilated stack" not in found
    assert any("above 2048" in line for line in page.crossings(list(found.values())))


def test_goals_are_met_or_missed_by_so_much_and_say_what_was_extrapolated(run):
    first, second = analysis.goals(run.records)
    seconds = 2e-5 + 1e-7 * 512 + 1e-8 * 512**2
    assert first.measured == pytest.approx(1e-4 * 512**2 / seconds)
    assert first.met and "extrapolated by T^2.00 from T <= 64" in first.extrapolated
    assert second.measured == 6.0 and not second.met
    assert "missed: 0.75 times the goal" in page.goals([second])[-1]


def test_counted_alone_attention_crosses_at_two_and_six_widths():
    found = [
        records.Record("parts of an encoder layer", name, T, 1.0, 1, flops=parts.flops(name, T))
        for name in parts.PARTS
        for T in parts.LENGTHS
    ]
    crossings = {c.other: c.counted for c in analysis.crossings(found)}
    assert crossings["projections"] == pytest.approx(2 * parts.D)
    assert crossings["all but attention"] == pytest.approx(6 * parts.D)


@pytest.fixture(scope="module")
def docs(tmp_path_factory):
    """The folder that the command writes from the file."""
    folder = tmp_path_factory.mktemp("report")
    (folder / "in.json").write_text(json.dumps(file_contents()))
    words = ["--json", str(folder / "in.json"), "--docs", str(folder / "docs")]
    with redirect_stdout(io.StringIO()) as said:
        assert report.main(words) == 0
    assert "benchmarks.md" in said.getvalue()
    return folder / "docs"


def test_the_command_writes_page_figures_and_records(docs):
    text = (docs / "benchmarks/benchmarks.md").read_text()
    assert "8 heads of 64 features" in text and "Width D = 512, F = 2048" in text
    for part in ("a processor", "2 cores", "jax 0.10", "pytest --benchmark-only", "2026-01-02"):
        assert part in text
    assert "the summary of one that has no subject" in text
    assert str(docs.parent) not in text
    shown = [line.split("](")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert len(shown) == 6
    for path in shown:
        svg = (docs / "benchmarks" / path).read_text()
        assert svg.startswith("<?xml") and str(docs.parent) not in svg

    def no_constant(name):
        raise AssertionError(f"{name} is not JSON")

    kept = json.loads((docs / "results" / "bench.json").read_text(), parse_constant=no_constant)
    assert len(kept["records"]) == len(benchmarks()) - 1
    assert kept["goals"][1]["met"] is False


@pytest.mark.optimized
@pytest.mark.slow
def test_the_same_measurements_give_the_same_figures(run, tmp_path):
    once, again = (
        [plots.save(figure, tmp_path / f"{when}-{name}.svg").read_bytes()
         for name, figure in page.figures(page.reduced(run)).items()]
        for when in ("once", "again")
    )  # fmt: skip
    assert len(once) == 6 and once == again


def test_every_implementation_of_a_figure_has_a_colour_of_its_own():
    for contestants in (
        attention.CONTESTANTS,
        heads.CONTESTANTS,
        sequences.CONTESTANTS,
        parts.PARTS,
    ):
        colours = [plots.COLOURS[name] for name in contestants]
        assert len(set(colours)) == len(colours)


@pytest.mark.parametrize("count", [2, 8, 12])
def test_names_at_the_ends_of_lines_do_not_touch(count):
    figure, axis = plots.plt.subplots(figsize=(6, 5))
    axis.set(yscale="log", ylim=(1, 1e3))
    ends = [(1, 500 + i, f"name {i}", "#000000") for i in range(count)]
    plots.write_ends(axis, ends)
    figure.canvas.draw()
    boxes = [Text.get_window_extent(text) for text in axis.texts]  # without the arrow
    plots.plt.close(figure)
    assert len(boxes) == count
    assert all(above.y0 >= below.y1 - 1 for below, above in pairwise(boxes))
    assert [text.get_text() for text in axis.texts] == [end[2] for end in ends]


def test_two_lengths_are_shown_without_an_interval():
    values = {16: 1.0, 64: 20.0, 256: 320.0}
    law = analysis.power_law(values)
    assert page.exponent(law) == "2.00 (two lengths)"
    assert analysis.power_law({16: 1.0, 32: 4.0}) is None
    assert page.exponent(None) == ""
    assert records.rounded({"x": (math.inf, 1.23456789)}) == {"x": [None, 1.23457]}


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (None, "No such file"),
        ("not json", "Expecting value"),
        ("{}", "not a file that pytest --benchmark-json wrote here"),
        ("[]", "not a file that pytest --benchmark-json wrote here"),
        (json.dumps(file_contents() | {"benchmarks": []}), "nothing was written"),
    ],
)
def test_a_file_of_something_else_is_one_line_and_nothing_is_written(
    contents, message, tmp_path, capsys
):
    if contents is not None:
        (tmp_path / "in.json").write_text(contents)
    words = ["--json", str(tmp_path / "in.json"), "--docs", str(tmp_path / "docs")]
    assert report.main(words) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "docs").exists()


@pytest.mark.parametrize("contents", [None, "{", "[]", '{"records": [{"subject": "x"}]}'])
@pytest.mark.parametrize("words", ["--page", "--compare"])
def test_without_numbers_of_before_it_is_one_line(words, contents, tmp_path, capsys):
    if contents is not None:
        (tmp_path / "results").mkdir()
        (tmp_path / "results" / "bench.json").write_text(contents)
    assert report.main([words, "--docs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ") and captured.err.count("\n") == 1
    assert not (tmp_path / "benchmarks/benchmarks.md").exists() and not captured.out


def test_what_became_slower_stands_first_and_nothing_is_written(docs, tmp_path, capsys):
    before = {path: path.read_bytes() for path in docs.glob("**/*.*")}
    slower = file_contents()
    slower["benchmarks"][7]["stats"]["median"] *= 3
    slower["machine_info"]["cores"] = 64
    (tmp_path / "in.json").write_text(json.dumps(slower))
    words = ["--json", str(tmp_path / "in.json"), "--docs", str(docs), "--compare"]
    assert report.main(words) == 0
    cores, _, _, first, second, *_ = capsys.readouterr().out.splitlines()
    assert cores == "cores: 2 before, 64 now"
    changed = slower["benchmarks"][7]["extra_info"]
    assert f"{changed['subject']}, {changed['implementation']} " in first
    assert f" {changed['length']} |" in first and first.endswith(" 3 |") and second.endswith(" 1 |")
    assert before == {path: path.read_bytes() for path in docs.glob("**/*.*")}


FAILING = """
import pytest
from bench.conftest import pytest_benchmark_update_json  # noqa: F401


@pytest.mark.parametrize("name", ["right", "wrong", "late"])
def test_one(benchmark, name):
    benchmark.extra_info |= {"subject": "attention", "implementation": name, "length": 8}
    benchmark.pedantic(lambda: 1 / (name != "wrong"), rounds=3)
    assert name != "late"


def test_of_none(benchmark, missing):
    pass
"""


def test_when_one_fails_the_others_are_written_and_it_is_named(tmp_path, monkeypatch, capfd):
    """A benchmark that fails, also one that fails after it was timed, and a fixture that is not
    there.
    """
    (tmp_path / "conftest.py").write_text("from bench.conftest import *\n")
    (tmp_path / "test_some.py").write_text(FAILING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    right = subprocess.run

    def run(words, cwd, env, check):
        assert words[-1] == "bench"
        # The child of a worker of pytest-xdist would take itself for a worker and measure nothing.
        env = {k: v for k, v in env.items() if not k.startswith("PYTEST_XDIST")}
        env |= {"PYTHONPATH": str(report.ROOT)}
        return right([*words[:-1], "test_some.py"], cwd=tmp_path, env=env, check=check)

    monkeypatch.setattr(report.subprocess, "run", run)
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # the benchmarks run on their own
    assert report.main(["--docs", str(tmp_path / "docs")]) == 1
    failed = [f"test_some.py::test_{name}" for name in ("one[wrong]", "one[late]", "of_none")]
    assert capfd.readouterr().err.splitlines()[-1] == f"failed: {', '.join(failed)}"
    kept = json.loads((tmp_path / "docs" / "results" / "bench.json").read_text())
    assert [record["implementation"] for record in kept["records"]] == ["right"]
    assert kept["failed"] == failed
    assert (
        "**Failed, and left out:** `test_some.py::test_one[wrong]`"
        in (tmp_path / "docs" / "benchmarks" / "benchmarks.md").read_text()
    )


def test_a_run_that_cannot_start_writes_nothing(monkeypatch):
    monkeypatch.setattr(
        report.subprocess, "run", lambda *_, **__: report.subprocess.CompletedProcess([], 2)
    )
    with pytest.raises(InputError, match=r"`pytest --benchmark-only -k none` failed"):
        report.run_benchmarks(False, "none")


def reads(name: str, T: int) -> np.ndarray:
    """[T, T]: whether output t of one layer depends on input s, from its Jacobian."""
    x, *parameters = jax.device_put(sequences.inputs(name, T)[0])
    layer = sequences.CONTESTANTS[name].fn

    def features_summed(x):
        return layer(x, *parameters).sum(axis=(0, 2))

    jacobian = jax.jit(jax.jacrev(features_summed))(x)
    return np.abs(np.asarray(jacobian)[:, 0]).sum(axis=-1) > 0


@pytest.mark.parametrize("T", [2, 5, 14])
def test_the_path_length_of_the_stack_is_the_least_depth_that_reaches(T, monkeypatch):
    depth = sequences.stack_depth(T)
    assert reads("dilated stack", T)[T - 1, 0]
    monkeypatch.setattr(sequences, "stack_depth", lambda T: depth - 1)
    assert depth == 1 or not reads("dilated stack", T)[T - 1, 0]


def test_path_lengths_are_those_of_the_graph_of_who_reads_whom():
    T = 7
    everyone = reads("self-attention", T)
    assert everyone.all() and sequences.PATHS["self-attention"](T) == 1

    neighbours = reads("convolution", T)
    layers, reached = 1, neighbours
    while not reached[T - 1, 0]:
        layers, reached = layers + 1, reached @ neighbours
    assert layers == sequences.PATHS["convolution"](T)

    # Output t of the LSTM is the state after step t: the first input passes T steps to the last
    # output.
    assert (reads("LSTM", T) == np.tri(T, dtype=bool)).all()
    assert sequences.PATHS["LSTM"](T) == T
