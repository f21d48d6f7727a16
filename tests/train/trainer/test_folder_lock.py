"""One process trains in a folder, and a failed start leaves nothing behind."""

import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

from train.trainer.folder_lock import held
from train.trainer.run import OPTIONS, RunError
from transformer_jax.serialization.folder_files import LOCK

HOLD = """
import sys, time
from pathlib import Path
from train.trainer.folder_lock import held
from train.trainer.run import RunError
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
        "import os, sys; from pathlib import Path\n"
        "from train.trainer.folder_lock import held; from train.trainer.run import RunError\n"
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
