"""The cost of training on a mesh: bytes, collectives and time, against the compiled step."""

import dataclasses
import json
import math
import os
import re
import subprocess
import sys
import types

import pytest

from tests.helpers.kills import ROOT
from transformer_jax.__main__ import main
from transformer_jax.cli.mesh_cost import fit, mesh_rows
from transformer_jax.cli.mesh_figures import Training, mesh_figures
from transformer_jax.costs import mesh as costs
from transformer_jax.costs.devices import DEVICES
from transformer_jax.costs.mesh import Collective
from transformer_jax.costs.step_time import StepTime, step_time, traffic_bytes
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.nn.config import StackConfig
from transformer_jax.parallel.mesh import AXES

ROWS, T, D = 64, 32, 64
STACK = StackConfig(2, D, 4, 256, norm="pre", final_norm=True, activation="gelu", dropout_rate=0.1)
CONFIG = LanguageModelConfig(128, T, STACK)
MESHES = ("fsdp=8", "data=2,fsdp=2,tensor=2", "data=1,fsdp=2,tensor=4")
# Compiles the real step on each mesh, and prints what it holds and what it does.
CHILD = """
import json, re, sys
import jax, numpy as np
from flax import nnx
from tests.costs.test_mesh import CONFIG, ROWS, T
from train.objectives.language_modeling import Windows
from train.optim.optimizers import make_optimizer
from train.tasks.language_modeling import LanguageModeling
from train.trainer.config import FitConfig
from train.trainer.step import TrainState, copied, make_train_step
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.parallel.mesh import place, split_rows, use_mesh
OPERATION = r"= (.*?) (all-gather|all-reduce|reduce-scatter|all-to-all)(?:-start)?\\("
tokens = np.zeros((ROWS, T), np.int32)
for mesh in sys.argv[1:]:
    with use_mesh(mesh):
        graph, params = nnx.split(LanguageModel(CONFIG, rngs=nnx.Rngs(0)), nnx.Param)
        params, config = place(params), FitConfig()
        optimizer = make_optimizer(config.optimizer, 10)
        state = TrainState.first(params, optimizer)
        held = [x for x in jax.tree.leaves((state, copied(params))) if x.ndim]
        held = [x.addressable_shards[0].data.nbytes for x in held]
        batch = split_rows(Windows(tokens, tokens, tokens == 0, None))
        step = make_train_step(graph, LanguageModeling.loss, optimizer, config)
        compiled = step.lower(state, batch).compile()
        memory = compiled.memory_analysis()
        found = re.findall(OPERATION, compiled.as_text())
        print(json.dumps({
            "mesh": mesh, "held": sum(held), "arguments": memory.argument_size_in_bytes,
            "temporaries": memory.temp_size_in_bytes,
            "operations": [[kind, re.findall(r"f32.([0-9,]+)", shapes)] for shapes, kind in found],
        }))
"""


