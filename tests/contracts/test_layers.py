"""A module imports from its own layer's package or from a lower layer, never from a higher one."""

import ast
from itertools import chain
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ATTENTION = "rule mask_rule masks bias_rule biases coverage softmax masked_rows inputs".split()
# Packages or modules of one layer stand in one row, lowest first.
LAYERS = {
    "transformer_jax": [
        ["runtime"],
        ["parallel", "text", "cpu"],
        ["functional"],
        [f"attention.{name}" for name in ATTENTION],
        ["attention.kernels"],
        ["attention"],
        ["nn"],
        ["models"],
        ["serialization", "generation", "costs"],
        ["pretrained", "interpret", "walkthrough"],
        ["inference"],
        ["cli"],
    ],
    "train": [
        ["data", "optim"],
        ["trainer", "objectives"],
        ["classifier", "evaluation"],
        ["recipes"],
        ["tasks"],
    ],
    "bench": [["measure", "naive"], ["peers"], ["pages"]],
}
BELOW = {
    "transformer_jax": (),
    "train": ("transformer_jax",),
    "bench": ("transformer_jax", "train"),
}
# Imported inside a function so that a program starts faster, or that a name stays where it was.
LATE = (
    "transformer_jax/cli/",  # help and mistakes are answered at once
    "transformer_jax/pretrained/__init__.py",  # an alias of a name that moved to `inference`
    "transformer_jax/attention/kernels/triton.py",  # Pallas takes a quarter of a second to load
    "bench/peers/tutorial_classifier.py",  # the model in PyTorch, which is optional
)


def modules(package):
    """Every module of a package by its dotted name; files that only re-export are left out."""
    for path in sorted((ROOT / package).rglob("*.py")):
        if path.name != "__init__.py":
            yield ".".join(path.relative_to(ROOT).with_suffix("").parts), path


def imports(path):
    """Return a file's imports of this project: dotted names, and whether a function does it."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))
    late = {id(node) for node in chain.from_iterable(map(ast.walk, functions))}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in late) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                is_module = (ROOT / f"{name.replace('.', '/')}.py").exists()
                yield (name if is_module else node.module), id(node) in late


def layer(name):
    """The package that a module is in, and the height of its layer; programs stand above all."""
    package, _, rest = name.partition(".")
    for height, row in enumerate(LAYERS[package]):
        for inside in row:
            if rest == inside or rest.startswith(f"{inside}."):
                return inside.partition(".")[0], height
    return rest, len(LAYERS[package])


@pytest.mark.parametrize("package", LAYERS)
def test_a_module_imports_only_from_lower_layers(package):
    wrong = set()
    for name, path in modules(package):
        mine, height = layer(name)
        for imported, _ in imports(path):
            top = imported.partition(".")[0]
            if top == package and imported != package:
                other, below = layer(imported)
                is_above = below > height or (below == height and other != mine)
                if is_above and height < len(LAYERS[package]):
                    wrong.add(f"{name} imports {imported}")
            elif top in ("train", "bench", "tests", "docs") and top not in BELOW[package]:
                wrong.add(f"{name} imports {imported}")
    assert not wrong, "\n".join(sorted(wrong))


@pytest.mark.parametrize("package", LAYERS)
def test_no_function_imports_a_module_of_the_project(package):
    wrong = [
        f"{name} imports {imported}"
        for name, path in modules(package)
        for imported, late in imports(path)
        if late and imported.partition(".")[0] in LAYERS
        if not str(path.relative_to(ROOT)).startswith(LATE)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("package", LAYERS)
def test_imports_make_no_circle(package):
    below = {
        name: {i for i, _ in imports(path) if i.startswith(f"{package}.")}
        for name, path in modules(package)
    }
    done, on_the_way = set(), []

    def visit(name):
        assert name not in on_the_way, " imports ".join([*on_the_way, name])
        if name in below and name not in done:
            on_the_way.append(name)
            for imported in sorted(below[name]):
                visit(imported)
            done.add(on_the_way.pop())

    for name in below:
        visit(name)


def test_naive_loops_import_numpy_alone():
    path = ROOT / "bench" / "naive.py"
    assert {name.partition(".")[0] for name, _ in imports(path)} <= {"numpy", "math", "itertools"}
