"""Several processes train one model: what they agree on, and how they end together."""

import errno
import importlib
import json
import os
import random
import shutil
import signal
import time

import numpy as np
import pytest

from tests.helpers import record_behaviour as behaviour
from tests.helpers.several import PATIENCE, Several, errors
from train.data.token_file import token_files
from train.lm import main as train_lm
from train.trainer.exchange import exchange, largest, tell_end
from train.trainer.folder_lock import held
from transformer_jax.parallel import processes
from transformer_jax.runtime.files import discarded, write_text

TEXT = "".join(f"the {n} cats and {n * n % 97} dogs\n" for n in range(150))
OFTEN = {"train.trainer.fit:LOG_EVERY": 3}
QUICK = {"transformer_jax.parallel.processes:HEARTBEAT_SECONDS": 6}
# Less than the test waits: a process may be killed before it has joined.
JOIN = {"transformer_jax.parallel.processes:JOIN_SECONDS": 40}
SOON = {"transformer_jax.parallel.processes:JOIN_SECONDS": 2}
SLURM = {
    "SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "node[3-6]", "SLURM_NTASKS": "4",
    "SLURM_PROCID": "2", "SLURM_LOCALID": "0",
}  # fmt: skip


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
    arguments = lm(text, run, "--mesh=fsdp=2", "--muon-rate=0")
    with Several("train.lm", arguments, tmp_path / "log", settings=OFTEN) as two:
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
    assert train_lm(lm(text, tmp_path / "one", "--muon-rate=0")) == 0
    assert len(losses(run)) == 17
    for other in ("one", "by one"):
        np.testing.assert_allclose(losses(tmp_path / other), losses(run), rtol=1e-5)
    meshes = json.loads((tmp_path / "by one" / "report.json").read_text())["meshes"]
    assert [(mesh["fsdp"], mesh["processes"]) for mesh in meshes] == [(2, 2), (1, 1)]
    assert meshes[1]["step"] == int(checkpoint.name.split("-")[1])


def one_line(two, code, *says):
    """The processes must have ended with this code and, as their last line, the same message."""
    assert two.codes() == [code] * len(two.processes), two.said()
    printed = [line for out, _ in two.said()[1:] for line in out.splitlines()]
    assert all(line.startswith("[Gloo]") for line in printed), printed  # in C++
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


def slow(*_, **__):
    time.sleep(100)


def test_a_signal_ends_both_though_the_other_process_is_busy(text, tmp_path):
    """It would come to an exchange much later than the first one waits for it."""
    run = tmp_path / "run"
    settings = {"train.trainer.exchange:END_SECONDS": 2}
    settings |= {"train.tasks.language_modeling:every_window": slow}
    with Several("train.lm", lm(text, run), tmp_path / "log", settings=settings) as two:
        two.wait_for((run / "options.json").exists)
        time.sleep(1)
        two.send(0, signal.SIGTERM)
        line = one_line(two, 143, "--resume")
    assert line == f"    python -m train.lm --resume {run}"


def full_disk(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.slow
def test_a_full_disk_of_the_first_process_ends_both_and_the_run_goes_on(text, tmp_path):
    run, full = tmp_path / "run", {"train.trainer.checkpoints:_try_room": full_disk}
    arguments = lm(text, run, "--mesh=tensor=2")
    with Several("train.lm", arguments, tmp_path / "log", settings=OFTEN, first=full) as two:
        line = one_line(two, 1, "--resume")
        assert line == f"    python -m train.lm --resume {run}"
        for error in errors(two):
            assert f"cannot write {run}/checkpoints" in error
            assert "No space left on device; free disk space" in error
    resumed(run, tmp_path / "log")
    assert losses(run)


def killed(run, arguments, log, index, seconds):
    """Whether the run ended before one of its two processes was killed after so many seconds."""
    with Several("train.lm", arguments, log, settings=OFTEN | QUICK | JOIN) as two:
        begun = time.monotonic()
        while time.monotonic() - begun < seconds and two.processes[0].exitcode is None:
            time.sleep(0.01)
        if two.processes[0].exitcode is not None:
            return two.codes() == [0, 0]
        two.send(index, signal.SIGKILL)
        codes = two.codes()
        assert codes[index] == -signal.SIGKILL, two.said()
        other, (_, error) = codes[1 - index], two.said()[1 - index]
        assert other in (1, 2, -signal.SIGABRT), two.said()
        if other == 1:
            assert "another process of this run is gone" in error or "is gone; start" in error
        if other == 2:  # the killed one had not joined yet
            assert "the other 1 did not join at" in error or "nobody answers at" in error
    return False


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_run_of_which_a_process_is_killed_goes_on_bit_for_bit(text, tmp_path, monkeypatch):
    """Two processes resume it; one does on another mesh, with losses equal to 1e-5."""
    rng, run, kills, by_one = random.Random(0), tmp_path / "run", 0, tmp_path / "by one"
    more = ["--mesh=fsdp=2", "--checkpoint-minutes=0.001"]
    begun = time.monotonic()
    whole = lm(text, tmp_path / "whole", *more)
    with Several("train.lm", whole, tmp_path / "log", settings=OFTEN) as two:
        assert two.codes() == [0, 0], two.said()
    seconds, done = time.monotonic() - begun, True
    while kills < 10 or not done:
        if done and run.exists():
            shutil.rmtree(run)
        new = not (run / "options.json").exists()
        arguments = lm(text, run, *more) if new else ["--resume", run]
        limit = rng.uniform(0, seconds) if kills < 10 else PATIENCE
        since = time.monotonic()
        done = killed(run, arguments, tmp_path / "log", kills % 2, limit)
        kills += not done
        if not (done or by_one.exists()) and list(run.glob("checkpoints/step-*")):
            shutil.copytree(run, by_one)
        if done:
            seconds = min(seconds, time.monotonic() - since)  # the first one compiled
            assert_same(run, tmp_path / "whole")
    assert kills >= 10
    monkeypatch.setattr("train.trainer.fit.LOG_EVERY", 3)
    assert train_lm(["--resume", str(by_one), "--mesh", "data=1"]) == 0
    np.testing.assert_allclose(losses(by_one), losses(run), rtol=1e-5)


def assert_same(run, reference):
    """Two runs must have the same weights and the same losses, in their last bit."""
    weights = [(each / "model.safetensors").read_bytes() for each in (run, reference)]
    assert weights[0] == weights[1]
    assert losses(run) == losses(reference)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "mesh"), [("imdb", "fsdp=2"), ("mlm", "tensor=2"), ("translate", "tensor=2")]
)
def test_two_processes_have_the_losses_of_one(name, mesh, tmp_path):
    behaviour.write_data(tmp_path)
    module = behaviour.RUNS[name][0]
    arguments = [*behaviour.arguments(name, tmp_path), "--out"]
    two, one = tmp_path / "two", tmp_path / "one"
    with Several(module, [*arguments, two, "--mesh", mesh], tmp_path / "log") as both:
        assert both.codes() == [0, 0], both.said()
    main = importlib.import_module(module).main
    assert main([*map(str, arguments), str(one)]) == 0
    np.testing.assert_allclose(losses(two), losses(one), rtol=1e-5)
    names = [{path.name for path in each.iterdir()} for each in (one, two)]
    assert names[0] == names[1]


