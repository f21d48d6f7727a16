"""The fit loop on a task small enough to see through."""

import json
import shutil
import signal
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.kills import state_arrays
from train.objectives.batches import LazyBatches
from train.objectives.classification import make_loss
from train.optim.config import Rates
from train.optim.optimizers import (
    OptimizerConfig,
    decayed,
    learning_rate_schedule,
    make_optimizer,
)
from train.trainer.config import FitConfig
from train.trainer.faults import TrainingError
from train.trainer.fit import LOG_EVERY, SKIPPED_LIMIT, fit
from train.trainer.signals import Stopped
from train.trainer.step import TrainState, make_train_step
from transformer_jax.models.config import ClassifierConfig, SequenceToSequenceConfig
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.layers import Linear
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import parameter_name
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import train_tokenizer

X = np.random.default_rng(0).normal(size=(32, 3)).astype(np.float32)
Y = X @ np.array([[1.0], [-2.0], [0.5]], np.float32)


def error(params):
    return {"score": -float(np.square(X @ params.kernel[...] + params.bias[...] - Y).mean())}


def noisy_error(model, batch, rngs):
    """`noise` makes every step depend on its key; bad = (added to the loss, 1 for a NaN in its
    gradient).
    """
    x, y, bad = batch
    noise = 0.01 * jax.random.normal(rngs.dropout(), x.shape)
    value = jnp.square(model(x + noise) - y).mean()
    k = model.kernel[0, 0]
    bent = jax.lax.cond(bad[1] > 0, lambda k: jnp.sqrt(0 * k), lambda k: 0 * k, k)
    return value + bad[0] + bent, jnp.float32(1)


