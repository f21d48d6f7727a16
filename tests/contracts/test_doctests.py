"""The examples of the docstrings give what they show, and every exported function has one."""

import doctest
import importlib
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj

pytestmark = pytest.mark.usefixtures("strict")

ROOT = Path(tj.__file__).parent
# What the examples assume, and the pages of the API say: `import jax`, `import jax.numpy as jnp`
# and `from transformer_jax import *`.
ASSUMED = {"jax": jax, "jnp": jnp, **{name: getattr(tj, name) for name in tj.__all__}}
# Definitions that nobody had to invent, and the ideas that fail.
NO_SOURCE = (
    "padding dense linear to_front max_patches count_positions BatchStatistics integer_positions "
    "normalised_positions one_hot_positions binary_positions attention_plan visited_blocks load"
).split()
# They check nothing by themselves.
NO_ERRORS = "BatchStatistics max_patches to_front".split()
SOURCE = re.compile(r"https?://\S+|[A-Z]\w+,? (et al\., )?(19|20)\d\d")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]?\d+)?")


class ToRounding(doctest.OutputChecker):
    """The same text and the same numbers: another backend may end a float on another digit."""

    def check_output(self, want, got, flags):
        texts = [NUMBER.sub("0", text).split() for text in (want, got)]
        numbers = [[float(n) for n in NUMBER.findall(text)] for text in (want, got)]
        return (
            "".join(texts[0]) == "".join(texts[1])
            and len(numbers[0]) == len(numbers[1])
            and bool(np.allclose(*numbers, rtol=1e-6, atol=1e-6))
        )


def examples_of(thing, name, names):
    # module=False: functions that beartype has wrapped would pass for those of another file.
    found = doctest.DocTestFinder().find(thing, name, module=False, globs=names)
    return [test for test in found if test.examples]


def every_example():
    """Exported functions are imported as users do, the other pure files by their own names."""
    for path in sorted(ROOT.rglob("*.py")):
        if ">>> " not in path.read_text():
            continue
        name = ".".join(path.relative_to(ROOT.parent).with_suffix("").parts)
        module = importlib.import_module(name.removesuffix(".__init__"))
        own = {name: thing for name, thing in vars(module).items() if not name.startswith("_")}
        for name, thing in own.items():
            if getattr(thing, "__module__", "") == module.__name__:
                names = ASSUMED if name in tj.__all__ else {**own, **ASSUMED}
                yield from examples_of(thing, f"{path.stem}.{name}", dict(names))
        of_file = doctest.DocTestParser().get_doctest(
            module.__doc__, {**own, **ASSUMED}, path.stem, str(path), 0
        )
        yield from [of_file] * bool(of_file.examples)


@pytest.mark.parametrize(
    "example", {e.name: e for e in every_example()}.values(), ids=lambda e: e.name
)
def test_the_example_gives_what_it_shows(example):
    told = []
    doctest.DocTestRunner(ToRounding(), verbose=False).run(example, out=told.append)
    assert not told, "".join(told)


def test_an_example_may_differ_in_rounding_and_in_nothing_else():
    same = ToRounding().check_output
    assert same("Array([0.159, -1. ])", "Array([ 0.15900001, -1.        ])", 0)
    assert not same("Array([0.159])", "Array([0.1591])", 0)
    assert not same("Array([1., 2.])", "Array([1.])", 0)
    assert not same("Array([1.], dtype=float32)", "Array([1.], dtype=bfloat16)", 0)
    assert not same("■ ·", "■ ■", 0)


@pytest.mark.parametrize("name", tj.__all__)
def test_every_exported_function_has_an_example(name):
    examples = examples_of(getattr(tj, name), name, ASSUMED)
    assert any(example.want for test in examples for example in test.examples)


@pytest.mark.parametrize("name", tj.__all__)
def test_every_exported_function_names_its_source(name):
    assert bool(SOURCE.search(getattr(tj, name).__doc__)) == (name not in NO_SOURCE)


@pytest.mark.parametrize("name", tj.__all__)
def test_every_exported_function_says_what_it_raises(name):
    says = re.search(r"\b[Rr]aise", getattr(tj, name).__doc__)
    assert bool(says) == (name not in NO_ERRORS)
