"""Training on a mesh: losses, collectives, the share of the state on a device, and masked rows.

One process with eight simulated devices answers all questions (tests/helpers/mesh_claims.py).
"""

import json
import os
import subprocess
import sys

import pytest

from tests.helpers.kills import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found(computed_once):
    """The answers of the process."""
    return computed_once("mesh_claims", claims)


def claims():
    environment = {"JAX_NUM_CPU_DEVICES": "8", "JAX_PLATFORMS": "cpu", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.mesh_claims"],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout)


def test_the_losses_are_those_of_one_device_on_every_mesh(found):
    losses = found["losses"]
    assert len({mesh for meshes in losses.values() for mesh in meshes}) == 5
    for name, meshes in losses.items():
        for mesh, difference in meshes.items():
            assert difference <= (1e-3 if name == "bfloat16" else 1e-5), (name, mesh)
    assert any(losses["bfloat16"].values()), "the mesh and one device ran the same program"


def test_with_fsdp_each_matrix_is_gathered_once_and_the_batch_never(found):
    """Losses stay right if the batch is gathered in place of the matrices: only this test sees it.

    The matrices are the token table and, in a layer, query, key, value, output and two of the
    feed-forward network. One all-reduce adds up all gradients and the loss, the other counts the
    targets. On accelerators a reduce-scatter replaces the first, which XLA does not make for CPUs.
    """
    fsdp = found["fsdp"]
    assert fsdp["matrices split over fsdp"] == 1 + 6 * fsdp["layers"]
    assert fsdp["collectives"] == {"all-gather": fsdp["matrices split over fsdp"], "all-reduce": 2}


def test_with_tensor_parallelism_a_layer_has_two_all_reduces_each_way(found):
    """A layer's two are those behind its attention and its feed-forward network (Shoeybi et al.,
    2019, https://arxiv.org/abs/1909.08053, figure 4).

    Five are not of a layer: the rows of the tokens, which lie on one device each; the maximum and
    the sum of the softmax over the vocabulary; the gradient of the head's input; and one for the
    norm of the gradients and the logit of the target.
    """
    tensor = found["tensor"]
    assert tensor["collectives"] == {"all-reduce": 5 + (2 + 2) * tensor["layers"]}


def test_with_fsdp_8_a_device_holds_a_seventh_of_the_state_or_less(found):
    """It is not an eighth, because biases and norms are whole on every device."""
    whole, on_a_device = found["fsdp"]["bytes of the state"]
    assert on_a_device <= whole / 7


def test_the_step_is_compiled_once_also_for_a_restored_checkpoint(found):
    once = found["compilations"]
    assert once["finite"]
    assert once["before"] == once["after"] == 1
    assert once["restored"] == once["here"]


def test_gradients_of_a_table_split_by_its_vocabulary_are_those_of_one_device(found):
    table = found["table"]
    assert table["rows on a device"] == 24, "the table is not split"
    assert table["difference"] <= 1e-6 and table["largest"] > 0.1


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_masked_rows_are_zero_and_reach_nothing_on_a_mesh(found, implementation):
    """Neither NaN in them nor another split of examples and heads changes an output or gradient."""
    masked = found["masked"][implementation]
    assert masked["examples and heads on a device"] == [1, 2]
    assert masked["largest where masked"] == 0 and masked["smallest elsewhere"] > 0.1
    assert masked["difference"] <= 1e-6
