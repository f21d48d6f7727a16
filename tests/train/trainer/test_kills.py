"""A real `train.imdb`, killed, stopped and crowded out, in processes of its own."""

import json
import re
import shlex
import shutil
import signal
import time

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.helpers.kills import Runner, differences, kill_runs

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runner(tmp_path_factory):
    return Runner(tmp_path_factory.mktemp("kills"))


@pytest.fixture(scope="module")
def reference(runner):
    run = runner.folder / "reference"
    runner.finish(run)
    return run


@pytest.mark.timeout(2400)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    """20 kills here; docs/results/kills.json has the longer series."""
    result = kill_runs(tmp_path, kills=20, say=print)
    assert result["lost"] == []
    assert result["kills"] == 20 and result["phases"]["while a checkpoint was written"] > 3


def test_a_run_that_lost_something_is_told_from_one_that_did_not(reference, tmp_path):
    """The comparison can fail: a weight in its last bit, one line of metrics, one count."""
    assert differences(reference, reference) == []
    weights = load_file(reference / "model.safetensors")
    weights["head.bias"] = np.nextafter(weights["head.bias"], np.float32(9))
    lines = (reference / "metrics.jsonl").read_text().splitlines(keepends=True)
    report = json.loads((reference / "report.json").read_text()) | {"steps": 1}
    for name, spoil, found in (
        ("model.safetensors", lambda path: save_file(weights, path), ["head.bias"]),
        ("metrics.jsonl", lambda path: path.write_text("".join(lines[1:])), ["metrics"]),
        ("report.json", lambda path: path.write_text(json.dumps(report)), ["report"]),
    ):
        run = tmp_path / name
        shutil.copytree(reference, run)
        spoil(run / name)
        assert differences(run, reference) == found


def wait_for(condition, process):
    while not condition():
        assert process.poll() is None, process.finish()
        time.sleep(0.01)


def training(run):
    """Whether some lines of metrics are written."""
    file = run / "metrics.jsonl"
    return file.exists() and file.read_text().count("\n") > 3


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_and_sigterm_save_and_print_the_command_that_goes_on(
    number, code, runner, reference
):
    run = runner.folder / signal.Signals(number).name
    with runner.start(run) as process:
        wait_for(lambda: training(run), process)
        process.send_signal(number)
        error = process.finish()
    assert process.returncode == code, error
    assert "finishing this step and saving" in error
    command = re.search(r"resume with\n +(python -m train\.imdb --resume .*)", error).group(1)
    _, _, _, *arguments = shlex.split(command)
    with runner.train(*arguments) as process:
        error = process.finish()
    assert process.returncode == 0, error
    assert differences(run, reference) == []


def test_a_second_ctrl_c_stops_at_once_and_loses_nothing_older(runner, reference):
    run = runner.folder / "twice"
    with runner.start(run) as process:
        wait_for(lambda: training(run), process)
        process.send_signal(signal.SIGINT)
        time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        process.finish()
    assert process.returncode in (-signal.SIGINT, 130)  # 130: it had saved by then
    runner.finish(run)
    assert differences(run, reference) == []


def test_ctrl_c_before_training_leaves_nothing(runner):
    run = runner.folder / "early"
    with runner.start(run) as process:
        wait_for(lambda: (run / ".lock").exists(), process)
        process.send_signal(signal.SIGINT)
        error = process.finish()
    assert process.returncode == 130 and "nothing was kept" in error
    assert not run.exists()


def test_a_second_process_is_refused_and_the_first_undisturbed(runner, reference):
    run = runner.folder / "crowded"
    with runner.start(run) as first:
        wait_for(lambda: training(run), first)
        first.send_signal(signal.SIGSTOP)  # or it may be done before the second is there
        with runner.start(run) as second:
            error = second.finish()
        first.send_signal(signal.SIGCONT)
        assert second.returncode == 2 and "another process is training in" in error
        assert first.finish() is not None
    assert first.returncode == 0
    assert differences(run, reference) == []


def test_a_finished_run_says_so_and_more_epochs_extend_it(runner, reference):
    report = (reference / "report.json").read_text()
    with runner.start(reference, "--epochs", "5") as process:
        process.finish()
    assert process.returncode == 0 and (reference / "report.json").read_text() == report
    run = runner.folder / "longer"
    runner.finish(run)
    runner.finish(run, "--epochs", "6")
    assert json.loads((run / "report.json").read_text())["epochs"] == 6
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines if "validation_accuracy" in line] == [*range(1, 7)]
