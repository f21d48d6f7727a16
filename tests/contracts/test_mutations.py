"""Every mutation of the library is caught by the test that is named for it."""

import ast
import subprocess
import sys
from collections import Counter

import pytest

from tests.contracts.mutations import MUTATIONS
from tests.helpers.mutation import ROOT, Mutation, caught

PACKAGE = ROOT / "transformer_jax"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_text_to_change_is_there_once_and_the_change_is_a_program(mutation):
    path, mutated = mutation.find(PACKAGE)
    before = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.dump(ast.parse(mutated)) != ast.dump(before)


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_the_test_that_must_catch_it_is_there(mutation):
    path, _, name = mutation.test_id.partition("[")[0].partition("::")
    assert (ROOT / path).exists() and name.startswith("test_")


def test_no_two_mutations_are_one():
    for counted in (
        Counter(mutation.name for mutation in MUTATIONS),
        Counter((mutation.place, mutation.old, mutation.new) for mutation in MUTATIONS),
    ):
        assert set(counted.values()) == {1}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("def f():\n    two\n", 0),
        ("def f():\n    one, one\n", 2),
        ("def g():\n    one\n", 0),
        ("one\n", 0),
    ],
)
def test_a_text_that_is_not_once_in_its_place_is_refused(tmp_path, text, count):
    (tmp_path / "transformer_jax").mkdir()
    path = tmp_path / "transformer_jax" / "x.py"
    path.write_text(text)
    with pytest.raises(ValueError, match=f"found {count} times in f"):
        Mutation("name", "f", "one", "two", "test").apply(tmp_path)
    assert path.read_text() == text


def test_a_place_is_found_by_its_name_in_any_file(tmp_path):
    (tmp_path / "deep").mkdir()
    for name in ("a", "deep/b"):
        (tmp_path / f"{name}.py").write_text(
            "K = 1\n\n\nclass C:\n    def f(self):\n        return 1\n"
        )
    for place, line in (("b.K", 0), ("b.C.f", 5)):
        path, text = Mutation("name", place, "1", "2", "test").find(tmp_path)
        assert path.name == "b.py" and text.splitlines()[line].endswith("2")


def test_a_test_that_is_not_there_once_is_refused():
    for test in ("test_nobody_has_this_name", "test_dot_product.py::test_nobody_has_this_name"):
        with pytest.raises(ValueError, match="0 files have the test"):
            _ = Mutation("name", "f", "one", "two", test).test_id


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
    test = "test_the_encoder_equals_its_equations_in_numpy[post]"
    mutation = Mutation(
        "name",
        "EncoderLayer.__call__",
        "x = context.masked_rows.zero_isolated_rows(x)",
        new,
        test,
    )
    is_caught, message = caught(mutation, tmp_path)
    assert not is_caught
    assert said in message
