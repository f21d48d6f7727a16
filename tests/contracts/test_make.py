"""The commands that `make` runs, and those it runs when it is called again."""

import os
import subprocess
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
NEW = "python -m train.imdb --unlabelled --vectors --out"


def call(folder, *words, **variables):
    """The last line that make would run there; `variables` are those of the shell."""
    ours = ("MAKEFLAGS", "MAKELEVEL", "MAKEOVERRIDES", "MFLAGS", "DATA", "ARGS", "BEST")
    alone = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(  # not as a part of the `make test` that runs the tests
        ["make", "--file", str(MAKEFILE), "--dry-run", *words],
        cwd=folder,
        env=alone | variables,
        check=True,
        capture_output=True,
        text=True,
    )
    joined = done.stdout.replace("\\\n", " ")
    return " ".join(joined.splitlines()[-1].split())


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["imdb"], "python -m train.imdb"),
        (["imdb", "DATA=my reviews"], 'python -m train.imdb --data "my reviews"'),
        (["imdb", "ARGS=--seed 3"], "python -m train.imdb --seed 3"),
        (["imdb-best"], f'{NEW} "runs/imdb-best" --data imdb'),
        (["imdb-best", "DATA=my reviews"], f'{NEW} "runs/imdb-best" --data "my reviews"'),
        (["imdb-best", "BEST=other", "ARGS=--seed 3"], f'{NEW} "other" --data imdb --seed 3'),
    ],
    ids=" ".join,
)
def test_make_passes_on_where_the_data_are(words, wanted, tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    assert call(tmp_path, *words).endswith(wanted)


def test_a_variable_of_the_shell_is_not_meant(tmp_path):
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "constraints.txt").touch()
    assert call(tmp_path, "imdb", DATA="elsewhere").endswith("python -m train.imdb")


def test_called_again_the_best_goes_on(tmp_path):
    for name in ("pyproject.toml", "constraints.txt", "runs/imdb-best/options.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    again = 'python -m train.imdb --resume "runs/imdb-best"'
    assert call(tmp_path, "imdb-best").endswith(again)
    assert call(tmp_path, "imdb-best", "DATA=reviews").endswith(f'{again} --data "reviews"')
    assert call(tmp_path, "imdb-best", "BEST=other").endswith(f'{NEW} "other" --data imdb')
