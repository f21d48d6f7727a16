"""The race: who is read and run, what is kept, and what the table makes of curves that pass a bar
or do not.
"""

import json
import re
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from bench import imdb_race
from bench.imdb_race import LINEAR, main, schedule
from bench.pages.race import NETWORK, OURS, TUTORIAL, Times, at_least, rows
from bench.peers.recipe_runs import Look
from tests.bench.peers.test_recipe_runs import TINY
from train.data.load import load
from train.data.sample_reviews import sample

DATA = sample(0, 80, 20)
HEAD = {
    "command": "python -m bench.tutorial_torch --data PATH --log log --validate-every 100",
    "data": "sample",
    "train": 72,
    "validation": 8,
    "tokenizer": "gpt2",
    "attention": "eager",
    "dtype": "float32",
    "fused": False,
    "batch": 16,
    "length": 256,
    "seed": 0,
    "torch": "2.13.0",
    "device": "cpu",
    "threads": 2,
}


def curve(*points, **more):
    return [{"seconds": s, "accuracy": a} | more for s, a in points]


def results_of(**curves):
    names = {"ours": OURS, "tutorial": TUTORIAL}
    runs = [
        {"contender": names.get(name, name), "seed": seed, "points": points}
        for name, found in curves.items()
        for seed, points in enumerate(found)
    ]
    return {"runs": runs}


def write_log(path, points, **changes):
    head = HEAD | changes
    scores = [
        {"step": i, "epoch": 1, "seconds": s, "validation_accuracy": a, "validation_seconds": 1.0}
        for i, (s, a) in enumerate(points, 1)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *scores]))
    return path


# The table
# ------------------------------------------------------------------------------------------------


def test_the_table_has_medians_ranges_and_ratios():
    ours = [curve((10, 0.5), (20, at), (30, 0.89), compile_seconds=8.0) for at in (0.81, 0.8, 0.82)]
    results = results_of(
        tutorial=[curve((500, 0.79), (1000, 0.8075), (2000, 0.7))],
        ours=ours,
        line=[curve((5, 0.9))],
    )
    header, *cells = rows(results)
    assert header[:4] == ["", "runs", "80.74%, seconds", "times as fast"] and len(header) == 8
    assert cells == [
        [OURS, "3", "20 (20 to 30)", "50", "30 (30 to 30)", "more than 66.6", "not in 30 s", ""],
        [f"{OURS}, compiling left out", "3", "12 (12 to 22)", "83.3", "22 (22 to 22)",
         "more than 90.9", "not in 22 s", ""],
        [TUTORIAL, "1", "1000", "1", "not in 2000 s", "", "not in 2000 s", ""],
        ["line", "1", "5", "200", "5", "more than 400", "5", "more than 400"],
    ]  # fmt: skip


def test_without_the_tutorial_there_is_no_ratio():
    header, *cells = rows(results_of(line=[curve((5, 0.9))]))
    assert len(header) == 5 and cells == [["line", "1", "5", "5", "5"]]


def test_the_yardstick_is_the_tutorial_as_it_is_written():
    tuned = f"{TUTORIAL}, fused AdamW"
    results = results_of(**{tuned: [curve((10, 0.95))], "tutorial": [curve((40, 0.95))]})
    assert [row[3] for row in rows(results)[1:]] == ["4", "1"]
    assert rows(results_of(**{tuned: [curve((10, 0.95))]}))[1][3] == "1"


def test_some_runs_that_do_not_pass_leave_no_median_and_no_ratio_of_ours_but_a_bound_of_theirs():
    some = Times([10.0, 20.0], [5.0])
    assert str(some) == "2 of 3 runs, 10 to 20"
    assert Times([100.0], []).slower_than(some) == ""
    assert (
        some.slower_than(Times([5.0], [])) == "more than 2"
    )  # the median of 5, 10 and 20 at least
    assert str(Times([10.0], [5.0])) == "1 of 2 runs, 10 to 10"
    assert str(Times([], [30.0, 20.0])) == "not in 20 s"


@pytest.mark.parametrize(
    ("value", "told"), [(1999.9, "1990"), (66.69, "66.6"), (0.12399, "0.123"), (5, "5"), (0, "0")]
)
def test_a_bound_is_never_rounded_up(value, told):
    assert at_least(value) == told


# What is read and run
# -------------------------------------------------------------------------------------


def test_the_schedule_is_even_at_first_then_a_twentieth_and_ends_with_the_last_step():
    steps = schedule(5, [350] * 5)
    assert steps[:20] == list(range(5, 101, 5)) and steps[-1] == 1750
    assert all(late - early <= max(5, early / 20) for early, late in pairwise([0, *steps]))
    assert len(steps) < 90 and schedule(5, [3]) == [3]


