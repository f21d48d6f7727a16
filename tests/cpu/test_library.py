"""The library of the kernels in C++: built, loaded, and left out where it cannot be."""

import platform
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

import transformer_jax as tj
from transformer_jax.__main__ import main
from transformer_jax.attention.kernels import cpu
from transformer_jax.cpu import library
from transformer_jax.functional import weight_product
from transformer_jax.runtime import shared_library
from transformer_jax.runtime.processor import processor_has


@pytest.fixture(scope="module")
def drawn_kernels(tmp_path_factory):
    """A function that builds drawn_kernels.cc with more options, and runs it on so many shapes.

    It compares the kernels with nested loops.
    """
    if (compiler := shutil.which("g++")) is None:
        pytest.skip("there is no g++")
    options = [option for option in shared_library.OPTIONS if option != "-shared"]
    folders = ["-I", library.SOURCE.parent, "-isystem", jax.ffi.include_dir()]
    source = Path(__file__).with_name("drawn_kernels.cc")

    def run(number, *more):
        program = tmp_path_factory.mktemp("built") / "drawn_kernels"
        said(compiler, *options, "-pthread", *more, *folders, source, "-o", program)
        return said(program, number)

    return run


def said(*words):
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[:3000]
    return done.stdout


def test_the_kernels_agree_with_nested_loops_on_drawn_shapes(drawn_kernels):
    assert drawn_kernels(200) == "200 problems agree\n"


@pytest.mark.slow
def test_they_agree_as_gcc_compiles_them_for_processors_of_amd(drawn_kernels):
    """It then fuses only some products with their sums by itself."""
    if platform.machine() != "x86_64":
        pytest.skip("the processor is not of Intel's kind")
    assert drawn_kernels(200, "-march=haswell", "-mtune=znver3") == "200 problems agree\n"


@pytest.mark.slow
def test_they_agree_by_vectors_where_the_processor_has_tiles(drawn_kernels):
    """Processors with AVX-512 and without AMX compute bfloat16 so."""
    if not processor_has("amx_bf16"):
        pytest.skip("the processor has no tiles")
    assert drawn_kernels(400, "-mno-amx-bf16") == "400 problems agree\n"


@pytest.mark.slow
@pytest.mark.parametrize("narrow", [False, True], ids=["these registers", "those of AVX2"])
def test_sanitizers_find_no_error_on_two_thousand_drawn_shapes(narrow, drawn_kernels):
    if narrow and platform.machine() != "x86_64":
        pytest.skip("the processor is not of Intel's kind")
    # With -O3 compiling takes four times as long.
    sanitized = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-O1", "-g1"]
    options = ["-march=haswell"] if narrow else []
    assert drawn_kernels(2000, *sanitized, *options) == "2000 problems agree\n"


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """An empty folder in which libraries are built."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def not_loaded(monkeypatch):
    """A state in which it is not yet known whether the library is built."""
    for module in (cpu, weight_product):
        monkeypatch.setattr(module, "is_built", library.is_built.__wrapped__)


def results():
    """Attention, and a product of few rows."""
    x = jnp.ones((1, 4, 2, 8))
    return tj.dot_product_attention(x, x, x), tj.linear(jnp.ones(256), jnp.ones((256, 256)))


def assert_right(found):
    assert jnp.allclose(found[0], 1) and jnp.array_equal(found[1], jnp.full(256, 256.0))


def test_another_header_is_another_library(tmp_path):
    (tmp_path / "kernel.cc").write_text('#include "vectors.h"\n')
    paths = set()
    for text in ("int one;\n", "int two;\n"):
        (tmp_path / "vectors.h").write_text(text)
        paths.add(shared_library.library_path(tmp_path / "kernel.cc"))
    assert len(paths) == 2


@pytest.mark.usefixtures("not_loaded")
def test_a_library_that_cannot_be_loaded_is_as_if_it_were_not_built(elsewhere):
    path = shared_library.library_path(library.SOURCE)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"half of it")
    with pytest.warns(UserWarning, match=f"cannot be loaded: .*{path.name}.*delete the file"):
        assert_right(results())


@pytest.mark.usefixtures("not_loaded")
def test_a_library_of_another_version_is_not_taken_and_a_warning_says_so(elsewhere):
    path = shared_library.library_path(library.SOURCE)
    path.parent.mkdir(parents=True)
    assert not library.is_built.__wrapped__()
    path.with_name("kernels-0123456789abcdef.so").write_bytes(b"of an earlier version")
    with pytest.warns(UserWarning, match="for another version .*transformer_jax build"):
        assert_right(results())


@pytest.mark.usefixtures("not_loaded")
def test_without_a_home_directory_xla_computes(monkeypatch):
    def home(cls):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(home))
    assert_right(results())
    x = jnp.ones((1, 4, 2, 8))
    with pytest.raises(ValueError, match="it is not built"):
        tj.dot_product_attention(x, x, x, implementation="cpu")


def test_the_command_builds_it_once(elsewhere, capsys):
    if not any(map(shutil.which, shared_library.COMPILERS)):
        pytest.skip("there is no C++ compiler")
    assert main(["build"]) == 0
    (path,) = elsewhere.rglob("*.so")
    assert capsys.readouterr().out == f"Kernels for this CPU: {path}\n"
    before = path.stat().st_mtime_ns
    assert main(["build"]) == 0
    assert path.stat().st_mtime_ns == before and len(list(path.parent.iterdir())) == 1


def test_without_a_compiler_one_line_says_what_to_do(elsewhere, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert main(["build"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "there is no C++ compiler (no-such-compiler); install one" in line
    assert "XLA computes everything" in line


def test_a_compiler_that_fails_leaves_nothing(elsewhere, monkeypatch, tmp_path, capsys):
    compiler = tmp_path / "compiler"
    compiler.write_text("#!/bin/sh\necho 'x.cc:3: error: no' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert main(["build"]) == 2
    assert "cannot compile kernels.cc: x.cc:3: error: no" in capsys.readouterr().err
    assert not list(elsewhere.rglob("*.so*"))
