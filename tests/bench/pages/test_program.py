"""Every program that writes a page writes the same one from its numbers alone, or says in one line
that there are none.
"""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import pytest

from bench import (
    ablation,
    attention,
    calibration,
    generation,
    gpu,
    imdb_race,
    loss_curves,
    mesh,
    mistakes,
    pretrained,
    programs,
    report,
    scaling,
    training_step,
)
from bench.claims import __main__ as claims
from bench.measure.harness import Disagreement
from bench.pages.program import Program
from train.data.dataset import DataError
from transformer_jax.runtime.errors import InputError

DOCS = Path(__file__).parents[3] / "docs"
PROGRAMS = (
    ablation,
    attention,
    calibration,
    claims,
    generation,
    gpu,
    imdb_race,
    loss_curves,
    mesh,
    mistakes,
    pretrained,
    programs,
    report,
    scaling,
    training_step,
)
EACH = pytest.mark.parametrize("program", PROGRAMS, ids=[each.PROGRAM.name for each in PROGRAMS])


@EACH
def test_page_of_the_repository_is_made_of_its_numbers(program, tmp_path, capsys):
    copytree(DOCS / "results", tmp_path / "results")
    assert program.main(["--page", "--docs", str(tmp_path)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.split()]
    assert written[0] == tmp_path / program.PROGRAM.page_file
    for path in written:
        assert path.read_bytes() == (DOCS / path.relative_to(tmp_path)).read_bytes(), path
    shown = set(written[0].read_text().split("](../figures/")[1:])
    assert len(shown) >= len(written) - 1  # every figure is on the page


@EACH
@pytest.mark.parametrize("contents", [None, "{}"])
def test_page_of_no_numbers_is_one_line_and_nothing_is_written(program, contents, tmp_path, capsys):
    path = tmp_path / program.PROGRAM.file
    path.parent.mkdir()
    if contents is not None:
        path.write_text(contents)
    assert program.main(["--page", "--docs", str(tmp_path)]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("error: ") and captured.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


SMALL = Program(
    "small",
    "Measures.",
    "results/small.json",
    "small.md",
    ("x",),
    lambda results, shown: [str(results["x"])],
)


def options_of(*words, docs):
    return SMALL.parse(SMALL.parser(), [*words, "--docs", str(docs)])


def test_what_was_measured_is_written_with_six_digits_and_its_page_of_that(tmp_path, capsys):
    options = options_of(docs=tmp_path)
    assert SMALL.run(options, lambda: SMALL.stamp(options) | {"x": 1 / 3}) == 0
    results = json.loads((tmp_path / "results/small.json").read_text())
    assert results["x"] == 0.333333 and {"date", "seconds", "machine"} <= set(results)
    assert results["command"] == f"python -m bench.small --docs {tmp_path.name}"
    assert (tmp_path / "small.md").read_text() == "0.333333\n"
    assert capsys.readouterr().out == f"{tmp_path / 'small.md'}\n"


@pytest.mark.parametrize("contents", ["{", "[]", '"x"'])
def test_file_of_something_else_is_named(contents, tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results/small.json").write_text(contents)
    with pytest.raises(InputError, match=r"small\.json"):
        SMALL.read(tmp_path)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InputError("why"), 2),
        (DataError("why"), 2),
        (OSError("why"), 2),
        (Disagreement("why"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_errors_are_one_line_and_a_code_and_what_was_kept_stays(error, code, tmp_path, capsys):
    def measure():
        SMALL.keep({"x": 1}, tmp_path)
        raise error

    assert SMALL.run(options_of(docs=tmp_path), measure) == code
    said = capsys.readouterr().err.strip()
    assert said.count("\n") == 0 and ("error: why" in said or "small.json" in said)
    assert SMALL.read(tmp_path) == {"x": 1} and not (tmp_path / "small.md").exists()


def test_a_program_without_a_page_has_no_such_option(tmp_path):
    program = replace(SMALL, page=None)
    options = program.parse(program.parser(), ["--docs", str(tmp_path)])
    assert isinstance(options, argparse.Namespace) and not hasattr(options, "page")
    assert program.run(options, lambda: {"x": 1}) == 0 and not (tmp_path / "small.md").exists()


@pytest.mark.parametrize("program", [ablation, calibration, mesh, pretrained, training_step])
def test_small_numbers_do_not_take_the_place_of_the_others(program, capsys):
    with pytest.raises(SystemExit) as stopped:
        program.main(["--small", "--docs", "docs"])
    assert stopped.value.code == 2
    assert "--small: its numbers mean nothing; name another folder" in capsys.readouterr().err
