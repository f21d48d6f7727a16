"""Every documented command that measures, checks or writes documentation runs."""

import json

import pytest

pytestmark = pytest.mark.commands

SMALL = [
    "bench.calibration --small --data {reviews} --docs out",
    "bench.ablation --small --only 'the whole' --data {reviews} --docs out",
    "bench.attention --lengths 16 --kinds causal --dtypes float32 --parts cells --seconds 0.01"
    " --docs out",
    "bench.generation --parts law --lengths 8 16 32 --batches 1 --tokens 2 --rounds 1"
    " --seconds 0.01 --docs out",
    "bench.imdb_race --help",
    "bench.row_order --data sample --draws 1 --docs out",
    "bench.loss_curves --data {reviews} --steps 30 --rows 2 --length 8 --docs out",
    "bench.mesh --small --docs out",
    "bench.mistakes {classifier} --data {reviews} --number 2 --docs out",
    "bench.plan --lengths 16 --batches 1 --kinds causal --dtypes float32 --seconds 0 --no-few"
    " --docs out",
    "bench.figures --list",
    "bench.compile_time --small --docs out",
    "bench.pretrained --help",
    "bench.report --help",
    "bench.programs --small --docs out",
    "bench.startup --rounds 1",
    "bench.scaling --data {book} --widths 16 32 48 --layers 1 --length 8 --steps 2"
    " --batch-tokens 64 --docs out",
    "bench.utilization --model tutorial --dtype float32 --rows 1 --length 8 --layers 1 --rounds 1"
    " --docs out",
    "bench.claims --help",
    "docs.build.walkthrough --help",
    # What needs a GPU only says how it is used.
    "bench.gpu --help",
    "bench.training_step --help",
    "tests.contracts.mutations --only cls_takes_the_first_place",
    "tests.helpers.kills --help",
    "tests.helpers.record_behaviour --help",
    "tests.data.checkpoints.make --help",
    "tests.data.checkpoints.sentences --help",
    "tests.data.checkpoints.variants --help",
    "tests.data.tokenizers.make --help",
    "tests.data.tokenizers.settings_cases --help",
]


@pytest.mark.parametrize("command", SMALL)
def test_the_command_runs(command, python, root, words_of, tmp_path, request):
    python(words_of(command, request), root if command.startswith("tests.") else tmp_path)


def test_the_tutorial_in_torch_says_how_it_is_used(python, tmp_path):
    pytest.importorskip("torch")
    python(["bench.tutorial_torch", "--help"], tmp_path)


@pytest.mark.parametrize(
    "program", ["docs.build.architecture", "docs.build.errata", "docs.build.tables"]
)
def test_the_page_is_written_as_it_is_kept(program, python, root, copy):
    python([program], copy)
    for page in [
        *(root / "docs").rglob("*.md"),
        *(root / "docs").rglob("*.svg"),
        root / "README.md",
    ]:
        assert (copy / page.relative_to(root)).read_bytes() == page.read_bytes(), page.name


@pytest.mark.optimized  # as users run it: each benchmark compares values before it is timed
def test_every_benchmark_runs_once(make, tmp_path):
    file = tmp_path / "benchmarks.json"
    make(["bench", f"ARGS=--bench-once --benchmark-json={file}"])
    found = json.loads(file.read_text())["benchmarks"]
    assert len(found) > 50
    assert max(one["stats"]["rounds"] for one in found) <= 2


PLUGIN = """
import jax, os, pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    reduced = jax.config.values["jax_disable_most_optimizations"] or os.environ.get("XLA_FLAGS")
    print("\\nwithout optimizations:", bool(reduced))
    print("cache:", jax.config.values["jax_compilation_cache_dir"])
    return (yield)
"""


def test_benchmarks_have_all_optimizations_and_no_cache(python, root, tmp_path, monkeypatch):
    """Behind tests in the same session too, which are compiled without and with one."""
    monkeypatch.delenv("JAX_COMPILATION_CACHE_DIR", raising=False)
    (tmp_path / "settings.py").write_text(PLUGIN)
    files = [root / "tests/functional/test_rotary.py", root / "bench/micro/test_tokenizers.py"]
    options = ["-c", root / "pyproject.toml", "--benchmark-only", "--bench-once", "-s"]
    said = python(["pytest", *files, *options, "-p", "settings"], tmp_path)
    assert said.count("without optimizations: False") >= 3
    assert "without optimizations: True" not in said
    assert said.count("cache: None") >= 3
