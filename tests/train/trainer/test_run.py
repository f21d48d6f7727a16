"""A run has one folder and one set of options, and is resumed with them."""

import json
import time
from pathlib import Path

import pytest

from train.trainer.options import CommonOptions
from train.trainer.run import (
    OPTIONS,
    Run,
    RunError,
    new_folder,
    resumed_options,
)


def test_a_clock_set_back_does_not_name_two_runs_alike(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(time, "strftime", lambda form: "20260101-000000")
    first = new_folder(None, "imdb")
    first.mkdir(parents=True)
    second = new_folder(None, "imdb")
    assert (first.name, second.name) == ("imdb-20260101-000000", "imdb-20260101-000000-2")
    assert new_folder("here", "imdb") == Path("here")


def resumed(folder, *arguments, program="train.x"):
    return resumed_options(folder, program, CommonOptions, arguments)


def test_options_come_back_and_those_that_may_change_do(tmp_path):
    options = CommonOptions(seed=3, out="somewhere")
    Run("train.x", tmp_path, options).begin("abc", epochs=2)
    back, data_sha256 = resumed(tmp_path, "--resume", str(tmp_path))
    assert (back.seed, back.epochs, back.out, back.resume) == (3, 2, None, str(tmp_path))
    assert data_sha256 == "abc"
    assert resumed(tmp_path, "--epochs", "5", "--seed", "3")[0].epochs == 5
    assert resumed(tmp_path, "--remat")[0].remat and not back.remat


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            ["--seed", "4"],
            "--seed cannot change within a run, and .* began with 3; leave --seed out",
        ),
        (["--seed", "0"], "--seed cannot change"),  # the default, but asked for
        (
            ["--epochs", "1"],
            "--epochs 1 is fewer than the 2 that .* began with; a run can only be extended",
        ),
        (["--accumulate", "2"], "--accumulate cannot change within a run, and .* began with 1"),
        (["--out", "elsewhere"], "--out cannot change within a run; leave --out out"),
    ],
)
def test_another_configuration_is_refused(arguments, says, tmp_path):
    Run("train.x", tmp_path, CommonOptions(seed=3, epochs=2)).begin("abc")
    with pytest.raises(RunError, match=says):
        resumed(tmp_path, *arguments)


def test_another_program_or_version_is_refused(tmp_path):
    Run("train.x", tmp_path, CommonOptions()).begin("abc")
    with pytest.raises(RunError, match=r"is a run of 'train\.x', not of train\.y"):
        resumed(tmp_path, program="train.y")
    content = json.loads((tmp_path / OPTIONS).read_text())
    content["options"]["unheard_of"] = 1
    (tmp_path / OPTIONS).write_text(json.dumps(content))
    with pytest.raises(RunError, match="made by another version"):
        resumed(tmp_path)
    for damaged in ("", "{", "[]", "{}", '{"program": "train.x", "data_sha256": "", "options": 3}'):
        (tmp_path / OPTIONS).write_text(damaged)
        with pytest.raises(RunError, match="cannot resume"):
            resumed(tmp_path)
