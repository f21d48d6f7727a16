"""README shows what happens, and fits on a few screens."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_first_example_prints_the_mask_that_is_shown(capsys):
    code, shown = re.findall(r"```(?:python|text)\n(.*?)```", README, re.DOTALL)[:2]
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    assert capsys.readouterr().out == shown
    assert names["output"].shape == (1, 5, 4, 8)


def test_the_page_is_short_and_its_first_screen_has_the_results_and_the_ways_on():
    lines = README.splitlines()
    assert len(lines) <= 110
    first_screen = "\n".join(lines[:40])
    assert "`make imdb`: transformer with n-grams" in first_screen
    assert "(docs/guides/own-texts.md)" in first_screen
    assert "(docs/guides/python.md)" in first_screen


@pytest.mark.parametrize("path", sorted(set(re.findall(r"\]\(([a-zA-Z_/.-]+)\)", README))))
def test_every_linked_file_exists(path):
    assert (ROOT / path).exists()


@pytest.mark.parametrize(
    "name", sorted(p.parent.name for p in ROOT.glob("transformer_jax/*/__init__.py"))
)
def test_every_package_of_the_library_is_in_the_tree(name):
    (tree,) = re.findall(r"```\n(transformer_jax/.*?)```", README, re.DOTALL)
    assert f"{name}/" in tree
