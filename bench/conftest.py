"""Options of the benchmarks, the check that every benchmark waits, and the tables at the end."""

import os
import shlex

import jaxtyping
import pytest

from bench.measure import harness, machine
from bench.measure.blocking_guard import BlockingBenchmark
from bench.measure.harness import Long
from bench.measure.records import Record
from bench.pages import benchmarks

# Set before PyTorch starts its threads: spinning threads get very slow when anything else runs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser):
    parser.addoption(
        "--bench-full",
        action="store_true",
        help="also measure the longest lengths: half an hour instead of ten minutes",
    )
    parser.addoption(
        "--bench-once",
        action="store_true",
        help="run one round of each at its shortest length, to check that all benchmarks run",
    )


def pytest_configure(config):
    if config.getoption("--bench-once"):
        harness.WARMUP_ROUNDS, harness.MIN_ROUNDS, harness.MAX_ROUNDS = 0, 1, 1


def pytest_collection_modifyitems(config, items):
    kept = items
    if not config.getoption("--bench-full"):
        kept = [item for item in items if not any(isinstance(n, Long) for n in parameters(item))]
    if config.getoption("--bench-once"):
        kept = shortest(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def parameters(item) -> list:
    return list(item.callspec.params.values()) if hasattr(item, "callspec") else []


def shortest(items: list) -> list:
    """Return each benchmark once, at the shortest of its lengths."""
    found = {}
    for item in items:
        lengths = [v for v in parameters(item) if isinstance(v, int)]
        others = [str(v) for v in parameters(item) if not isinstance(v, int)]
        key = item.nodeid.partition("[")[0], *others
        if key not in found or lengths < found[key][0]:
            found[key] = lengths, item
    return [item for _, item in found.values()]


@pytest.fixture
def benchmark(benchmark):
    benchmark.__class__ = BlockingBenchmark
    return benchmark


@pytest.fixture(autouse=True)
def as_users_run_it():
    """Run benchmarks without the signature checks of the tests.

    Eager calls would pay for the checks each time.
    """
    disabled = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", disabled)


@pytest.hookimpl(trylast=True)
def pytest_benchmark_update_machine_info(config, machine_info):
    """Replace pytest-benchmark's description of the machine, which contains the host name."""
    machine_info.clear()
    machine_info |= machine.describe() | {"command": command(config)}


def pytest_benchmark_update_json(config, output_json):
    """Add the names of failed benchmarks.

    pytest-benchmark leaves failed benchmarks out without saying so.
    """
    reports = config.pluginmanager.getplugin("terminalreporter").stats
    found = [each.nodeid for what in ("failed", "error") for each in reports.get(what, [])]
    output_json["failed"] = list(dict.fromkeys(found))


def command(config) -> str:
    """Return the command line without the options that say where results are written."""
    words = ["pytest", "--benchmark-only"]
    words += ["--bench-full"] if config.getoption("--bench-full") else []
    words += ["--bench-once"] if config.getoption("--bench-once") else []
    words += ["-k", config.option.keyword] if config.option.keyword else []
    if config.args_source == config.ArgsSource.ARGS:
        words += [os.path.relpath(path, config.rootpath) for path in config.args]
    return shlex.join(words)


@pytest.hookimpl(trylast=True)  # below pytest-benchmark's own tables
def pytest_terminal_summary(terminalreporter, config):
    session = getattr(config, "_benchmarksession", None)
    finished = [bench for bench in session.benchmarks if bench] if session else []
    for bench in finished:
        if "summary" in bench.extra_info:
            terminalreporter.write_line(bench.extra_info["summary"])
    records = [
        Record.of(bench.extra_info, bench.stats.median, bench.stats.rounds) for bench in finished
    ]
    for line in benchmarks.text([record for record in records if record]):
        terminalreporter.write_line(line)
