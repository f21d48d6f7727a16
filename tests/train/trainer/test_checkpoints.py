"""A checkpoint is whole or it is not used, and no fault of the disk costs an older one."""

import os
import shutil
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.helpers.disks import FullDisk, small_disk
from train.trainer import checkpoints
from train.trainer.checkpoints import KEEP, SUMS, CheckpointError, Progress, damage, load, save


def state(step):
    return {"w": jnp.full((3, 2), step, jnp.float32), "step": jnp.array(step)}


def progress(step, best_step=None):
    return Progress(step=step, epoch=step, best_step=best_step, best_epoch=best_step)


def load_step(folder):
    """Return the checkpoint that is loaded, and the reports on skipped ones."""
    said = []
    found = load(folder, state(0), warn=said.append)
    if found is None:
        return None, said
    arrays, at = found
    assert int(arrays["step"]) == at.step
    np.testing.assert_array_equal(arrays["w"], state(at.step)["w"])
    return at.step, said


def test_what_is_saved_comes_back(tmp_path):
    at = Progress(step=7, losses=(0.1, float("nan")), best_metrics={"score": 0.5}, best_score=0.5)
    save(tmp_path, state(7), at)
    arrays, back = load(tmp_path, state(0))
    np.testing.assert_array_equal(arrays["w"], state(7)["w"])
    assert repr(back) == repr(at)


@pytest.mark.parametrize("bound", [False, True])
def test_what_is_loaded_is_bound_to_a_device_as_what_it_takes_the_place_of(bound, tmp_path):
    """Or JAX would compile every program anew for it."""
    place = jax.device_put(state(0), jax.devices()[0] if bound else None)
    save(tmp_path, state(7), progress(7))
    arrays, _ = load(tmp_path, place)
    assert [leaf.committed for leaf in jax.tree.leaves(arrays)] == [bound, bound]


def test_the_newest_are_kept_and_the_best_whatever_its_age(tmp_path):
    for step in range(1, 7):
        save(tmp_path, state(step), progress(step, best_step=min(step, 2)))
    kept = sorted(int(path.name[5:13]) for path in tmp_path.iterdir())
    assert kept == [2, *range(7 - KEEP, 7)]


def test_the_list_of_sums_is_that_of_sha256sum(tmp_path):
    if shutil.which("sha256sum") is None:
        pytest.skip("no sha256sum here")
    save(tmp_path, state(1), progress(1))
    (folder,) = tmp_path.iterdir()
    done = subprocess.run(["sha256sum", "--check", "--strict", SUMS], cwd=folder, check=False)
    assert done.returncode == 0


