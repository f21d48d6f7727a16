"""What the README shows is what happens."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_first_example_runs(capsys):
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    exec(compile(code, "README.md", "exec"), {})
    out = capsys.readouterr().out
    assert "example 1, head 0" in out and "(2, 5, 4, 8)" in out


def test_first_example_is_short_and_so_is_the_page():
    code = re.search(r"```python\n(.*?)```", README, re.DOTALL).group(1)
    assert len([line for line in code.splitlines() if line.strip()]) <= 12
    assert len(README.splitlines()) < 150


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`([a-z_]+/[a-z_./]*)`", README))))
def test_every_file_of_the_map_exists(path):
    assert (ROOT / path).exists()