@pytest.fixture
def fitted(monkeypatch):
    """The runs that were made; running takes no time, and the sample has few texts."""
    found = []

    def trained(data, recipe, seed, every, limit):
        found.append((OURS, seed))
        more = {"compile_seconds": 1.0, "validation_seconds": 1.0}
        run = {"prepare_seconds": 1.0, "points": curve((10.0, 0.7), (20.0, 0.81), **more)}
        return {OURS: run, NETWORK: run}

    def fit(texts, labels, held_out, *, classes, seed):
        found.append(("line", seed))
        return SimpleNamespace(probabilities=np.eye(2)[[0] * len(held_out)], seconds=3.0)

    monkeypatch.setattr(imdb_race, "load", lambda _: DATA)
    monkeypatch.setattr(imdb_race, "ours", trained)
    monkeypatch.setattr(imdb_race, "LINEAR", {"line": fit})
    return found


def results_in(folder):
    return json.loads((folder / "results/race.json").read_text())


def test_what_was_run_is_not_run_again_unless_something_is_another(tmp_path, fitted, monkeypatch):
    # Of eight starts, each of which would draw the same figure two or three times.
    blank = replace(imdb_race.PROGRAM, figures=lambda _: {"race": Figure()})
    monkeypatch.setattr(imdb_race, "PROGRAM", blank)
    words = ["--data", "sample", "--docs", str(tmp_path)]
    assert main([*words, "--seeds", "1"]) == 0
    assert fitted == [(OURS, 0), ("line", 0)]
    assert main([*words, "--seeds", "2"]) == 0
    assert fitted[2:] == [(OURS, 1), ("line", 1)]
    assert [(run["contender"], run["seed"]) for run in results_in(tmp_path)["runs"]] == [
        (name, seed) for seed in (0, 1) for name in (OURS, NETWORK, "line")
    ]
    assert main([*words, "--seeds", "1"]) == 0 and len(fitted) == 4
    assert len(results_in(tmp_path)["runs"]) == 6
    assert main([*words, "--seeds", "1", "--every", "7"]) == 0
    assert fitted[4:] == [(OURS, 0)]
    assert TINY.model.ngrams and main([*words, "--seeds", "1"], TINY) == 0
    assert fitted[5:] == [(OURS, 0)]
    before = results_in(tmp_path)
    (tmp_path / "results/race.json").write_text(json.dumps(before | {"data": "another"}))
    assert main([*words, "--seeds", "1"], TINY) == 0
    assert fitted[6:] == [(OURS, 0), ("line", 0)]
    described = imdb_race.machine.describe() | {"cores": 999}
    monkeypatch.setattr(imdb_race.machine, "describe", lambda: described)
    assert main([*words, "--seeds", "1"], TINY) == 0
    assert fitted[8:] == [(OURS, 0), ("line", 0)]


def test_a_run_of_ours_ends_at_its_time_and_its_network_runs_without_the_solver(monkeypatch):
    right, wrong = np.eye(2)[[0, 1]], np.eye(2)[[1, 1]]

    def looks(*_, **__):
        for step in (1, 2, 3):
            yield Look(step, right, 0.5, 10.0 * step, 4.0, 1.0, 3.0, {"head": wrong})

    fold = SimpleNamespace(held_out_labels=np.array([0, 1]), classes=("a", "b"))
    monkeypatch.setattr(imdb_race, "fold_of", lambda *_: fold)
    monkeypatch.setattr(imdb_race, "looks", looks)
    found = imdb_race.ours(None, TINY, 0, 5, 15.0)
    both = [[(p["seconds"], p["accuracy"]) for p in found[n]["points"]] for n in (OURS, NETWORK)]
    assert both == [[(10.0, 1.0), (20.0, 1.0)], [(7.0, 0.5), (17.0, 0.5)]]
    assert len(imdb_race.ours(None, TINY, 0, 5, None)[OURS]["points"]) == 3


