"""The package: what it exports, what it imports, and that everything public says what it does."""

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import transformer_jax as tj

ROOT = Path(tj.__file__).parent
# Packages and modules below the first layer that knows Flax: arrays in, arrays out.
PURE = [
    *sorted(
        str(path.relative_to(ROOT).with_suffix(""))
        for folder in ("runtime", "parallel", "cpu", "functional", "attention")
        for path in (ROOT / folder).rglob("*.py")
        if path.stem != "__init__"
    ),
    *(
        "costs/devices",
        "costs/jaxpr",
        "costs/power_laws",
        "generation/sampling",
        "generation/beam_search",
        "nn/kv_cache",
    ),
    *("interpret/attribution", "text/bpe"),
]
# Subjects of their own, used by the name of the module: `formulas.parameters`.
BY_MODULE = ("costs/", "cpu/", "generation/", "nn/", "interpret/", "runtime/", "text/")


@pytest.mark.parametrize("name", tj.__all__)
def test_what_is_exported_is_there_and_says_what_it_does(name):
    exported = getattr(tj, name)
    assert callable(exported)
    assert (inspect.getdoc(exported) or "").strip()


def test_all_is_sorted_and_has_no_twins():
    assert tj.__all__ == sorted(set(tj.__all__))


@pytest.mark.parametrize("file", PURE)
def test_every_public_name_of_a_pure_file_says_what_it_does(file):
    module = importlib.import_module(f"transformer_jax.{file.replace('/', '.')}")
    assert module.__doc__
    for name, thing in vars(module).items():
        ours = getattr(thing, "__module__", "") == module.__name__
        if ours and not name.startswith("_") and callable(thing):
            assert (thing.__doc__ or "").strip(), name


def test_every_file_starts_with_what_it_is():
    for path in ROOT.glob("**/*.py"):
        assert ast.get_docstring(ast.parse(path.read_text())), path.name


def test_every_public_function_of_a_pure_file_is_exported():
    """Or it is what another file of the package needs, and named here."""
    inside = {"keep", "keep_weights", "random_words", "dropout_weights", "check_rate", "key_words"}
    inside |= {"kept_bits", "unpacked_bits"}
    inside |= {"Mask", "as_boolean", "as_mask"}
    inside |= {"weaken", "cos_and_sin"}
    inside |= {"weight_product"}
    inside |= {"Bias", "as_bias", "dense_bias"}
    inside |= {"AttentionOptions", "MultiHeadOptions"}
    inside |= {"AttentionPlan", "choose_kernel", "compute_attention", "reference_attention"}
    inside |= {"reference_weights"}
    inside |= {"Tiling", "choose_tiling", "Limits", "KernelFrom", "Case"}
    inside |= {"choose_on_cpu", "choose_on_accelerator"}
    not_exported = {"attention/rule", "functional/checks", "attention/softmax"}
    not_exported |= {
        "attention/masked_rows",
        "attention/inputs",
        "attention/coverage",
        "functional/linear_map",
        "functional/precision",
    }
    kernels = (
        "blockwise",
        "cpu",
        "cudnn",
        "forward",
        "gradient",
        "known_masks",
        "tangent",
        "tiles",
        "triton",
        "triton_kernels",
    )
    not_exported |= {f"attention/kernels/{name}" for name in kernels}
    not_exported |= {"parallel/axes", "parallel/mesh", "parallel/placement", "parallel/processes"}
    for file in {file for file in PURE if not file.startswith(BY_MODULE)} - not_exported:
        tree = ast.parse((ROOT / f"{file}.py").read_text())
        public = {
            node.name
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        }
        assert public - inside <= set(tj.__all__), file


def imported(path):
    """Every module that a file imports, wherever in the file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("file", PURE)
def test_a_pure_file_imports_jax_and_pure_files_alone(file):
    allowed = {"filelock", "jax", "jaxlib", "jaxtyping", "numpy", "tqdm", *sys.stdlib_module_names}
    for name in imported(ROOT / f"{file}.py"):
        if name.startswith("transformer_jax"):
            assert name.partition(".")[2].replace(".", "/") in PURE, name
        else:
            assert name.partition(".")[0] in allowed, name


def test_importing_the_package_imports_neither_flax_nor_pallas():
    code = (
        "import sys, transformer_jax as tj; tj.dot_product_attention; "
        "late = 'flax', 'optax', 'orbax', 'datasets', 'pandas', 'jax.experimental.pallas'; "
        "print([name for name in late if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT.parent, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_version_is_a_version():
    assert [part.isdigit() for part in tj.__version__.split(".")[:2]] == [True, True]


def test_the_citation_names_this_version():
    citation = yaml.safe_load((ROOT.parent / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == tj.__version__
    assert citation["license"] == "Apache-2.0"