def training(text, **changes):
    """The training of the small language model on a mesh."""
    sizes = dict.fromkeys(AXES, 1) | {n: int(s) for n, s in re.findall(r"(\w+)=(\d+)", text)}
    parts = sizes["data"] * sizes["fsdp"]
    given = {"config": CONFIG, "length": T, "dtype": "float32"} | changes
    return Training(LanguageModel, sizes=sizes, rows=ROWS // parts, **given)


@pytest.fixture(scope="module")
def compiled(computed_once):
    """The figures that the child prints for each mesh."""
    return computed_once("mesh_costs", figures)


def figures():
    environment = {"JAX_NUM_CPU_DEVICES": "8", "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *MESHES],
        env=os.environ | environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return {one["mesh"]: one for one in map(json.loads, done.stdout.splitlines())}


def arrays(found, kind):
    """The shapes of the arrays in the operations of one kind."""
    shapes = [shape for one, shapes in found["operations"] if one == kind for shape in shapes]
    return [tuple(map(int, shape.split(","))) for shape in shapes]


def predicted(found, kind):
    """The number and bytes of the arrays in the predicted operations of one kind."""
    operations = [one for one in found.collectives(scatters=False) if one.kind == kind]
    return sum(one.number for one in operations), sum(one.size for one in operations)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_the_bytes_of_the_state_are_those_that_a_device_holds(mesh, compiled):
    state = costs.state_bytes(training(mesh).shapes, training(mesh).sizes)
    assert sum(state.values()) == compiled[mesh]["held"]
    without_best = sum(state.values()) - state[costs.BEST]
    assert compiled[mesh]["arguments"] == pytest.approx(without_best, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_the_collectives_are_those_of_the_compiled_step(mesh, compiled):
    """Scalars do not count. XLA makes no reduce-scatter on CPUs, but an all-reduce of it all."""
    assert arrays(compiled[mesh], "reduce-scatter") == arrays(compiled[mesh], "all-to-all") == []
    for kind in ("all-gather", "all-reduce"):
        found = arrays(compiled[mesh], kind)
        assert (len(found), 4 * sum(map(math.prod, found))) == predicted(training(mesh), kind)


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
def test_the_bytes_of_a_step_are_within_a_tenth_of_those_that_xla_needs(mesh, compiled):
    """Attention of so few tokens stores its weights. XLA frees some before it makes others."""
    found = training(mesh)
    kept = found.activations("reference").total()
    work = costs.work_bytes(found.shapes, found.sizes, "float32")
    gradient = costs.gradient_bytes(found.shapes, found.sizes)
    assert compiled[mesh]["temporaries"] == pytest.approx(kept + work + gradient, rel=0.1)


# By hand ------------------------------------------------------------------------------------------


def named(found, **options):
    """The collectives of a training as (what, kind, axes): (number, bytes)."""
    operations = found.collectives(**options)
    return {(one.what, one.kind, one.axes): (one.number, one.size) for one in operations}


def test_fsdp_gathers_each_matrix_once_and_scatters_its_gradient():
    found = named(training("fsdp=8"))
    split = 2 * 6 + 2  # four matrices of attention and two of the network a layer, two tables
    size = 4 * (2 * (4 * D * D + 2 * 256 * D) + (128 + T) * D)
    fsdp = ("fsdp",)
    assert found["weights for work", "all-gather", fsdp] == (split, size)
    # The lookup in the table and the head have a gradient each.
    assert found["gradients", "reduce-scatter", fsdp] == (split + 1, size + 4 * 128 * D)
    assert len(found) == 3 and ("gradients", "all-reduce", fsdp) in found
    whole = named(training("fsdp=8"), scatters=False)["gradients", "all-reduce", fsdp]
    assert whole[0] == len(training("fsdp=8").shapes) + 1


def test_remat_gathers_the_weights_of_the_layers_twice_and_keeps_one_layer():
    plain, remat = (named(training("fsdp=8"), remat=r) for r in (False, True))
    gather = ("weights for work", "all-gather", ("fsdp",))
    assert remat[gather][0] - plain[gather][0] == 2 * 6
    found = training("fsdp=8")
    works = [costs.work_bytes(found.shapes, found.sizes, "float32", remat=r) for r in (0, 1)]
    assert works[0] - works[1] == 4 * (4 * D * D + 2 * 256 * D)  # one of two layers
    kept = found.activations("blockwise")
    ((layer, number),) = kept.layers
    assert number == 2 and kept.layer_input == 4 * ROWS // 8 * T * D
    assert kept.total() - kept.total(remat=True) == layer - kept.layer_input


def test_data_parallelism_moves_gradients_only():
    found = named(training("data=8"))
    assert list(found) == [("gradients", "all-reduce", ("data",))]
    assert named(training("data=1")) == {}


def test_tensor_parallelism_sums_twice_forward_in_a_layer_and_once_for_each_input():
    found, token = named(training("tensor=4")), 4 * ROWS * T
    tensor = ("all-reduce", ("tensor",))
    assert found["sums, forward", *tensor] == (2 * 2 + 1, (2 * 2 + 1) * token * D)
    # Queries, keys, values and the feed-forward network in each layer; the head.
    assert found["sums, backward", *tensor] == (2 * 4 + 1, (2 * 4 + 1) * token * D)
    assert found["softmax of the tokens", *tensor] == (3, 3 * token)


def test_remat_repeats_the_sums_that_a_gradient_needs():
    """The last sum of a layer is the input of the next, unless a norm follows it in the layer."""
    sums = "sums, forward", "all-reduce", ("tensor",)
    assert named(training("tensor=4"), remat=True)[sums][0] == 2 * 3 + 1
    post = dataclasses.replace(CONFIG, decoder=dataclasses.replace(STACK, norm="post"))
    assert named(training("tensor=4", config=post), remat=True)[sums][0] == 2 * 4 + 1


def test_heads_that_do_not_divide_are_computed_on_every_device():
    eight, four = training("tensor=8"), training("tensor=4")
    assert named(eight)["sums, forward", "all-reduce", ("tensor",)][0] == 2 + 1
    assert eight.share.decoder.num_heads == 4 and eight.share.decoder.hidden_dim == 256 // 8
    assert four.share.decoder.num_heads == 1 and four.share.decoder.head_dim == 16
    assert four.share.vocab_size == 128 // 4 and four.share.decoder.embed_dim == D


def test_keys_that_do_not_divide_have_a_gradient_from_each_part_of_the_heads():
    stack = dataclasses.replace(STACK, num_kv_heads=2)
    found = training("tensor=4", config=dataclasses.replace(CONFIG, decoder=stack))
    assert named(found)["sums, backward", "all-reduce", ("tensor",)][0] == 2 * 4 + 1
    assert found.share.decoder.num_heads == found.share.decoder.num_kv_heads == 1


def test_bfloat16_halves_what_moves_and_adds_weights_at_work():
    wide, narrow = training("fsdp=8"), training("fsdp=8", dtype="bfloat16")
    for first, second in zip(wide.collectives(), narrow.collectives(), strict=True):
        assert first.size == 2 * second.size
    one = training("data=8")
    assert costs.work_bytes(one.shapes, one.sizes, "float32") == 0
    total = sum(map(math.prod, one.shapes.values()))
    assert costs.work_bytes(one.shapes, one.sizes, "bfloat16") == 2 * total


def test_a_ring_moves_its_share_by_the_slowest_of_its_links():
    device = DEVICES["h100"]
    sizes = {"data": 4, "fsdp": 8, "tensor": 1}
    gather = Collective("", "all-gather", ("fsdp",), 1, 8_000_000)
    assert gather.moved(sizes) == 7_000_000
    assert gather.seconds(sizes, device) == 7_000_000 / 450e9  # in a node of eight
    reduce = Collective("", "all-reduce", ("data",), 1, 4_000_000)
    assert reduce.moved(sizes) == 6_000_000
    assert reduce.seconds(sizes, device) == 6_000_000 / 50e9  # each node has one device of a ring
    both = Collective("", "all-reduce", ("data", "fsdp"), 1, 32_000_000)
    assert both.moved(sizes) == 62_000_000
    assert both.seconds(sizes, device) == 62_000_000 / 400e9  # through the links of eight
    split = {"data": 1, "fsdp": 8, "tensor": 4}  # two of the eight are in the node
    assert gather.seconds(split, device) == 7_000_000 / 100e9


def test_the_longest_time_is_the_limit():
    time = StepTime(compute=3.0, memory=2.0, network=1.0)
    assert (time.overlapped, time.sequential, time.limit) == (3.0, 4.0, "compute")
    assert StepTime(1.0, 3.0, 2.0).limit == "memory bandwidth"
    assert StepTime(1.0, 3.0, 4.0).limit == "network"
    device, sizes = DEVICES["a100"], {"data": 1, "fsdp": 2, "tensor": 1}
    gather = Collective("", "all-gather", ("fsdp",), 1, 2 * 300_000)
    found = step_time(156e9, 2.039e9, [gather, gather], sizes, device, "float32")
    assert (found.compute, found.memory, found.network) == (1e-3, 1e-3, 2e-6)
    assert step_time(312e9, 0, [], sizes, device, "bfloat16").compute == 1e-3
    assert traffic_bytes(1000, 100, 10, 1, remat=False) == 2232
    assert traffic_bytes(1000, 100, 10, 1, remat=True) == 2253


@pytest.mark.parametrize("device", DEVICES.values(), ids=DEVICES)
def test_the_figures_of_a_device_are_in_units_and_have_sources(device):
    assert 1e14 < device.float32 <= device.bfloat16 < 1e15
    assert 1e10 < device.memory < 2e11 and 5e11 < device.memory_bandwidth < 1e13
    assert 1e9 < device.far < device.near < 1e12 and device.domain in (8, 256, 8960)
    assert device.sources and all(url.startswith("https://") for url in device.sources)


# The command --------------------------------------------------------------------------------------


def cost(capsys, *arguments):
    code = main(["cost", *map(str, arguments)])
    out, err = capsys.readouterr()
    return types.SimpleNamespace(code=code, out=out, err=err)


def test_the_command_shows_bytes_collectives_time_and_the_limit(capsys):
    mesh = ["--mesh", "data=64,fsdp=8", "--device", "h100", "--json"]
    shown = cost(capsys, "gpt2", "--batch", 8192, "--length", 512, "--dtype", "bfloat16", *mesh)
    found = json.loads(shown.out)["mesh"]
    split = (50_257 + 1024) * 768 + 12 * 12 * 768**2  # tables and matrices
    on_device = split // 8 + 12 * (4 + 5 + 4) * 768 + 2 * 768
    assert sum(found["state_bytes"].values()) == 5 * 4 * on_device
    assert found["rows"] == 16 and found["devices"] == 512
    plain, remat = found["plain"], found["remat"]
    assert remat["bytes"] < plain["bytes"] and remat["flops"] > plain["flops"]
    assert plain["limit"] == "compute" and plain["seconds"]["overlapped"] == (
        pytest.approx(plain["flops"] / (1979e12 / 2))
    )
    lines = list(mesh_rows(found, "bfloat16"))
    assert max(map(len, lines)) <= 100
    text = "\n".join(lines)
    assert "512 x NVIDIA H100 SXM: data 64, fsdp 8, tensor 1; 16 rows" in text
    assert "all-gather over fsdp" in text and re.search(r"binds +compute +memory bandwidth", text)
    assert "80.0 GB   fits" in text


def test_a_model_that_does_not_fit_is_said(capsys):
    """A device alone is a mesh of one."""
    sizes = ["--batch", 64, "--length", 512]
    shown = cost(capsys, "distilbert", "--device", "tpu-v5e", *sizes).out
    assert "  none" in shown and "16.0 GB   fits with remat only" in shown
    found = {"plain": {"fits": False}, "remat": {"fits": False}}
    assert fit(found) == "DOES NOT FIT"


TEXT = TextEncoderConfig(128, T, dataclasses.replace(STACK, norm="post"))
KINDS = {
    "TextClassifier": ClassifierConfig(
        128, T, encoder=STACK, region_width=3, region_features=16, patch_width=4, ngrams=2
    ),
    "EncoderClassifier": EncoderClassifierConfig(TEXT),
    "MaskedLanguageModel": TEXT,
    "SequenceToSequence": SequenceToSequenceConfig(128, T, STACK, STACK),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_model_has_a_cost(kind):
    described = types.SimpleNamespace(model=kind, config=KINDS[kind])
    given = {"batch": 8, "length": T, "dtype": "float32", "device": "h100"}
    options = types.SimpleNamespace(mesh="data=2,fsdp=2,tensor=2", **given)
    found = mesh_figures(described, options)
    kinds = {one["kind"] for one in found["plain"]["collectives"]}
    assert kinds == {"all-gather", "reduce-scatter", "all-reduce"}
    assert 0 < found["remat"]["activation_bytes"] < found["plain"]["activation_bytes"]
    assert found["state_bytes"]["parameters"] < 1_000_000  # without n-grams: a solver fits them


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mesh", "data=2"], r"--mesh needs .* pass --device, one of h100, h200, a100, tpu-v5e"),
        (["--device", "tpu-v5"], r"--device 'tpu-v5' is not known; did you mean tpu-v5.*pass one"),
        (["--device", "h100", "--mesh", "data=4"], r"--batch 1 has fewer texts than the 4 parts"),
        (["--device", "h100", "--mesh", "model=4"], r"--mesh has no axis 'model'"),
        (["--device", "h100", "--mesh", "fsdp=-1"], r"--mesh fsdp=-1: -1 needs devices to count"),
        (["--device", "h100", "--dtype", "float16"], r"--dtype float16 is not for training"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    shown = cost(capsys, "gpt2", *arguments)
    assert shown.code == 2 and shown.out == "" and shown.err.count("\n") == 1
    assert re.search(message, shown.err)
