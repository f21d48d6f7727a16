"""Faults that are nobody's mistake: one line, how to continue, and a folder that can be used."""

import errno
import json
import os
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
import pytest

from tests.helpers.disks import FullDisk, small_disk
from tests.helpers.kills import differences, write_reviews
from tests.helpers.small_recipes import small_recipes
from train.imdb import main
from train.trainer import checkpoints
from train.trainer.checkpoints import CheckpointError
from train.trainer.faults import TrainingError, faults_of
from transformer_jax.runtime.errors import UnfinishedWarning
from transformer_jax.serialization import run_folder
from transformer_jax.serialization.run_folder import load_classifier


def told(error):
    with pytest.raises(TrainingError) as said, faults_of(Path("run"), 4096):
        raise error
    assert "\n" not in str(said.value)
    return str(said.value)


def test_a_full_memory_names_batch_tokens():
    def too_much(x):
        return jnp.ones(2**43) * x  # 32 TiB

    out_of_memory = pytest.raises(TrainingError, match=r"out of memory.*--batch-tokens 4096")
    with out_of_memory as said, faults_of(Path("run"), 4096):
        jax.jit(too_much)(3.0)
    assert not said.value.mendable  # the same run would meet the same
    assert "--batch-tokens 4096" in told(MemoryError())


def test_a_full_disk_is_told_apart_from_a_full_memory():
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "run/metrics.jsonl")
    assert told(full) == "cannot write run/metrics.jsonl: No space left on device; free disk space"
    assert "fix that" in told(OSError(errno.EROFS, os.strerror(errno.EROFS), "run/x"))
    assert told(CheckpointError("cannot write x: RESOURCE_EXHAUSTED: No space left")).startswith(
        "cannot write x"
    )


def test_a_mistake_of_ours_is_not_dressed_up():
    for error in (jax.errors.JaxRuntimeError("INTERNAL: what is this"), KeyError("k")):
        with pytest.raises(type(error)), faults_of(Path("run"), 1):
            raise error


WRITES = (
    (Path, "mkdir"), (Path, "write_text"), (os, "rename"), (os, "replace"), (os, "fsync"),
    (checkpoints, "_try_room"), (checkpoints.ocp, "save"), (matplotlib.figure.Figure, "savefig"),
    (run_folder, "save_file"),
)  # fmt: skip


def options(data, run):
    return [
        "--data", str(data), "--out", str(run), "--max-steps", "2", "--max-length", "16",
        "--no-baseline", "--batch-tokens", "512", "--dtype", "float32",
        "--checkpoint-minutes", "5",
    ]  # fmt: skip


@pytest.fixture
def small_network():
    """The recipe `fast` trains a small network; its report has every part."""
    with small_recipes():
        yield


@pytest.fixture
def empty_figures(monkeypatch):
    """Figures are saved empty: drawing their contents takes a third of such a run."""
    save, empty = matplotlib.figure.Figure.savefig, matplotlib.figure.Figure(figsize=(1, 1))
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda _, *args, **kwargs: save(empty, *args, **kwargs)
    )


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.filterwarnings("ignore::transformer_jax.runtime.errors.UnfinishedWarning")
@pytest.mark.usefixtures("small_network", "empty_figures")
def test_a_write_that_fails_anywhere_in_a_run_leaves_a_folder_that_goes_on(tmp_path, capsys):
    """Every write of a whole run fails in turn; then there is room again, and the run goes on bit
    for bit.
    """
    data, reference = write_reviews(tmp_path / "reviews.csv"), tmp_path / "reference"
    assert main(options(data, reference)) == 0
    loadable = 0
    for spare in range(1000):
        run = tmp_path / "run"
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, spare, WRITES)
            code = main(options(data, run))
        if disk.spare >= 0:
            assert code == 0
            break
        said = [line for line in capsys.readouterr().err.splitlines() if "No space left" in line]
        assert code in (1, 2) and len(said) == 1, (spare, code, said)
        if (run / "options.json").exists():
            assert code == 1 and "Then resume with" in said[0]
            if (run / "model.safetensors").exists():
                load_classifier(run)
                loadable += 1
            assert main(["--resume", str(run)]) == 0
            assert differences(run, reference) == []
        shutil.rmtree(run, ignore_errors=True)
    assert spare > 25 and loadable > 10


def size_of(path):
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


@pytest.mark.slow
def test_a_disk_that_is_really_full_leaves_a_model_that_predicts(tmp_path, capsys):
    """A file system with room for the model and not for a checkpoint; then with room for both."""
    data, reference = write_reviews(tmp_path / "reviews.csv"), tmp_path / "reference"
    assert main(options(data, reference)) == 0
    model, checkpoint = size_of(reference / "model.safetensors"), size_of(reference / "checkpoints")
    disk = tmp_path / "disk"
    with small_disk(disk, f"size={model + checkpoint // 2}"):
        run = disk / "run"
        assert main(options(data, run)) == 1
        assert "No space left" in capsys.readouterr().err
        with pytest.warns(UnfinishedWarning):
            assert np.isfinite(jax.tree.leaves(load_classifier(run).model)[0]).all()
        roomy = f"remount,size={4 * (model + checkpoint)}"
        subprocess.run(["mount", "-o", roomy, str(disk)], check=True)
        assert main(["--resume", str(run)]) == 0
        assert differences(run, reference) == []


@pytest.mark.slow
def test_a_tokenizer_cut_short_is_learned_again_and_the_same(tmp_path, capsys):
    data, run = write_reviews(tmp_path / "reviews.csv"), tmp_path / "run"
    assert main(options(data, run)) == 0
    whole = (run / "tokenizer.json").read_text()
    (run / "tokenizer.json").write_text(whole[: len(whole) // 2])
    (run / "report.json").unlink()
    assert main(["--resume", str(run)]) == 0
    assert "training the tokenizer again" in capsys.readouterr().out
    assert (run / "tokenizer.json").read_text() == whole
    data.write_text(data.read_text().replace("superb", "dreary"))
    (run / "report.json").unlink()
    assert main(["--resume", str(run)]) == 2
    assert "the data are not those that" in capsys.readouterr().err
    assert json.loads((run / "options.json").read_text())["program"] == "train.imdb"
