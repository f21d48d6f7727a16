"""Every known breakage of the library is caught by the test that is named for it."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.contracts.mutations import MUTATIONS, ROOT, Mutation, caught


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_to_break_is_there_once_and_the_breakage_is_a_program(mutation):
    text = (ROOT / "transformer_jax" / mutation.file).read_text()
    assert text.count(mutation.old) == 1
    broken = text.replace(mutation.old, mutation.new)
    assert ast.dump(ast.parse(broken)) != ast.dump(ast.parse(text))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_test_that_must_catch_it_is_there(mutation):
    file, name = mutation.test.partition("[")[0].split("::")
    tree = ast.parse((ROOT / "tests" / file).read_text())
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_no_two_mutations_are_one():
    for counted in (
        Counter(mutation.name for mutation in MUTATIONS),
        Counter((mutation.file, mutation.old, mutation.new) for mutation in MUTATIONS),
    ):
        assert set(counted.values()) == {1}


@pytest.mark.parametrize(("text", "count"), [("", 0), ("one two one", 2)])
def test_a_text_that_is_not_there_once_is_refused(tmp_path, text, count):
    (tmp_path / "transformer_jax").mkdir()
    path = tmp_path / "transformer_jax" / "x.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"found {count} times"):
        Mutation("name", "x.py", "one", "two", "test").apply(tmp_path)
    assert path.read_text() == text


@pytest.mark.slow
@pytest.mark.timeout(3600)  # minutes on two quiet cores, more on busy ones
def test_every_mutation_is_caught_by_its_test():
    done = subprocess.run(
        [sys.executable, "-m", "tests.contracts.mutations"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1] == f"{len(MUTATIONS)} of {len(MUTATIONS)} caught"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("new", "said"),
    [
        ("x = context.masked_rows.zero_isolated_rows(x) + 0", "the test passes"),
        ("x = context.masked_rows.zero_isolated_rows()", "TypeError"),
        ("x = ", "the test did not run"),
    ],
    ids=["harmless", "crash", "no program"],
)
def test_what_changes_nothing_or_crashes_is_not_called_caught(tmp_path, new, said):
    test = "nn/test_encoder.py::test_the_encoder_equals_its_equations_in_numpy[post]"
    mutation = Mutation(
        "name",
        "nn/encoder.py",
        "x = context.masked_rows.zero_isolated_rows(x)",
        new,
        test,
    )
    is_caught, message = caught(mutation, tmp_path)
    assert not is_caught
    assert said in message
