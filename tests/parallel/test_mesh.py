"""The same run on two devices: the batch is split between them, the numbers stay.

XLA makes two devices of one CPU when it is told to before it starts, so each run has a process of
its own.
"""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from tests.helpers.kills import ROOT, write_reviews
from transformer_jax.parallel.mesh import num_devices, replicate, split_rows
from transformer_jax.text.batching import Batches, evaluation_plans

SHARDED = """
import jax, numpy as np
from transformer_jax.parallel.mesh import num_devices, replicate, split_rows
assert num_devices() == 2
rows = split_rows({"x": np.arange(6).reshape(6, 1)})["x"]
assert [s.data.shape for s in rows.addressable_shards] == [(3, 1), (3, 1)]
assert len({s.device for s in rows.addressable_shards}) == 2
whole = replicate(np.arange(6))
assert [s.data.shape for s in whole.addressable_shards] == [(6,), (6,)]
"""


def environment(devices):
    flags = f"--xla_force_host_platform_device_count={devices}"
    return os.environ | {"XLA_FLAGS": flags, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def train(folder, devices):
    run = folder / f"on-{devices}"
    arguments = [
        "--data", str(folder / "reviews.csv"), "--out", str(run), "--max-steps", "30",
        "--max-length", "16", "--batch-tokens", "144", "--dtype", "float32", "--no-baseline",
        "--checkpoint-minutes", "9",
    ]  # fmt: skip
    subprocess.run(
        [sys.executable, "-m", "train.imdb", *arguments],
        env=environment(devices),
        cwd=folder,
        check=True,
        capture_output=True,
    )
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return json.loads((run / "report.json").read_text()), lines


@pytest.mark.slow
def test_two_devices_give_the_losses_of_one(tmp_path):
    write_reviews(tmp_path / "reviews.csv")
    (one, alone), (two, shared) = (train(tmp_path, devices) for devices in (1, 2))
    assert (one["devices"], two["devices"]) == (1, 2)
    assert one["steps"] == two["steps"] == 30
    assert len(alone) == len(shared) > 3
    for ours, theirs in zip(alone, shared, strict=True):
        for name in {"loss", "validation_loss"} & set(ours):
            assert abs(ours[name] - theirs[name]) < 1e-5, ours["step"]


def test_rows_lie_on_both_devices_and_weights_on_each():
    subprocess.run([sys.executable, "-c", SHARDED], env=environment(2), check=True)


def test_one_device_is_left_alone():
    if num_devices() > 1:
        pytest.skip("there are more devices here")
    tree = {"x": np.arange(3)}
    assert split_rows(tree) is tree and replicate(tree) is tree


def test_batches_get_rows_that_every_device_can_share():
    examples = [np.arange(n, dtype=np.int32) for n in (3, 3, 3, 5)]
    plans = evaluation_plans([len(e) for e in examples], (5,), 15)
    assert [plan.rows for plan in plans] == [3, 3]
    batches = Batches(plans, examples, None, 0, rows_multiple=2)
    assert [len(batch.tokens) for batch in batches] == [4, 4]
    assert [batch.is_example.sum() for batch in batches] == [3, 1]
    jax.tree.map(np.testing.assert_array_equal, batches[1:][0], batches[1])
