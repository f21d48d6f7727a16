"""The fit loop on a task small enough to see through."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train import checkpoints
from train.classification import make_loss
from train.loop import fit
from train.optimizers import OptimizerConfig, decayed, learning_rate_schedule, make_optimizer
from train.step import FitConfig, TrainState, make_train_step
from transformer_jax.batching import Batch
from transformer_jax.config import ClassifierConfig, EncoderConfig
from transformer_jax.models import TextClassifier
from transformer_jax.modules import Linear
from transformer_jax.tokenizers import train_tokenizer

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)


def error(params):
    return {"score": -float(np.square(X @ params.kernel[...] + params.bias[...] - Y).mean())}


def run_fit(run, *, epochs=3, validate=error, resume=False, **changes):
    """A linear map fitted to Y, four batches an epoch; `noise` makes every step depend on its key."""

    def loss(model, batch, rngs):
        x, y = batch
        noise = 0.01 * jax.random.normal(rngs.dropout(), x.shape)
        return jnp.square(model(x + noise) - y).mean()

    def batches(epoch):
        order = np.random.default_rng([7, epoch]).permutation(32).reshape(4, 8)
        return [(X[rows], Y[rows]) for rows in order]

    kept = []
    run.mkdir(exist_ok=True)
    changes = {"average_decay": 0.0, "optimizer": OptimizerConfig(0.1, warmup_fraction=0)} | changes
    result = fit(
        Linear(3, 1, rngs=nnx.Rngs(0)),
        loss,
        batches,
        validate,
        config=FitConfig(epochs=epochs, seed=3, **changes),
        run=run,
        select="score",
        count_tokens=lambda batch: 8,
        keep=kept.append,
        resume=resume,
    )
    return result, kept


def lines(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_loss_falls_and_every_epoch_is_validated(tmp_path):
    result, _ = run_fit(tmp_path, epochs=6)
    evaluations = [line["score"] for line in lines(tmp_path) if "score" in line]
    assert len(evaluations) == 6
    assert evaluations[-1] > 0.2 * evaluations[0]
    assert result.progress.step == 24
    assert result.progress.tokens == 24 * 8


def test_best_epoch_is_kept_and_not_the_last(tmp_path):
    scores = iter([0.1, 0.9, 0.5])
    weights = []

    def validate(params):
        weights.append(np.asarray(params.kernel[...]))
        return {"score": next(scores)}

    result, kept = run_fit(tmp_path, validate=validate)
    assert result.progress.best_epoch == 2
    assert len(kept) == 2
    np.testing.assert_array_equal(result.params.kernel[...], weights[1])
    assert not np.array_equal(weights[1], weights[2])


def test_same_seed_gives_the_same_bits(tmp_path):
    first, _ = run_fit(tmp_path / "a")
    second, _ = run_fit(tmp_path / "b")
    np.testing.assert_array_equal(first.params.kernel[...], second.params.kernel[...])


def test_resumed_run_ends_with_the_bits_of_an_uninterrupted_one(tmp_path):
    whole, _ = run_fit(tmp_path / "whole")

    class Stop(Exception):
        pass

    calls = []

    def stop_in_second_epoch(params):
        calls.append(params)
        if len(calls) == 2:
            raise Stop
        return error(params)

    with pytest.raises(Stop):
        run_fit(tmp_path / "cut", validate=stop_in_second_epoch)
    resumed, _ = run_fit(tmp_path / "cut", resume=True)
    np.testing.assert_array_equal(resumed.params.kernel[...], whole.params.kernel[...])
    timeless = ("step", "epoch", "loss", "learning_rate")
    steps = [
        [{k: line.get(k) for k in timeless} for line in lines(tmp_path / n)]
        for n in ("whole", "cut")
    ]
    assert steps[0] == steps[1]


def test_checkpoint_cut_short_is_not_used(tmp_path):
    run_fit(tmp_path)
    folder = tmp_path / "checkpoints"
    (newest,) = folder.iterdir()
    (newest / "progress.json").unlink()
    assert checkpoints.load(folder, {"x": jnp.zeros(1)}) is None


def test_max_steps_ends_the_run_and_its_schedule(tmp_path):
    result, _ = run_fit(tmp_path, max_steps=6)
    assert result.progress.step == 6
    config = OptimizerConfig(learning_rate=1.0, warmup_fraction=0.5)
    schedule = learning_rate_schedule(config, 10)
    assert [float(schedule(step)) for step in (0, 5, 10)] == pytest.approx([0.0, 1.0, 0.0])


def test_average_follows_the_weights_with_a_short_memory_at_first(tmp_path):
    averaged, _ = run_fit(tmp_path / "a", average_decay=0.999)
    plain, _ = run_fit(tmp_path / "b", average_decay=0.0)
    assert not np.array_equal(averaged.params.kernel[...], plain.params.kernel[...])
    np.testing.assert_allclose(averaged.params.kernel[...], plain.params.kernel[...], atol=0.5)


def test_kernels_decay_and_embeddings_norms_and_biases_do_not():
    encoder = EncoderConfig(1, 6, 2, 8, norm="pre")
    for regions in (0, 4):
        config = ClassifierConfig(11, 5, encoder=encoder, region_features=regions)
        model = nnx.eval_shape(lambda c=config: TextClassifier(c, rngs=nnx.Rngs(0)))
        params = nnx.state(model, nnx.Param)
        flat = jax.tree_util.tree_flatten_with_path(decayed(params))[0]
        names = {
            "/".join(str(getattr(k, "key", "")) for k in path): decays for path, decays in flat
        }
        assert {name.split("/")[-2] for name, decays in names.items() if decays} == {
            "in_kernel", "out_kernel", "query_kernel", "key_kernel", "value_kernel", "kernel",
        }  # fmt: skip
        assert all(jax.tree.leaves(decayed(params, everything=True)))


def test_named_parameters_take_larger_steps():
    params = nnx.state(Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Param)
    gradient = jax.tree.map(jnp.ones_like, params)

    def steps(**changes):
        config = OptimizerConfig(1e-2, "constant", warmup_fraction=0, weight_decay=0, **changes)
        optimizer = make_optimizer(config, 1)
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    plain, faster = steps(), steps(faster=(("kernel", 5.0),))
    np.testing.assert_allclose(faster.kernel[...], 5 * plain.kernel[...], rtol=1e-6)
    np.testing.assert_array_equal(faster.bias[...], plain.bias[...])


def test_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="cosine or constant"):
        OptimizerConfig(schedule="linear")


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_train_step_lowers(platform):
    encoder = EncoderConfig(1, 6, 2, 8, norm="pre")
    config = ClassifierConfig(11, 8, encoder=encoder, region_width=3, region_features=4)
    tokenizer = train_tokenizer("word:11", ["some words to know of here"])
    graph, params = nnx.split(TextClassifier(config, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = make_optimizer(OptimizerConfig(), 10)
    loss = make_loss(tokenizer, token_dropout=0.1, smoothing=0.1)
    step = make_train_step(graph, loss, optimizer, FitConfig(dtype="bfloat16"))
    state = TrainState(jnp.zeros((), jnp.int32), params, params, optimizer.init(params))
    rows = jnp.zeros(2, jnp.int32)
    batch = Batch(jnp.ones((2, 8), jnp.int32), rows, rows == 0, rows)

    def flat(*leaves):  # jax.export keeps no record of NNX's own containers
        state, batch = jax.tree.unflatten(structure, leaves)
        return jax.tree.leaves(step(state, batch))

    leaves, structure = jax.tree.flatten((state, batch))
    exported = jax.export.export(jax.jit(flat), platforms=[platform])(*leaves)
    assert exported.platforms == (platform,)
    assert len(exported.out_avals) == len(jax.tree.leaves(state)) + 1
