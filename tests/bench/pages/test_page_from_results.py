"""Every program that writes a page writes the same one from its numbers alone, or says in one line
that there are none.
"""

from pathlib import Path
from shutil import copytree

import pytest

from bench import (
    ablation,
    generation,
    gpu,
    imdb_race,
    loss_curves,
    mistakes,
    pretrained,
    scaling,
    training_step,
)
from bench.claims import __main__ as claims

DOCS = Path(__file__).parents[3] / "docs"
# With its file of numbers and all that it writes.
PROGRAMS = {
    ablation: ("ablation", "research/ablation.md"),
    claims: ("claims", "research/claims.md"),
    generation: ("generation", "benchmarks/generation.md"),
    gpu: ("gpu", "benchmarks/gpu.md"),
    imdb_race: ("race", "research/race.md", "figures/race.svg"),
    loss_curves: ("loss_curves", "benchmarks/loss-curves.md", "figures/loss-curves.svg"),
    mistakes: ("mistakes", "research/mistakes.md"),
    pretrained: ("pretrained", "benchmarks/pretrained.md"),
    scaling: ("scaling", "benchmarks/scaling.md", "figures/scaling.svg"),
    training_step: ("training_step", "benchmarks/training-step.md"),
}
EACH = pytest.mark.parametrize(
    ("program", "paths"), PROGRAMS.items(), ids=[paths[0] for paths in PROGRAMS.values()]
)


@EACH
def test_page_of_the_repository_is_made_of_its_numbers(program, paths, tmp_path, capsys):
    copytree(DOCS / "results", tmp_path / "results")
    assert program.main(["--page", "--docs", str(tmp_path)]) == 0
    assert capsys.readouterr().out.split() == [str(tmp_path / path) for path in paths[1:]]
    for path in paths[1:]:
        assert (tmp_path / path).read_bytes() == (DOCS / path).read_bytes(), path


@EACH
@pytest.mark.parametrize("contents", [None, "{", "[]", "{}"])
def test_page_of_no_numbers_is_one_line_and_nothing_is_written(
    program, paths, contents, tmp_path, capsys
):
    (tmp_path / "results").mkdir()
    if contents is not None:
        (tmp_path / f"results/{paths[0]}.json").write_text(contents)
    assert program.main(["--page", "--docs", str(tmp_path)]) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("error: ") and captured.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