def test_a_run_that_fails_leaves_those_before_it(tmp_path, fitted, monkeypatch):
    def fails(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setitem(imdb_race.LINEAR, "line", fails)
    words = ["--data", "sample", "--docs", str(tmp_path), "--seeds", "1"]
    assert main(words) == 130
    assert [run["contender"] for run in results_in(tmp_path)["runs"]] == [OURS, NETWORK]
    assert OURS in (tmp_path / "research/race.md").read_text()


def test_logs_are_read_anew_where_named_and_kept_where_not(tmp_path, fitted):
    words = ["--data", "sample", "--docs", str(tmp_path), "--seeds", "1"]
    log = write_log(tmp_path / "a.jsonl", [(100.0, 0.6), (3000.0, 0.8)])
    tuned = write_log(
        tmp_path / "b.jsonl", [(90.0, 0.85)], attention="sdpa", dtype="bfloat16", seed=1
    )
    assert main([*words, "--tutorial", str(log), "--tutorial", str(tuned)]) == 0
    runs = results_in(tmp_path)["runs"]
    assert [(run["contender"], run["seed"]) for run in runs[:2]] == [
        (TUTORIAL, 0), (f"{TUTORIAL}, sdpa attention, bfloat16", 1)
    ]  # fmt: skip
    text = (tmp_path / "research/race.md").read_text()
    assert "not in 3000 s" in text and "more than 150" in text
    assert "--tutorial a.jsonl --tutorial b.jsonl" in text and "--data PATH --log log" in text
    assert str(tmp_path) not in text + json.dumps(runs)
    assert main(words) == 0 and len(results_in(tmp_path)["runs"]) == len(runs)
    write_log(log, [(100.0, 0.6), (3000.0, 0.8), (4000.0, 0.81)])
    assert main([*words, "--tutorial", str(log)]) == 0
    assert len(results_in(tmp_path)["runs"]) == len(runs) - 1
    assert "4000" in (tmp_path / "research/race.md").read_text() and len(fitted) == 2


@pytest.mark.parametrize(
    ("points", "changes", "told"),
    [
        ([(1.0, 0.5)], {"data": "imdb"}, "is of other data: imdb"),
        ([(1.0, 0.5)], {"train": 7}, "is of other data: sample, 15"),
        ([], {}, "has no validation yet"),
    ],
)
def test_a_log_that_cannot_race_is_one_line_and_nothing_is_run(
    tmp_path, fitted, capsys, points, changes, told
):
    log = write_log(tmp_path / "log", points, **changes)
    assert main(["--data", "sample", "--docs", str(tmp_path), "--tutorial", str(log)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line and not fitted and not (tmp_path / "research/race.md").exists()


@pytest.mark.parametrize("wrong", ["--seeds 0", "--every 0", "--seconds 0", "--seconds nan"])
def test_what_cannot_be_is_an_error(wrong, capsys):
    with pytest.raises(SystemExit):
        main(wrong.split())
    assert re.search("must be (1 or more|above 0)", capsys.readouterr().err)


def test_data_or_a_log_that_are_not_there_are_one_line(tmp_path, capsys):
    for words in (["--data", "no/such/file.csv"], ["--data", "sample", "--tutorial", "no/log"]):
        assert main([*words, "--docs", str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("error: ")


def test_the_names_of_contenders_differ():
    assert len({OURS, NETWORK, TUTORIAL, *LINEAR}) == 3 + len(LINEAR)


@pytest.mark.optimized
@pytest.mark.slow
def test_it_trains_fits_draws_and_says_what_the_numbers_are(tmp_path, capsys):
    texts = len(load("sample").train)
    log = write_log(tmp_path / "log", [(100.0, 0.6), (200.0, 0.9)], train=texts - 8)
    words = [
        "--data",
        "sample",
        "--docs",
        str(tmp_path),
        "--seeds",
        "1",
        "--every",
        "50",
        "--seconds",
        "1e9",
    ]
    assert main([*words, "--tutorial", str(log)], TINY) == 0
    results = results_in(tmp_path)
    runs = {run["contender"]: run for run in results["runs"]}
    assert set(runs) == {OURS, NETWORK, TUTORIAL, *LINEAR}
    points, others = runs[OURS]["points"], runs[NETWORK]["points"]
    assert [p["step"] for p in points] == [p["step"] for p in others]
    assert all(a["seconds"] > b["seconds"] for a, b in zip(points, others, strict=True))
    assert [point["step"] for point in points][:2] == [50, 100]
    assert all(0.2 < point["accuracy"] < 1 for point in points)
    for name in ("seconds", "compile_seconds", "validation_seconds"):
        assert all(0 < a[name] <= b[name] for a, b in pairwise(points))
    assert all(point["compile_seconds"] < point["seconds"] for point in points)
    for name in LINEAR:
        (point,) = runs[name]["points"]
        assert (
            point["seconds"] > 0 and 0.3 < point["accuracy"] < 0.7
        )  # the sample hides it from them
    text = (tmp_path / "research/race.md").read_text()
    shown = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]
    assert [shown[0], *shown[2:]] == rows(results)
    assert (tmp_path / "figures/race.svg").stat().st_size > 1000 and "(../figures/race.svg)" in text
    assert "seed 0" in capsys.readouterr().out
