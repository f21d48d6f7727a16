import gc
import json
import os
import re
from contextlib import contextmanager

import jax
import jaxtyping
import pytest
from filelock import FileLock
from jax.extend.backend import get_backend

from train.trainer import checkpoints

MOST_PROGRAMS = 400
# XLA's older code generator compiles in half the time. It may round what it computes twice in two
# ways; compiled in one part (the second flag), all tests pass on each processor tried. The newer
# generator, which users have, runs the slow tests marked "optimized", the documented commands and,
# with the newest jax, the contracts; XLA_FLAGS=--xla_cpu_use_fusion_emitters=true makes it run all.
COMPILE_FASTER = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"


def pytest_configure(config):
    """Keep what XLA compiles for other tests, the next run and the processes that tests start."""
    if config.getoption("benchmark_only"):
        return  # benchmarks measure compile time too
    if hasattr(config, "cache"):
        os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(config.cache.mkdir("compiled")))
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
    flags, has_older = os.environ.get("XLA_FLAGS", ""), jax.__version_info__[:2] == (0, 10)
    without_optimized = re.search("not (slow|optimized)", config.option.markexpr)
    if has_older and without_optimized and COMPILE_FASTER not in flags:
        os.environ["XLA_FLAGS"] = f"{COMPILE_FASTER} {flags}".strip()
    jax.config.update("jax_compilation_cache_dir", os.environ.get("JAX_COMPILATION_CACHE_DIR"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)


@pytest.hookimpl(trylast=True)  # behind the selection by markers
def pytest_collection_modifyitems(config, items):
    """Let every worker begin with tests that have a timeout of their own, since they take longest.

    Workers share the tests in contiguous parts; a long test at the end would run alone.
    """
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    long = [item for item in items if item.get_closest_marker("timeout")]
    short = [item for item in items if item not in long]
    part = -(-len(short) // workers)
    items[:] = [
        item
        for first in range(workers)
        for item in (*long[first::workers], *short[first * part : (first + 1) * part])
    ]


def pytest_collection_finish():
    """Collect garbage less often, and never examine the imported modules: both took 8%."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 20)


def pytest_sessionfinish():
    """Undo `gc.freeze`: Hypothesis looks for references among all objects at the end."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile without LLVM's optimizations, which take longer than they save; those of XLA remain.

    Source locations are left out of the programs. Processes that the test starts do the same.
    """
    compile_quickly(item.get_closest_marker("optimized") is None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown():
    """Restore the settings, since `pytest --benchmark-only` runs bench/ in the same process."""
    compile_quickly(False)


def compile_quickly(quickly: bool) -> None:
    jax.config.update("jax_disable_most_optimizations", quickly)
    jax.config.update("jax_include_full_tracebacks_in_locations", not quickly)
    os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quickly))


@pytest.fixture(scope="module", autouse=True)
def few_programs():
    """Clear what a file compiled: in a process with thousands of programs XLA is half as fast."""
    yield
    if len(get_backend().live_executables()) > MOST_PROGRAMS:
        jax.clear_caches()


@pytest.fixture(scope="session")
def computed_once(tmp_path_factory, request):
    """A function that returns `compute()`, which only one of the workers calls.

    The tests of a file may be shared by the workers, and each has the fixtures of the file.
    """
    base = tmp_path_factory.getbasetemp()
    folder = base.parent if hasattr(request.config, "workerinput") else base

    def value_of(name, compute):
        path = folder / f"{name}.json"
        with FileLock(f"{path}.lock"):
            if not path.exists():
                path.write_text(json.dumps(compute()))
            return json.loads(path.read_text())

    return value_of


@pytest.fixture(scope="module")
def strict():
    """No silent dtype promotion, and full float32 products on every backend.

    A file of library tests asks for it with `pytestmark = pytest.mark.usefixtures("strict")`; the
    programs in train/ cannot, because optax does not pass.
    """
    with jax.numpy_dtype_promotion("strict"), jax.default_matmul_precision("highest"):
        yield


@pytest.fixture
def mixed_dtypes():
    """Inside a strict file: bfloat16 and float64 widen as they do for users."""
    with jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def as_users_run_it():
    """Without the signature checks that only tests have: what a mistake raises is the library's own
    error.
    """
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def ctrl_c_behind(monkeypatch):
    """A context in which Ctrl-C comes right behind so many checkpoints."""

    @contextmanager
    def context(saves):
        save, count = checkpoints.save, 0

        def save_and_stop(*args):
            nonlocal count
            save(*args)
            count += 1
            if count == saves:
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "save", save_and_stop)
            yield

    return context