@pytest.fixture
def joined(monkeypatch):
    """The processes that `join` would join, in a clean environment."""
    for name in (*processes.VARIABLES, *SLURM):
        monkeypatch.delenv(name, raising=False)
    found = []
    monkeypatch.setattr(processes, "_initialize", lambda *given: found.append(given))
    return found


def test_a_process_joins_what_the_environment_or_slurm_says(joined, monkeypatch):
    assert processes.join() == 1 and joined == []
    for name, value in SLURM.items():
        monkeypatch.setenv(name, value)
    assert processes.join() == 4
    (address, *numbers) = joined.pop()
    assert address.startswith("node3:") and numbers == [4, 2]
    monkeypatch.setenv("JAX_COORDINATOR_ADDRESS", "there:80")
    assert processes.join(process=1) == 4 and joined.pop() == ("there:80", 4, 1)
    for name, value in zip(processes.VARIABLES, ("here:80", "3", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert processes.join() == 3 and joined == [("here:80", 3, 0)]


def test_a_single_task_of_slurm_joins_nobody(joined, monkeypatch):
    for name, value in (SLURM | {"SLURM_NTASKS": "1", "SLURM_PROCID": "0"}).items():
        monkeypatch.setenv(name, value)
    assert processes.join() == 1 and joined == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("here:80", None, 0), "^--processes must be given too"),
        ((None, 2, None), "^--coordinator and --process must be given too"),
        (("here", 2, 0), "must be HOST:PORT; got 'here'"),
        (("here:80", 2, 2), r"must be from 0 to 1 \(--processes 2\); got 2"),
        (("here:80", 0, 0), "^--processes must be 1 or more; got 0"),
        (("here:80", "two", 0), "JAX_NUM_PROCESSES must be a whole number; got 'two'"),
    ],
)
def test_options_that_name_no_processes_are_one_line(given, says, joined):
    with pytest.raises(ValueError, match=says):
        processes.join(*given)
    assert joined == []


def test_one_process_agrees_with_itself():
    assert exchange("mine") == ["mine"] and largest(3) == 3
    assert tell_end("why") == "why" and processes.is_first()


def test_a_process_that_is_not_the_first_writes_no_file(tmp_path):
    with discarded():
        write_text(tmp_path / "file", "text")
    assert list(tmp_path.iterdir()) == []
    write_text(tmp_path / "file", "text")
    assert (tmp_path / "file").read_text() == "text"


def late_files(*arguments, **options):
    time.sleep(3)
    return token_files(*arguments, **options)


def late_write(*arguments):
    time.sleep(2)
    write_text(*arguments)


TOKEN_FILES = "train.tasks.language_modeling:token_files"
LATE = {TOKEN_FILES: late_files}


@pytest.mark.parametrize("first", [late_files, slow], ids=["soon", "busy"])
def test_a_signal_before_training_stops_both_and_leaves_nothing(first, text, tmp_path):
    run, settings = tmp_path / "new" / "run", LATE
    if first is slow:
        settings = LATE | {"train.trainer.exchange:END_SECONDS": 1}
    with Several(
        "train.lm", lm(text, run), tmp_path / "log", settings=settings, first={TOKEN_FILES: first}
    ) as two:
        two.wait_for(lambda: two.said() and "data " in two.said()[0][0])
        two.send(1, signal.SIGTERM)
        one_line(two, 143, "stopped before training began; nothing was kept")
    assert not run.parent.exists()


def test_a_signal_while_the_first_writes_the_options_says_how_to_resume(text, tmp_path):
    run = tmp_path / "run"
    late = LATE | {"train.trainer.run:write_text": late_write}
    with Several("train.lm", lm(text, run), tmp_path / "log", first=late) as two:
        two.wait_for(lambda: two.said() and "data " in two.said()[0][0])
        time.sleep(1)  # the second process waits for the first to compare the data
        two.send(1, signal.SIGTERM)
        assert one_line(two, 143, "--resume") == f"    python -m train.lm --resume {run}"
    assert (run / "options.json").exists() and (run / "config.json").exists()
