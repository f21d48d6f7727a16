"""A hash of the code that a program runs changes with the code, and with nothing else."""

import pytest

from bench.measure.sources import ROOT, changed, packages

FILES = {
    "bench/one.py": "import train.two\nfrom transformer_jax import three\n",
    "bench/pages/seven.py": "SEVEN = 7\n",
    "train/two.py": "def f():\n    from train.deep.four import FOUR\n    return FOUR\n",
    "train/deep/four.py": "import numpy\nimport bench.pages.seven\n\nFOUR = 4\n",
    "transformer_jax/three.py": "THREE = 3\n",
    "transformer_jax/kernel.cc": "int five;\n",
    "transformer_jax/vectors.h": "int eight;\n",
    "transformer_jax/other.py": "OTHER = 6\n",
}


@pytest.fixture
def project(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_packages_are_those_that_a_program_imports_also_inside_functions(project):
    found = packages("bench.one", root=project)
    assert list(found) == ["bench", "train", "train/deep", "transformer_jax"]
    assert len(set(found.values())) == 4


@pytest.mark.parametrize(
    ("file", "text", "changes"),
    [
        ("train/two.py", FILES["train/two.py"].replace("return ", "return -"), ["train"]),
        ("train/deep/four.py", FILES["train/deep/four.py"] + 'S = "#1"\n', ["train/deep"]),
        ("transformer_jax/kernel.cc", "int six;\n", ["transformer_jax"]),
        ("transformer_jax/vectors.h", "int nine;\n", ["transformer_jax"]),
        ("transformer_jax/other.py", "OTHER = 7\n", []),
        ("bench/pages/seven.py", "SEVEN = 8\n", []),
        ("train/two.py", '"""Two."""\n\n# Two.\n' + FILES["train/two.py"], []),
        ("train/two.py", FILES["train/two.py"].replace("():", '():\n    """F."""  # f\n'), []),
    ],
)
def test_only_a_change_of_code_that_runs_is_one(project, file, text, changes):
    before = packages("bench.one", root=project)
    (project / file).write_text(text)
    assert changed(before, packages("bench.one", root=project)) == changes


def test_the_packages_of_several_modules_are_those_of_all(project):
    found = packages("train.two", "transformer_jax.other", root=project)
    assert list(found) == ["train", "train/deep", "transformer_jax"]
    alone = packages("transformer_jax.other", root=project)
    both = packages("transformer_jax.other", "transformer_jax.three", root=project)
    assert alone["transformer_jax"] != both["transformer_jax"]


def test_packages_that_one_has_alone_have_changed():
    assert changed({"a": "1", "b": "2"}, {"b": "2", "c": "3"}) == ["a", "c"]


def test_an_unknown_module_is_named():
    with pytest.raises(ValueError, match=r"there is no module bench\.nobody"):
        packages("bench.nobody")


def test_the_packages_of_this_project_are_found():
    found = packages("bench.attention", root=ROOT)
    assert {"bench", "bench/peers", "transformer_jax/attention/kernels"} <= set(found)
    assert "bench/pages" not in found and "train/trainer" not in found
