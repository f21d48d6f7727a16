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
from transformer_jax.parallel.mesh import mesh_sizes, parse_mesh, place, split_rows
from transformer_jax.text.batching import Batches, evaluation_plans, in_order

SHARDED = """
import jax, numpy as np
from flax import nnx
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import created
from transformer_jax.parallel.mesh import place, split_rows, use_mesh, whole_share
params = {"head": {"kernel": np.ones((4, 6), np.float32)}}
with use_mesh("data=2,fsdp=2,tensor=2"):
    kernel = place(params)["head"]["kernel"]
    assert {s.data.shape for s in kernel.addressable_shards} == {(2, 3)}
    for rows in (1, 3, 4, 8):
        batch = split_rows({"x": np.ones((rows, 2), np.float32), "is_row": np.ones(rows, bool)})
        filled = rows + -rows % 4
        assert [s.data.shape for s in batch["x"].addressable_shards] == [(filled // 4, 2)] * 8
        assert batch["is_row"].tolist() == [True] * rows + [False] * (filled - rows)
        assert batch["x"].sum() == 2 * rows

with use_mesh("fsdp=2,tensor=4"):  # of which 4 does not divide 6
    assert [whole_share(params, axis) for axis in ("fsdp", "tensor")] == [0.0, 1.0]

stack = StackConfig(1, 8, 2, 16, norm="pre", final_norm=True)
def make():
    return LanguageModel(LanguageModelConfig(6, 4, stack), rngs=nnx.Rngs(0))
alone = make()
with use_mesh("data=2,fsdp=2,tensor=2"):
    model = created(make)
    kernel = model.decoder.layers[0].attention.query_kernel[...]
    assert {s.data.shape for s in kernel.addressable_shards} == {(4, 1, 4)}
    for one, other in zip(*(jax.tree.leaves(nnx.state(each)) for each in (model, alone))):
        np.testing.assert_array_equal(one, other)
"""
BEHAVIOUR = ROOT / "tests/contracts/test_behaviour.py"
# Their batches have a number of rows that three devices cannot share evenly. Without pytest, which
# would import the library with checks of its signatures.
RECORDED = """
import sys
from functools import partial
from pathlib import Path
from tests.contracts import test_behaviour as tests
from tests.helpers import record_behaviour as behaviour
from train.tasks import language_modeling
language_modeling.sample_text = lambda *_: "not recorded; test_processes.py generates on a mesh"
folder = Path(sys.argv[1])
behaviour.write_data(folder)
for name in ("lm", "mlm"):
    tests.test_a_training_has_the_recorded_losses(name, partial(behaviour.trained, folder=folder))
tests.test_an_earlier_run_folder_gives_what_it_gave("imdb")
print("as recorded")
"""


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


def test_three_devices_give_the_recorded_losses_and_predictions(tmp_path):
    """The recorded numbers are of one device."""
    assert "as recorded" in run(["-c", RECORDED, tmp_path / "data"], 3)


@pytest.mark.slow
def test_every_program_and_command_behaves_as_recorded():
    """Seven divides no batch and no axis."""
    options = ["-q", "-n", "0", "-p", "no:cacheprovider", "-k", "recorded_losses or earlier"]
    assert "16 passed" in run(["-m", "pytest", BEHAVIOUR, *options], 7)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lm", "imdb"])
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


def test_rows_parameters_and_new_models_are_split_over_their_axes_of_the_mesh():
    run(["-c", SHARDED], 8)


def test_without_a_mesh_nothing_is_changed():
    tree = {"x": np.arange(3)}
    assert split_rows(tree) is tree and place(tree) is tree


@pytest.mark.parametrize(
    ("text", "devices", "message"),
    [
        ("data=2,model=4", 8, r"no axis 'model'; pass sizes of data, fsdp, tensor"),
        ("data=2,data=4", 8, r"has data twice"),
        ("data=0", 8, r"size of data must be 1 or more, or -1"),
        ("data=--2", 8, r"size of data must be 1 or more, or -1 for the rest; got '--2'"),
        ("fsdp=x", 8, r"size of fsdp must be 1 or more, or -1 for the rest; got 'x'"),
        ("data=-1,fsdp=-1", 8, r"only one axis can have the rest \(-1\); got data, fsdp"),
        ("fsdp=3", 8, r"--mesh fsdp=3 needs a multiple of 3 devices, and there are 8"),
        ("data=2,fsdp=3", 8, r"needs 6 devices, and there are 8"),
        ("tensor=2", 1, r"needs a multiple of 2 devices, and there is 1"),
    ],
)
def test_a_mesh_that_does_not_fit_is_a_one_line_error(text, devices, message):
    with pytest.raises(ValueError, match=message) as error:
        mesh_sizes(text, devices)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "devices", "sizes"),
    [
        (None, 8, (8, 1, 1)),
        ("data=2,fsdp=4,tensor=1", 8, (2, 4, 1)),
        ("fsdp=4", 8, (2, 4, 1)),
        ("data=2,fsdp=-1", 8, (2, 4, 1)),
        (" data=1 , tensor=8 ", 8, (1, 1, 8)),
        ("data=1", 1, (1, 1, 1)),
    ],
)
def test_the_rest_of_a_mesh_is_data_unless_it_is_asked_for(text, devices, sizes):
    assert tuple(mesh_sizes(text, devices).values()) == sizes
    assert set(parse_mesh(text)) == {"data", "fsdp", "tensor"}


def test_results_of_rows_that_fill_the_devices_are_left_out():
    examples = [np.full(3, i, np.int32) for i in range(4)]
    plans = evaluation_plans([3] * 4, (3,), 9)
    assert [plan.rows for plan in plans] == [3, 3]
    batches = list(Batches(plans, examples, None, 0))
    outputs = [np.pad(batch.tokens[:, 0], (0, 1), constant_values=9) for batch in batches]
    assert in_order(zip(batches, outputs, strict=True), 4).tolist() == [0, 1, 2, 3]
