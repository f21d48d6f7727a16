"""No function of the library, the programs or the benchmarks is too long to be read at once."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LONGEST = 60  # lines, without signature and docstring
FILES = [p for name in ("transformer_jax", "train", "bench") for p in (ROOT / name).rglob("*.py")]
# Still to be shortened: a function that passes leaves this set.
LONG = set()


def length(function: ast.FunctionDef) -> int:
    """Return the number of lines of the body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return function.end_lineno - body[0].lineno + 1 if body else 0


def long_functions(path: Path) -> set[str]:
    functions = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    name = path.relative_to(ROOT)
    return {f"{name}:{one.name}" for one in functions if length(one) > LONGEST}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_function_has_at_most_sixty_lines(path):
    if path != ROOT / "bench/naive.py":  # the definitions, written out as loops
        assert long_functions(path) <= LONG


def test_a_function_of_the_list_is_still_too_long():
    assert set().union(*map(long_functions, FILES)) >= LONG