def files(folder):
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("how", ["cut", "flipped", "missing", "empty"])
def test_every_file_of_a_checkpoint_is_missed_when_it_is_damaged(how, tmp_path):
    """One byte of each file in turn: orbax itself would load most of them."""
    for step in (1, 2):
        save(tmp_path, state(step), progress(step))
    newest = max(tmp_path.iterdir())
    assert damage(newest) is None
    assert len(files(newest)) > 5
    for path in files(newest):
        content = path.read_bytes()
        changed = bytearray(content)
        if how == "flipped" and content:
            changed[len(changed) // 2] ^= 1
        elif how == "cut":
            changed = changed[:-1]
        elif how == "empty":
            changed = bytearray()
        if how == "missing":
            path.unlink()
        elif changed == content:
            continue
        else:
            path.write_bytes(changed)
        taken, said = load_step(tmp_path)
        assert taken == 1, path
        (line,) = said
        name = path.relative_to(newest).as_posix()
        assert newest.name in line and (name in line or SUMS in line)
        path.write_bytes(content)
    assert load_step(tmp_path) == (2, [])


def test_an_unlisted_file_or_another_folder_is_no_checkpoint(tmp_path):
    save(tmp_path, state(1), progress(1))
    (tmp_path / "step-00000002-epochs-002").mkdir()
    (tmp_path / "notes").mkdir()
    taken, said = load_step(tmp_path)
    assert taken == 1 and len(said) == 1 and "has no readable SHA256SUMS" in said[0]


def test_where_all_are_damaged_there_is_none(tmp_path):
    save(tmp_path, state(1), progress(1))
    (tmp_path / "step-00000001-epochs-001" / SUMS).write_text("")
    assert load_step(tmp_path)[0] is None
    assert load_step(tmp_path / "nowhere") == (None, [])


def test_a_damaged_checkpoint_is_replaced_when_the_run_comes_by_again(tmp_path):
    for step in (1, 2):
        save(tmp_path, state(step), progress(step))
    (max(tmp_path.iterdir()) / "progress.json").unlink()
    save(tmp_path, state(2), progress(2))
    assert load_step(tmp_path) == (2, [])


def test_a_checkpoint_of_another_model_is_named_and_passed_over(tmp_path):
    save(tmp_path, {"other": jnp.zeros(2)}, progress(1))
    said = []
    assert load(tmp_path, state(0), warn=said.append) is None
    assert "is of another model or version" in said[0]


def test_what_a_kill_left_half_done_is_cleared_and_never_loaded(tmp_path):
    save(tmp_path, state(1), progress(1))
    whole = tmp_path / "step-00000001-epochs-001"
    shutil.copytree(whole, tmp_path / ".step-00000002-epochs-002.part")
    assert load_step(tmp_path) == (1, [])
    save(tmp_path, state(3), progress(3))
    assert not list(tmp_path.glob(".*"))


WRITES = (
    (Path, "mkdir"), (Path, "write_text"), (os, "rename"), (os, "replace"), (os, "fsync"),
    (checkpoints.ocp, "save"),
)  # fmt: skip


def test_a_disk_that_is_full_at_any_write_costs_no_older_checkpoint(tmp_path):
    """Every write of a save fails in turn, until a save gets through."""
    for step in (1, 2):
        save(tmp_path / "begun", state(step), progress(step))
    for spare in range(200):
        folder = tmp_path / str(spare)
        shutil.copytree(tmp_path / "begun", folder)
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, spare, WRITES)
            try:
                save(folder, state(3), progress(3))
            except CheckpointError as error:
                assert "No space left on device" in str(error) and "\n" not in str(error)
        taken, said = load_step(folder)
        assert said == []
        if disk.spare >= 0:  # this one had room for all
            assert taken == 3
            break
        assert taken in (2, 3)  # 3 where only the tidying up failed
    assert spare > 5


@pytest.mark.parametrize("what", ["nr_inodes", "size"])
def test_a_disk_that_is_really_full_keeps_the_older_checkpoint_and_no_thread(what, tmp_path):
    """Too few files, or too few bytes, in steps from nothing to enough."""
    big = state(2) | {"more": jnp.ones((512, 1024))}  # 2 MiB, and two checkpoints more have to fit
    fits = []
    for room in (25, 30, 35, 40, 45, 50, 60, 100) if what == "nr_inodes" else range(1, 12):
        options = f"nr_inodes={room}" if what == "nr_inodes" else f"nr_inodes=9999,size={room}m"
        folder = tmp_path / str(room)
        with small_disk(folder, options):
            try:
                save(folder, state(1), progress(1))
            except CheckpointError:
                fits.append(0)
                assert load_step(folder)[0] is None
                continue
            try:
                save(folder, big, progress(2))
                fits.append(2)
            except CheckpointError as error:
                fits.append(1)
                assert "No space left" in str(error) and "\n" not in str(error)
            assert damage(folder / "step-00000001-epochs-001") is None
            assert not list(folder.glob(".*"))
    assert fits == sorted(fits) and fits[-1] == 2 and 1 in fits
    waiting = [t.name for t in threading.enumerate() if not t.daemon and t.name != "MainThread"]
    assert waiting == []  # they would keep the process from ending


def test_a_step_of_nine_digits_is_later_than_one_of_eight(tmp_path):
    names = [f"step-{step:08d}-epochs-003" for step in (5, 99_999_999, 100_000_000)]
    for name in reversed(names):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints._all(tmp_path)] == names


def test_a_run_that_continues_on_a_mesh_names_the_single_device_that_it_began_on():
    alone = Progress().on_mesh({}, 1)
    assert alone.meshes == () and replace(alone, step=7).on_mesh({}, 1).meshes == ()
    found = replace(alone, step=7).on_mesh({"data": 1, "fsdp": 2, "tensor": 1}, 2).meshes
    assert [(mesh["step"], mesh["fsdp"], mesh["processes"]) for mesh in found] == [
        (0, 1, 1),
        (7, 2, 2),
    ]
