"""Variants of the default recipe: that each differs, that nothing is trained twice, and what the
page makes of the numbers.
"""

import json
from dataclasses import replace

import pytest

from bench import ablation
from bench.ablation import VARIANTS, WHOLE, main, page
from train.recipes.imdb import FAST


def epochs(*accuracies):
    return [
        {"accuracy": a, "loss": 0.5, "temperature": 1.0, "seconds": 60.0 * (i + 1)}
        for i, a in enumerate(accuracies)
    ]


def test_every_variant_changes_the_recipe_in_its_own_way():
    changed = [change(FAST) for change in VARIANTS.values()]
    assert changed[0] == FAST and len(set(map(repr, changed))) == len(changed)


def test_the_page_compares_runs_of_one_seed():
    made = [
        (WHOLE, 0, "p", epochs(0.8, 0.90)),
        (WHOLE, 1, "q", epochs(0.8, 0.92)),
        ("less", 1, "q", epochs(0.7, 0.91)),
        ("least", 0, "q", epochs(0.7, 0.88)),
        ("least", 1, "p", epochs(0.6, 0.88)),
    ]
    runs = [
        {
            "variant": variant,
            "seed": seed,
            "machine": {"processor": processor, "cores": 2},
            "epochs": own,
        }
        for variant, seed, processor, own in made
    ]
    lines = list(page({"command": "c", "data": "d", "date": "2026-01-01", "runs": runs}, {}))
    machines = "had other work: q, 2 cores (3 runs); p, 2 cores (2 runs)"
    assert any(line.endswith(machines) for line in lines) and "c  # 2026-01-01" in lines
    rows = [line for line in lines if line.startswith("|")]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]
    assert cells == [
        [WHOLE, "91.00%", "", "80.00%", "120", "2"],
        ["less", "91.00%", "-1.00", "70.00%", "120", "1"],
        ["least", "88.00%", "-3.00 +- 1.00", "65.00%", "120", "2"],
    ]


def test_what_was_trained_is_not_trained_again_unless_the_recipe_is_another(tmp_path, monkeypatch):
    trained = []

    def scores(fold, recipe, seed):
        trained.append((seed, recipe.model.attends))
        return iter(epochs(0.9))

    monkeypatch.setattr(ablation, "fold_of", lambda *_: None)
    monkeypatch.setattr(ablation, "scores_by_epoch", scores)
    words = ["--data", "sample", "--docs", str(tmp_path), "--only", "the whole", "--only", "atten"]
    assert main([*words, "--seeds", "1"]) == 0
    assert trained == [(0, True), (0, False)]
    assert main([*words, "--seeds", "2"]) == 0
    assert trained[2:] == [(1, True), (1, False)]
    results = json.loads((tmp_path / "results/ablation.json").read_text())
    assert [(run["variant"], run["seed"]) for run in results["runs"]] == [
        (name, seed) for seed in (0, 1) for name in list(VARIANTS)[:2]
    ]
    assert " 2 |" in (tmp_path / "research/ablation.md").read_text()
    assert main([*words, "--seeds", "1"], replace(FAST, batch_examples=32)) == 0
    assert trained[4:] == [(0, True), (0, False)]


@pytest.mark.parametrize(
    "wrong, told", [(["--seeds", "0"], "--seeds must be 1"), (["--only", "x"], "the variants are")]
)
def test_what_cannot_be_is_an_error(wrong, told, capsys):
    with pytest.raises(SystemExit):
        main(wrong)
    assert told in capsys.readouterr().err


def test_data_that_are_not_there_are_one_line(capsys):
    assert main(["--data", "no/such/file.csv"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")


@pytest.mark.optimized
@pytest.mark.slow
def test_it_trains_and_writes(tmp_path):
    assert main(["--small", "--docs", str(tmp_path), "--only", WHOLE]) == 0
    (run,) = json.loads((tmp_path / "results/ablation.json").read_text())["runs"]
    assert 0.3 < run["epochs"][0]["accuracy"] < 1 and run["epochs"][0]["seconds"] > 0


def test_every_variant_changes_the_small_recipe_too():
    changed = [change(ablation.SMALL) for change in VARIANTS.values()]
    assert len(set(map(repr, changed))) == len(changed)
