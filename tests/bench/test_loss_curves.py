"""The curves of float32 and bfloat16 are compared as their page says."""

import json
from dataclasses import replace

import numpy as np
import pytest

from bench import loss_curves
from train.recipes.imdb import TUTORIAL


def test_the_distance_is_the_largest_of_running_means():
    steps = 2 * loss_curves.WINDOW
    plain = np.zeros(steps)
    jumps = np.where(np.arange(steps) % 2, 1.0, -1.0)  # even out
    apart = loss_curves.distances(
        {loss_curves.PLAIN: plain, "jumps": jumps, "later": np.linspace(0, 1, steps)}
    )
    assert apart["jumps"] == pytest.approx(0, abs=1e-12)
    assert apart["later"] == pytest.approx(np.linspace(0, 1, steps)[-loss_curves.WINDOW :].mean())


@pytest.mark.parametrize("wrong", ["--length 257", "--length 0", "--rows 0"])
def test_sizes_that_cannot_be_are_an_error(capsys, wrong):
    with pytest.raises(SystemExit):
        loss_curves.main(wrong.split())
    assert "--length 1 to 256" in capsys.readouterr().err


def test_data_that_are_not_there_are_one_line(capsys):
    assert loss_curves.main(["--data", "no/such/file.csv"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.optimized
@pytest.mark.slow
def test_it_trains_them_all_and_writes_numbers_and_picture(tmp_path, capsys):
    encoder = replace(
        TUTORIAL.model.encoder, num_layers=1, embed_dim=16, num_heads=2, hidden_dim=16
    )
    small = replace(TUTORIAL, model=replace(TUTORIAL.model, max_length=8, encoder=encoder))
    words = ["--steps", "30", "--rows", "2", "--length", "8", "--docs", str(tmp_path)]
    assert loss_curves.main(words, small) == 0
    results = json.loads((tmp_path / "results" / "loss_curves.json").read_text())
    curves = results["losses"]
    assert set(curves) == set(loss_curves.RUNS) and all(len(c) == 30 for c in curves.values())
    assert len({tuple(c) for c in curves.values()}) == 4, "two runs computed the same"
    assert set(results["largest_distance"]) == set(curves) - {loss_curves.PLAIN}
    assert (tmp_path / "figures" / "loss-curves.svg").stat().st_size > 1000
    assert "| float32, other dropout bits |" in (tmp_path / "benchmarks/loss-curves.md").read_text()
    assert "from float32" in capsys.readouterr().out
