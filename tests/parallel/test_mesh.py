"""A run on several devices: the batch is split between them, the numbers stay.

XLA makes several devices of one CPU when it is told to before it starts, so each run has a process
of its own.
"""

import importlib
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tests.helpers import record_behaviour as behaviour
from tests.helpers.kills import ROOT
from transformer_jax.parallel.mesh import num_devices, replicate, split_rows
from transformer_jax.text.batching import Batches, evaluation_plans, in_order

SHARDED = """
import jax, numpy as np
from transformer_jax.parallel.mesh import num_devices, replicate, split_rows
assert num_devices() == 2
rows = split_rows({"x": np.arange(6).reshape(6, 1)})["x"]
assert [s.data.shape for s in rows.addressable_shards] == [(3, 1), (3, 1)]
assert len({s.device for s in rows.addressable_shards}) == 2
whole = replicate(np.arange(6))
assert [s.data.shape for s in whole.addressable_shards] == [(6,), (6,)]
for rows in (1, 3, 4):
    batch = split_rows({"x": np.ones((rows, 2), np.float32), "is_row": np.ones(rows, bool)})
    filled = rows + rows % 2
    assert [s.data.shape for s in batch["x"].addressable_shards] == [(filled // 2, 2)] * 2
    assert batch["is_row"].tolist() == [True] * rows + [False] * (filled - rows)
    assert batch["x"].sum() == 2 * rows
"""
BEHAVIOUR = ROOT / "tests/contracts/test_behaviour.py"
# Their batches have a number of rows that three devices cannot share evenly.
LOSSES_OF_LM, LOSSES_OF_MLM, PREDICTIONS = (
    f"{BEHAVIOUR}::{test}"
    for test in (
        "test_a_training_has_the_recorded_losses[lm]",
        "test_a_training_has_the_recorded_losses[mlm]",
        "test_an_earlier_run_folder_gives_what_it_gave[imdb]",
    )
)


def run(arguments, devices):
    """Run a Python process with so many devices, and return what it printed."""
    environment = {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *map(str, arguments)],
        env=os.environ | environment | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def behaviour_tests(devices, *arguments):
    """Run tests of the recorded behaviour, which is of one device, in a process with several."""
    return run(["-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *arguments], devices)


def test_three_devices_give_the_recorded_losses_and_predictions():
    assert "3 passed" in behaviour_tests(3, LOSSES_OF_LM, LOSSES_OF_MLM, PREDICTIONS)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 3, 5, 7])
def test_every_program_and_command_behaves_as_recorded(devices):
    assert "16 passed" in behaviour_tests(devices, BEHAVIOUR, "-k", "recorded_losses or earlier")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "mlm", "translate", "imdb"])
def test_a_run_goes_on_with_another_number_of_devices(name, tmp_path):
    """The first epoch is on one device and the second on three, or the other way round."""
    behaviour.write_data(tmp_path)
    module = behaviour.RUNS[name][0]
    main = importlib.import_module(module).main

    def begun(run):
        sizes = ["--epochs", "1", "--max-steps", "1000", "--out", tmp_path / run]
        return [*map(str, [*behaviour.arguments(name, tmp_path), *sizes])]

    def resumed(run):
        return ["--resume", str(tmp_path / run), "--epochs", "2"]

    assert main(begun("one")) == 0
    shutil.copytree(tmp_path / "one", tmp_path / "then three")
    assert main(resumed("one")) == 0
    run(["-m", module, *resumed("then three")], 3)
    run(["-m", module, *begun("then one")], 3)
    assert main(resumed("then one")) == 0
    expected = measured(tmp_path / "one")
    assert len(expected) >= 4
    for other in ("then three", "then one"):
        np.testing.assert_allclose(measured(tmp_path / other), expected, rtol=1e-4, atol=1e-4)


def measured(folder):
    """The losses in the metrics of a run, in training and in validation."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[name] for line in lines for name in ("loss", "validation_loss") if name in line]


def test_rows_lie_on_both_devices_and_weights_on_each():
    run(["-c", SHARDED], 2)


def test_one_device_is_left_alone():
    if num_devices() > 1:
        pytest.skip("there are more devices here")
    tree = {"x": np.arange(3)}
    assert split_rows(tree) is tree and replicate(tree) is tree


def test_results_of_rows_that_fill_the_devices_are_left_out():
    examples = [np.full(3, i, np.int32) for i in range(4)]
    plans = evaluation_plans([3] * 4, (3,), 9)
    assert [plan.rows for plan in plans] == [3, 3]
    batches = list(Batches(plans, examples, None, 0))
    outputs = [np.pad(batch.tokens[:, 0], (0, 1), constant_values=9) for batch in batches]
    assert in_order(zip(batches, outputs, strict=True), 4).tolist() == [0, 1, 2, 3]