def make_batch(n, bad=(0, 0)):
    """The n-th batch of the run: four an epoch, in another order each."""
    rows = np.random.default_rng([7, n // 4]).permutation(32).reshape(4, 8)[n % 4]
    return X[rows], Y[rows], np.array(bad, np.float32)


def run_fit(
    run,
    *,
    epochs=3,
    validate=error,
    resume=False,
    on_batch=None,
    bad=lambda n: (0, 0),
    kept=None,
    **changes,
):
    """A linear map fitted to Y. `on_batch(n)` is called as the n-th batch is made, `bad(n)` may
    spoil it.
    """

    def make(n):
        if on_batch:
            on_batch(n)
        return make_batch(n, bad(n))

    kept = [] if kept is None else kept
    run.mkdir(exist_ok=True)
    changes = {"average_decay": 0.0, "optimizer": OptimizerConfig(0.1, warmup_fraction=0)} | changes
    objective = SimpleNamespace(
        trained=Linear(3, 1, rngs=nnx.Rngs(0)),
        loss=noisy_error,
        batches=lambda epoch: LazyBatches(range(4 * epoch, 4 * epoch + 4), make),
        validate=validate,
        select="score",
        count_tokens=lambda batch: 8,
        keep=lambda *given: kept.append(given),
    )
    config = FitConfig(epochs=epochs, seed=3, **changes)
    return fit(objective, config, run, resume=resume), kept


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
    assert [after for _, after in kept] == [(0, 12), (4, 12), (8, 12), (12, 12), None]
    for (params, _), best in zip(kept[1:], [0, 1, 1, 1], strict=True):
        np.testing.assert_array_equal(params.kernel[...], weights[best])
    np.testing.assert_array_equal(result.params.kernel[...], weights[1])
    assert not np.array_equal(weights[1], weights[2])


def test_same_seed_gives_the_same_bits_and_each_shape_is_said_to_be_compiled(tmp_path, capsys):
    first, _ = run_fit(tmp_path / "a")
    said = capsys.readouterr().err.splitlines()
    assert said == ["compiling the training step for batches of 8 x 3 ...", "validating ..."]
    second, _ = run_fit(tmp_path / "b")
    np.testing.assert_array_equal(first.params.kernel[...], second.params.kernel[...])


def same_but_for_time(one, other):
    """Two runs are the same: every weight, every line of metrics, every count of the last
    checkpoint.
    """
    timed = {"tokens_per_second", "train_seconds", "step_seconds", "save_seconds", "losses_seconds"}

    def timeless(record):
        return {k: v for k, v in record.items() if k not in timed}

    assert list(map(timeless, lines(one))) == list(map(timeless, lines(other)))
    states = []
    for run in (one, other):
        newest = max((run / "checkpoints").glob("step-*"))
        progress = timeless(json.loads((newest / "progress.json").read_text()))
        progress.pop("metrics_bytes")  # the digits of the seconds
        states.append((newest.name, progress))
    assert states[0] == states[1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of 3 epochs of 4 steps that nothing stopped."""
    run = tmp_path_factory.mktemp("whole") / "run"
    result, _ = run_fit(run, validate=wavering())
    return run, result


FEW = ((1, 5.0), (6, 0.0), (7, 5.0), (12, 5.0))  # before, between and after checkpoints


def wavering():
    """The second epoch is the best; the state of the loop, not the count of calls, decides."""
    return lambda params: {"score": -abs(float(np.asarray(params.kernel[...])[0, 0]) - 0.75)}


@pytest.mark.parametrize(
    ("at", "minutes"),
    [
        pytest.param(at, minutes, marks=[] if (at, minutes) in FEW else [pytest.mark.slow])
        for at in range(1, 13)
        for minutes in (0.0, 5.0)
    ],
)
def test_a_run_stopped_after_any_step_goes_on_to_the_same_bits(at, minutes, whole, tmp_path):
    """SIGTERM, as a batch of that step is asked for; with a checkpoint at every step, or none by
    minutes.
    """
    asked = []

    def stop(step):
        asked.append(step)
        if len(asked) == at:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped) as stopped:
        run_fit(tmp_path / "run", validate=wavering(), on_batch=stop, checkpoint_minutes=minutes)
    assert stopped.value.number == signal.SIGTERM
    assert len(asked) == at  # the step was finished, and no other begun
    result, _ = run_fit(tmp_path / "run", validate=wavering(), resume=True)
    np.testing.assert_array_equal(result.params.kernel[...], whole[1].params.kernel[...])
    same_but_for_time(tmp_path / "run", whole[0])


def test_a_run_stopped_before_its_first_validation_keeps_the_latest_average(tmp_path):
    def stop(n):
        if n == 2:
            signal.raise_signal(signal.SIGTERM)

    kept = []
    with pytest.raises(Stopped):
        run_fit(tmp_path, on_batch=stop, average_decay=0.5, kept=kept)
    assert [after for _, after in kept] == [(0, 12), (3, 12)]
    arrays = state_arrays(tmp_path)
    (average,) = (arrays[name] for name in arrays if "average" in name and "kernel" in name)
    np.testing.assert_array_equal(kept[1][0].kernel[...], average)
    assert not np.array_equal(kept[0][0].kernel[...], average)


def test_a_run_broken_off_anywhere_goes_on_to_the_same_bits(whole, tmp_path):
    """Not a wish but a fault, in the middle of validation: the last checkpoint is what there is."""

    class Fault(Exception):
        pass

    for at in (1, 2, 3):
        run, calls = tmp_path / str(at), []

        def fail(params, at=at, calls=calls):
            calls.append(params)
            if len(calls) == at:
                raise Fault
            return wavering()(params)

        with pytest.raises(Fault):
            run_fit(run, validate=fail)
        with open(run / "metrics.jsonl", "a") as file:
            file.write('{"step": 99, "half a li')  # what a kill leaves of a line
        result, _ = run_fit(run, validate=wavering(), resume=True)
        np.testing.assert_array_equal(result.params.kernel[...], whole[1].params.kernel[...])
        same_but_for_time(run, whole[0])


def test_a_damaged_checkpoint_costs_the_steps_since_the_one_before(whole, tmp_path, capfd):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    newest = max((run / "checkpoints").glob("step-*"))
    (newest / "progress.json").write_text("{}")
    result, _ = run_fit(run, validate=wavering(), resume=True)
    np.testing.assert_array_equal(result.params.kernel[...], whole[1].params.kernel[...])
    same_but_for_time(run, whole[0])
    said = capfd.readouterr()
    assert newest.name in said.out and "the checkpoint before it" in said.out


def test_a_finished_fit_resumed_does_nothing_more(whole, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)

    def fail(step):
        raise AssertionError("a step was taken")

    result, kept = run_fit(run, validate=fail, on_batch=fail, resume=True)
    np.testing.assert_array_equal(result.params.kernel[...], whole[1].params.kernel[...])
    for params, _ in kept:
        np.testing.assert_array_equal(params.kernel[...], result.params.kernel[...])
    same_but_for_time(run, whole[0])


def test_a_second_signal_would_end_the_process_at_once(tmp_path):
    """After the first, the system's own action stands; before and afterwards, what stood there."""
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def stop(step):
        signal.raise_signal(signal.SIGINT)
        seen.extend(signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM))

    with pytest.raises(Stopped) as stopped:
        run_fit(tmp_path, on_batch=stop)
    assert seen == [signal.SIG_DFL, signal.SIG_DFL]
    assert signal.getsignal(signal.SIGINT) is before
    assert stopped.value.number == signal.SIGINT and isinstance(stopped.value, KeyboardInterrupt)


def test_the_clock_on_the_wall_may_jump(whole, tmp_path, monkeypatch):
    """Durations come from the monotonic clock, order from the numbers of steps."""
    jumps = iter(range(10**9, -(10**9), -(10**6)))
    monkeypatch.setattr(time, "time", lambda: float(next(jumps)))
    result, _ = run_fit(tmp_path / "run", validate=wavering(), checkpoint_minutes=0)
    np.testing.assert_array_equal(result.params.kernel[...], whole[1].params.kernel[...])
    assert 0 <= result.progress.train_seconds < 600
    same_but_for_time(tmp_path / "run", whole[0])


@pytest.mark.parametrize("one_cpu", [True, False])  # with a branch, and with a selection
@pytest.mark.parametrize("bad", [(np.nan, 0), (np.inf, 0), (0, 1)])
def test_a_step_that_is_not_finite_changes_nothing_and_is_counted(
    bad, one_cpu, tmp_path, monkeypatch
):
    """NaN or infinity in the loss, NaN in the gradient alone."""
    monkeypatch.setattr("train.trainer.step.is_one_cpu", lambda: one_cpu)
    graph, params = nnx.split(Linear(3, 1, rngs=nnx.Rngs(0)), nnx.Param)
    optimizer = make_optimizer(OptimizerConfig(), 10)
    step = make_train_step(graph, noisy_error, optimizer, FitConfig())
    state = TrainState(jnp.zeros((), jnp.int32), params, params, optimizer.init(params))
    before = jax.tree.map(np.asarray, state)
    after, value = step(jax.tree.map(jnp.array, state), make_batch(0, bad))
    assert np.isnan(value)
    assert int(after.step) == 1
    jax.tree.map(np.testing.assert_array_equal, before, after._replace(step=before.step))

    result, _ = run_fit(tmp_path, epochs=1, bad=lambda n: bad if n == 2 else (0, 0))
    assert (result.progress.skipped, result.progress.skipped_in_a_row) == (1, 0)
    assert result.progress.step == 4
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    line = lines(tmp_path)[0]
    assert line["skipped"] == 1 and np.isfinite(line["loss"])


def test_a_loss_that_stays_nan_ends_the_run_and_keeps_what_was_good(tmp_path):
    with pytest.raises(TrainingError, match=r"in 1\d steps in a row") as error_:
        run_fit(tmp_path, epochs=9, bad=lambda n: (np.nan, 0) if n > 3 else (0, 0))
    assert "\n" not in str(error_.value) and "learning rate" in str(error_.value)
    assert not error_.value.mendable
    assert [p.name for p in (tmp_path / "checkpoints").glob("step-*")] == [
        "step-00000004-epochs-001"
    ]
    assert lines(tmp_path)[-1]["loss"] is None
    assert SKIPPED_LIMIT <= lines(tmp_path)[-1]["step"] - 4 < SKIPPED_LIMIT + LOG_EVERY
    assert lines(tmp_path)[-1]["skipped"] > 0


def test_a_score_that_is_not_finite_is_never_the_best(tmp_path):
    scores = iter([float("nan"), 0.5, float("inf")])
    result, _ = run_fit(tmp_path, validate=lambda params: {"score": next(scores)})
    assert result.progress.best_epoch == 2
    assert [line["score"] for line in lines(tmp_path) if "score" in line] == [None, 0.5, None]


def test_a_metrics_file_that_was_cut_is_said_and_written_on(whole, tmp_path, capfd):
    run = tmp_path / "run"
    shutil.copytree(whole[0], run)
    (run / "metrics.jsonl").write_text("")
    run_fit(run, validate=wavering(), resume=True)
    assert "lacks lines" in "".join(capfd.readouterr())


def test_max_steps_ends_the_run_and_its_schedule(tmp_path):
    result, _ = run_fit(tmp_path, max_steps=6)
    assert result.progress.step == 6
    config = OptimizerConfig(learning_rate=1.0, warmup_fraction=0.5)
    schedule = learning_rate_schedule(config, 10)
    assert [float(schedule(step)) for step in (0, 5, 10)] == pytest.approx([0.0, 1.0, 0.0])


def test_a_constant_rate_without_warm_up_is_that_rate_from_the_first_step():
    config = OptimizerConfig(learning_rate=0.25, schedule="constant", warmup_fraction=0.0)
    schedule = learning_rate_schedule(config, 10)
    assert [float(schedule(step)) for step in (0, 1, 9)] == [0.25, 0.25, 0.25]


def test_average_follows_the_weights_with_a_short_memory_at_first(tmp_path):
    averaged, _ = run_fit(tmp_path / "a", average_decay=0.999)
    plain, _ = run_fit(tmp_path / "b", average_decay=0.0)
    assert not np.array_equal(averaged.params.kernel[...], plain.params.kernel[...])
    np.testing.assert_allclose(averaged.params.kernel[...], plain.params.kernel[...], atol=0.5)


def test_kernels_decay_and_embeddings_norms_and_biases_do_not():
    encoder = StackConfig(1, 6, 2, 8, norm="pre")
    for regions in (0, 4):
        config = ClassifierConfig(11, 5, encoder=encoder, region_features=regions)
        model = nnx.eval_shape(lambda c=config: TextClassifier(c, rngs=AbstractRngs()))
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
    gradient = jax.tree.map(np.ones_like, params)

    def steps(**changes):
        config = OptimizerConfig(1e-2, "constant", warmup_fraction=0, weight_decay=0, **changes)
        optimizer = make_optimizer(config, 1)
        update = jax.jit(lambda *of: optimizer.update(of[0], optimizer.init(of[1]), of[1])[0])
        return update(gradient, params)

    plain, faster = steps(), steps(rates=Rates(faster=(("kernel", 5.0),)))
    np.testing.assert_allclose(faster.kernel[...], 5 * plain.kernel[...], rtol=1e-6)
    np.testing.assert_array_equal(faster.bias[...], plain.bias[...])


def test_muon_takes_the_matrices_of_the_layers_and_nothing_else():
    """Its first step is orthogonal times the rate. Biases, norms and tables are AdamW's, whose
    first step is the rate, times 1 + b1 / (1 + b1) with Nesterov's momentum."""
    stack = StackConfig(1, 12, 2, 24, norm="pre", final_norm=True)
    config = SequenceToSequenceConfig(11, 8, encoder=stack, decoder=stack)
    model = nnx.eval_shape(lambda: SequenceToSequence(config, rngs=AbstractRngs()))
    rng = np.random.default_rng(0)
    params, gradient = (
        jax.tree.map(lambda p: rng.normal(size=p.shape).astype(np.float32), each)
        for each in [nnx.state(model, nnx.Param)] * 2
    )
    config = OptimizerConfig(
        1e-3, muon_rate=0.02, schedule="constant", warmup_fraction=0, weight_decay=0
    )
    optimizer = make_optimizer(config, 1)
    steps = jax.jit(lambda *of: optimizer.update(of[0], optimizer.init(of[1]), of[1])[0])(
        gradient, params
    )
    found = set()
    for path, step in jax.tree_util.tree_flatten_with_path(steps)[0]:
        name = parameter_name(path)
        if not name.endswith("kernel"):
            np.testing.assert_allclose(
                np.abs(step), 1e-3 * (1 + 0.9 / 1.9), rtol=1e-3, err_msg=name
            )
            continue
        found.add(name.split(".", 3)[3])
        inputs = 24 if name.endswith("feed_forward.out_kernel") else 12
        matrix = np.asarray(step).reshape(inputs, -1)
        larger = max(1, matrix.shape[1] / inputs) ** 0.5
        sizes = np.linalg.svd(matrix, compute_uv=False) / (0.02 * larger)
        assert sizes.min() > 0.5 and sizes.max() < 1.4, name
    attentions = {
        f"{a}.{k}_kernel"
        for a in ("attention", "cross_attention")
        for k in ("query", "key", "value", "out")
    }
    assert found == attentions | {"feed_forward.in_kernel", "feed_forward.out_kernel"}


def test_unknown_schedule_is_refused():
    with pytest.raises(ValueError, match="cosine or constant"):
        OptimizerConfig(schedule="linear")


@pytest.mark.parametrize(
    "options", [{"muon_rate": -1.0}, {"muon_rate": 0.1, "rates": Rates(head=2.0)}]
)
def test_a_muon_rate_that_cannot_be_is_refused(options):
    with pytest.raises(ValueError, match="muon_rate"):
        OptimizerConfig(**options)


@pytest.mark.parametrize("platform", ["cuda", "tpu"])
def test_the_train_step_lowers(platform):
    encoder = StackConfig(1, 6, 2, 8, norm="pre")
    config = ClassifierConfig(
        11, 8, encoder=encoder, region_width=3, region_features=4, patch_width=3
    )
    tokenizer = train_tokenizer("word:11", ["some words to know of here"])
    model = nnx.eval_shape(lambda: TextClassifier(config, rngs=AbstractRngs()))
    graph, params = nnx.split(model, nnx.Param)
    optimizer = make_optimizer(OptimizerConfig(), 10)
    loss = make_loss(tokenizer, token_dropout=0.1, smoothing=0.1)
    step = make_train_step(graph, loss, optimizer, FitConfig(dtype="bfloat16"))
    begun = jax.eval_shape(optimizer.init, params)
    state = TrainState(np.zeros((), np.int32), params, params, begun)
    rows, tokens = np.zeros(2, np.int32), np.ones((2, 8), np.int32)
    batch = Batch(tokens, tokens > 0, rows, rows == 0, rows)

    def flat(*leaves):  # jax.export keeps no record of NNX's own containers
        state, batch = jax.tree.unflatten(structure, leaves)
        return jax.tree.leaves(step(state, batch))

    leaves, structure = jax.tree.flatten((state, batch))
    exported = jax.export.export(jax.jit(flat), platforms=[platform])(*leaves)
    assert exported.platforms == (platform,)
    assert len(exported.out_avals) == len(jax.tree.leaves(state)) + 1
