"""One process a run, and one set of options a run."""

import json
import os
import re
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from train.trainer.options import CommonOptions
from train.trainer.run import (
    OPTIONS,
    Run,
    RunError,
    held,
    new_folder,
    resumed_options,
)
from transformer_jax.serialization.folder_files import LOCK

HOLD = """
import sys, time
from pathlib import Path
from train.trainer.run import Run, RunError, held
try:
    with held(Path(sys.argv[1]), new=True):
        print("held", flush=True)
        time.sleep(60)
except RunError as error:
    print(error, flush=True)
"""


@contextmanager
def holder(folder):
    """Another process that holds the folder, or says why it cannot."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process.stdout.readline()
        finally:
            process.kill()


def test_a_second_process_is_refused_and_a_dead_one_holds_nothing(tmp_path):
    folder = tmp_path / "run"
    refused = r"another process is training in .*run; wait"
    with holder(folder) as said:
        assert said == "held\n"
        with pytest.raises(RunError, match=refused), held(folder, new=True):
            pass
        with holder(folder) as said:
            assert re.match(refused, said)
    assert (folder / LOCK).exists()  # the dead process could not remove it, and it stops nobody
    with held(folder, new=True):
        pass
    assert not (folder / LOCK).exists()


def test_a_folder_into_which_nothing_was_put_is_removed_again(tmp_path):
    with pytest.raises(KeyError), held(tmp_path / "a" / "run", new=True):
        raise KeyError
    assert not (tmp_path / "a").exists()
    with held(tmp_path / "used", new=True):
        (tmp_path / "used" / "file").touch()
    assert [path.name for path in (tmp_path / "used").iterdir()] == ["file"]


def test_a_folder_with_anything_in_it_is_not_written_over(tmp_path):
    (tmp_path / "precious").write_text("mine")
    with (
        pytest.raises(RunError, match=r"is not empty.*pass another --out$"),
        held(tmp_path, new=True),
    ):
        pass
    (tmp_path / OPTIONS).write_text("{}")
    with pytest.raises(RunError, match="or --resume"), held(tmp_path, new=True):
        pass
    assert (tmp_path / "precious").read_text() == "mine"
    with held(tmp_path, new=False):  # to go on with it is another matter
        pass


def test_a_place_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    for place, new in (
        (tmp_path / "file", True),
        (tmp_path / "file" / "run", True),
        (tmp_path / "no", False),
    ):
        with pytest.raises(RunError) as error, held(place, new=new):
            pass
        assert str(place) in str(error.value) and "\n" not in str(error.value)
    assert not (tmp_path / "no").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no users here")
def test_a_read_only_folder_is_one_line(tmp_path):
    """Run as a user without rights: root may write anywhere."""
    folder = tmp_path / "run"
    folder.mkdir()
    code = (
        "import os, sys; from pathlib import Path; from train.trainer.run import held, RunError\n"
        "if os.geteuid() == 0: os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for new in (True, False):\n"
        "    try:\n"
        "        with held(Path(sys.argv[1]), new=new): print('held')\n"
        "    except RunError as error: print(error)\n"
    )
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path("/"):
            parent.chmod(0o755)
        if parent.name.startswith("pytest-of"):
            break
    folder.chmod(0o555)
    done = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, check=True
    )
    folder.chmod(0o755)
    new, resumed = done.stdout.splitlines()
    assert new == f"cannot write to {folder}: Permission denied; pass another --out"
    assert resumed == f"cannot write to {folder}: Permission denied; make it writable"


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
