"""Programs keep what XLA compiled: where, for whom, how much, and when not."""

import os
import subprocess
import sys
import time
import warnings
from pathlib import Path

import jax
import pytest

from transformer_jax.runtime import compilation_cache, processor
from transformer_jax.runtime.compilation_cache import (
    MOST_BYTES,
    cache_folder,
    use_compilation_cache,
)

SETTINGS = (
    "jax_compilation_cache_dir",
    "jax_compilation_cache_max_size",
    "jax_enable_compilation_cache",
    "jax_persistent_cache_min_compile_time_secs",
)
# Prints how many of its compilations are read from the cache.
CHILD = """
import jax
from transformer_jax.runtime.compilation_cache import use_compilation_cache
found = []
jax.monitoring.register_event_listener(lambda event, **_: found.append(event))
use_compilation_cache()
jax.jit(lambda x: x @ x + 1)(jax.numpy.ones((3, 3)))
print(found.count("/jax/compilation_cache/cache_hits"))
"""


@pytest.fixture(autouse=True)
def as_of_a_user(monkeypatch, tmp_path):
    """The settings of a user who has set nothing, with a cache directory of this test."""
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    for name in SETTINGS:
        monkeypatch.delenv(name.upper(), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_compilation_cache_max_size", -1)
    with warnings.catch_warnings():
        yield
    for name, value in before.items():
        jax.config.update(name, value)


def run_children(count=1):
    """Run programs at once; each must print no warning. Return what each read from the cache."""
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD], text=True, cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        )
        for _ in range(count)
    ]  # fmt: skip
    answers = [child.communicate() for child in children]
    assert not any(error for _, error in answers) and not any(c.returncode for c in children)
    return [int(out) for out, _ in answers]


def test_a_program_reads_what_two_at_once_compiled():
    run_children(2)
    assert run_children()[0] > 0


def test_a_damaged_entry_is_compiled_again_without_a_word():
    assert run_children() == [0]
    for entry in cache_folder().glob("*-cache"):
        entry.write_bytes(entry.read_bytes()[:20])
    assert run_children() == [0]


def test_entries_of_a_cache_without_a_bound_are_kept(monkeypatch):
    monkeypatch.setenv("JAX_COMPILATION_CACHE_MAX_SIZE", "-1")
    folder = use_compilation_cache()
    (folder / "whole-cache").touch()
    jax.config.update("jax_compilation_cache_dir", None)
    use_compilation_cache()
    assert (folder / "whole-cache").exists()


def test_the_cache_is_below_that_of_the_user_and_bounded(tmp_path):
    folder = use_compilation_cache()
    assert folder.parent == tmp_path / "caches" / "transformer_jax"
    assert jax.config.jax_compilation_cache_dir == str(folder)
    assert jax.config.jax_compilation_cache_max_size == MOST_BYTES
    assert folder.stat().st_mode & 0o077 == 0  # nobody else writes what will be executed


@pytest.mark.parametrize(("platform", "place"), [("linux", ".cache"), ("darwin", "Library/Caches")])
def test_without_xdg_the_cache_is_where_the_system_has_caches(
    monkeypatch, tmp_path, platform, place
):
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "platform", platform)
    assert cache_folder().parent == tmp_path / place / "transformer_jax"


def test_another_processor_or_version_has_another_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(processor, "CPUINFO", tmp_path / "cpuinfo")
    folders = set()
    for mhz, flags in ((1, "fpu avx2"), (2, "fpu avx2"), (2, "fpu avx2 avx512f")):
        text = f"processor : 0\nmodel name : x\ncpu MHz : {mhz}\nflags : {flags}\n"
        (tmp_path / "cpuinfo").write_text(text)
        folders.add(cache_folder())
    assert len(folders) == 2  # the clock rate does not count
    monkeypatch.setattr(jax, "__version__", "99.0")
    assert cache_folder() not in folders


def test_a_folder_that_the_user_chose_is_used_and_not_bounded(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "mine"))
    assert use_compilation_cache() == tmp_path / "mine"
    assert jax.config.jax_compilation_cache_max_size == -1
    assert not (tmp_path / "caches").exists()


def test_the_switch_of_jax_switches_the_cache_off(tmp_path):
    jax.config.update("jax_enable_compilation_cache", False)
    assert use_compilation_cache() is None
    assert not (tmp_path / "caches").exists()


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path):
    (tmp_path / "caches").write_text("a file")
    assert use_compilation_cache() is None
    assert jax.config.jax_compilation_cache_dir is None


def test_half_an_entry_of_a_killed_program_is_removed():
    folder = use_compilation_cache()
    for name in ("whole-cache", "whole-atime", "half-cache", "other-atime"):
        (folder / name).touch()
    jax.config.update("jax_compilation_cache_dir", None)
    use_compilation_cache()
    names = {path.name for path in folder.iterdir()}
    assert names - {compilation_cache.LOCK} == {"whole-cache", "whole-atime"}


def test_a_new_folder_replaces_those_that_nobody_used_for_months(tmp_path):
    old, recent = (tmp_path / "caches/transformer_jax" / name for name in ("xla-1-a", "xla-2-b"))
    for folder in (old, recent):
        folder.mkdir(parents=True)
    then = time.time() - (compilation_cache.MOST_DAYS + 1) * 86_400
    os.utime(old, (then, then))
    use_compilation_cache()
    assert recent.exists() and not old.exists()
