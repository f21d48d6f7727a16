"""Several processes train one model: what they agree on, and how they end together."""

import json
import shutil
import signal

import numpy as np
import pytest

from tests.helpers.several import Several, errors
from train.lm import main as train_lm
from train.trainer.run import held

TEXT = "".join(f"the {n} cats and {n * n % 97} dogs\n" for n in range(150))
OFTEN = {"train.trainer.fit:LOG_EVERY": 3}
SOON = {"transformer_jax.parallel.processes:JOIN_SECONDS": 2}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text(TEXT)
    return path


def lm(text, run, *more):
    sizes = {"length": 16, "layers": 1, "embed-dim": 16, "heads": 2, "batch-tokens": 64}
    words = [f"--{name}={value}" for name, value in sizes.items()]
    return ["--data", str(text), *words, "--epochs=1", "--max-steps=48", "--out", str(run), *more]


def lines_of(run):
    file = run / "metrics.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def losses(run):
    return [x[k] for x in lines_of(run) for k in ("loss", "validation_loss") if k in x]


def stopped(text, run, index, tmp_path):
    """Train by two processes, of which one gets SIGTERM."""
    with Several(
        "train.lm", lm(text, run, "--mesh=fsdp=2"), tmp_path / "log", settings=OFTEN
    ) as two:
        two.wait_for(lambda: len(lines_of(run)) >= 3)
        two.send(index, signal.SIGTERM)
        assert two.codes() == [143, 143], two.said()
    return two


def resumed(run, log):
    with Several("train.lm", ["--resume", run], log, settings=OFTEN) as two:
        assert two.codes() == [0, 0], two.said()
    return two


def test_a_signal_to_one_of_two_stops_both_and_the_run_goes_on_by_one_or_two(
    text, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    two = stopped(text, run, 1, tmp_path)
    for _, error in two.said():
        assert error.endswith(f"\nstopped; resume with\n    python -m train.lm --resume {run}\n")
    assert two.said()[1][1].count("\n") == 3  # nothing else
    (checkpoint,) = (run / "checkpoints").iterdir()
    assert int(checkpoint.name.split("-")[1]) % 3 == 0  # at one of the steps of the log
    shutil.copytree(run, tmp_path / "by one")
    resumed(run, tmp_path / "log")
    monkeypatch.setattr("train.trainer.fit.LOG_EVERY", 3)
    assert train_lm(["--resume", str(tmp_path / "by one"), "--mesh", "data=1"]) == 0
    assert train_lm(lm(text, tmp_path / "one")) == 0
    assert len(losses(run)) == 17
    for other in ("one", "by one"):
        np.testing.assert_allclose(losses(tmp_path / other), losses(run), rtol=1e-5)
    meshes = json.loads((tmp_path / "by one" / "report.json").read_text())["meshes"]
    assert [(mesh["fsdp"], mesh["processes"]) for mesh in meshes] == [(2, 2), (1, 1)]
    assert meshes[1]["step"] == int(checkpoint.name.split("-")[1])


def one_line(two, code, *says):
    """The processes must have ended with this code and, as their last line, the same message."""
    assert two.codes() == [code] * len(two.processes), two.said()
    assert [out for out, _ in two.said()[1:]] == [""] * (len(two.said()) - 1)
    found = {error.splitlines()[-1] for error in errors(two)}
    (line,) = found
    for part in says:
        assert part in line
    return line


def test_all_processes_say_why_the_first_refuses_a_folder(text, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("mine")
    with Several("train.lm", lm(text, full), tmp_path / "log") as two:
        one_line(two, 2, "train.lm: error:", f"{full} is not empty and would be overwritten")
    assert [path.name for path in full.iterdir()] == ["mine.txt"]
    run = tmp_path / "run"
    with held(run, new=True), Several("train.lm", lm(text, run), tmp_path / "log") as two:
        one_line(two, 2, f"another process is training in {run}")
    assert not run.exists()


def test_processes_that_were_given_different_options_are_told_so(text, tmp_path):
    run = tmp_path / "run"
    with Several(
        "train.lm", lm(text, run), tmp_path / "log", each=[["--seed=1"], ["--seed=2"]]
    ) as two:
        one_line(two, 2, "process 1 has other options than process 0; start all processes with")
    assert not run.exists()


@pytest.mark.parametrize(
    ("index", "says"),
    [(0, "the other 1 did not join at --coordinator 127.0.0.1:"), (1, "nobody answers at")],
)
def test_a_process_that_nobody_joins_ends_with_one_line(index, says, text, tmp_path):
    with Several(
        "train.lm", lm(text, tmp_path / "run"), tmp_path / "log", only=[index], settings=SOON
    ) as one:
        assert one.codes() == [2], one.said()
    (line,) = errors(one)
    assert line.startswith("train.lm: error: ") and says in line and "within 2 seconds" in line
    assert not (tmp_path / "run").exists()
