"""The tutorial's classifier in PyTorch is ours in every number, and its training leaves a log to
race against.

In float64 the logits (with dropout of the same bits too), their gradient and the weights after
three updates agree, so a difference in time is one of programs, not of models. Only the initial
values differ, which a test asserts.
"""

import csv
import importlib
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from train.data.sample_reviews import sample
from train.objectives.classification import cross_entropy, make_loss
from train.optim.optimizers import learning_rate_schedule
from train.optim.optimizers import make_optimizer as our_optimizer
from train.recipes.imdb import TUTORIAL
from train.trainer.step import TrainState, make_train_step
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import parameter_name
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import train_tokenizer

torch = pytest.importorskip("torch")

from bench.peers.tutorial_model import (  # noqa: E402
    TutorialClassifier,
    make_inference,
    make_optimizer,
    make_step,
    our_weights,
    to_tensors,
)
from bench.tutorial_torch import VALIDATION_FRACTION, main  # noqa: E402

V, B, T, D, N, F = 17, 5, 7, 10, 2, 13
SIZES = {"max_length": T, "num_layers": 2, "embed_dim": D, "num_heads": N, "hidden_dim": F}


def model_of(attention="eager", dropout_rate=0.1, pad_id=0, **sizes):
    torch.manual_seed(0)
    sizes = SIZES | sizes
    return TutorialClassifier(
        V, pad_id=pad_id, dropout_rate=dropout_rate, attention=attention, **sizes
    )


def config_of(dropout_rate=0.1):
    """The recipe's model in the sizes of `model_of`; besides, only the rates are changed."""
    model = TUTORIAL.model
    encoder = replace(
        model.encoder,
        num_layers=SIZES["num_layers"],
        embed_dim=D,
        num_heads=N,
        hidden_dim=F,
        dropout_rate=dropout_rate,
        attention_dropout_rate=dropout_rate,
    )
    return replace(
        model,
        vocab_size=V,
        max_length=T,
        encoder=encoder,
        embedding_dropout_rate=dropout_rate,
        head_dropout_rate=dropout_rate,
    )


def ours_with(weights, config):
    """(graph, parameters) of our classifier with these weights."""
    model = nnx.eval_shape(lambda: TextClassifier(config, rngs=AbstractRngs()))
    graph, shapes = nnx.split(model, nnx.Param)
    paths, structure = jax.tree_util.tree_flatten_with_path(shapes)
    names = [parameter_name(path) for path, _ in paths]
    assert sorted(names) == sorted(weights)
    assert [weights[name].shape for name in names] == [leaf.shape for _, leaf in paths]
    return graph, jax.tree.unflatten(structure, [jnp.asarray(weights[name]) for name in names])


def named(params):
    flat, _ = jax.tree_util.tree_flatten_with_path(params)
    return {parameter_name(path): np.asarray(leaf) for path, leaf in flat}


@pytest.fixture(scope="module")
def batch():
    """Texts of different lengths, one of them as long as the model reads, and a row that only fills
    the shape.
    """
    rng = np.random.default_rng(0)
    tokens = rng.integers(1, V, (B, T)).astype(np.int32)
    is_example = np.arange(B) < B - 1
    is_token = np.arange(T) < np.array([[T], [1], [4], [3], [0]])
    tokens[~is_token] = 0
    labels = np.array([0, 1, 1, 0, 0], np.int32)
    index = np.where(is_example, np.arange(B), -1).astype(np.int32)
    return Batch(tokens, is_token, labels, is_example, index)


def test_parameters_are_as_many_as_in_the_recipe():
    with torch.device("meta"):
        theirs = TutorialClassifier()
        as_printed = TutorialClassifier(num_layers=6)  # by listing 1.36; its constructor asks for 4
    ours = nnx.eval_shape(lambda: TextClassifier(TUTORIAL.model, rngs=AbstractRngs()))
    expected = sum(leaf.size for leaf in jax.tree.leaves(nnx.state(ours, nnx.Param)))
    counts = [sum(p.numel() for p in model.parameters()) for model in (theirs, as_printed)]
    assert counts == [expected, 17_672_194] and expected == 16_092_674


def test_sizes_and_settings_are_the_recipes():
    with torch.device("meta"):
        theirs = TutorialClassifier()
    model, encoder = TUTORIAL.model, TUTORIAL.model.encoder
    assert theirs.token.weight.shape == (model.vocab_size, encoder.embed_dim)
    assert theirs.token.padding_idx == 50_257
    assert theirs.position.num_embeddings == model.max_length
    assert len(theirs.layers) == encoder.num_layers
    assert theirs.layers[0].attention.num_heads == encoder.num_heads
    assert theirs.layers[0].feed_forward[0].out_features == encoder.hidden_dim
    assert {m.eps for m in theirs.modules() if isinstance(m, torch.nn.LayerNorm)} == {1e-5}
    rates = {m.p for m in theirs.modules() if isinstance(m, torch.nn.Dropout)}
    rates |= {layer.attention.dropout_rate for layer in theirs.layers}
    assert rates == {0.1} == {
        encoder.dropout_rate, encoder.attention_dropout_rate, model.embedding_dropout_rate,
        model.head_dropout_rate,
    }  # fmt: skip
    (group,) = make_optimizer(theirs).param_groups
    ours = TUTORIAL.fit.optimizer
    assert (group["lr"], group["weight_decay"]) == (ours.learning_rate, ours.weight_decay)
    assert (group["betas"], group["eps"]) == ((ours.b1, ours.b2), ours.epsilon)
    assert TUTORIAL.validation_fraction == VALIDATION_FRACTION


def with_gradient(model, tokens, is_token, bfloat16=False):
    """Evaluation, so that nothing is dropped: logits, and the gradient of a weighted sum of
    them.
    """
    with torch.autocast("cpu", torch.bfloat16, enabled=bfloat16):
        logits = model.eval()(tokens, is_token)
    weights = torch.linspace(-1, 1, logits.numel(), dtype=logits.dtype).reshape(logits.shape)
    gradients = torch.autograd.grad((logits * weights).sum(), list(model.parameters()))
    return [x.detach().float().numpy() for x in (logits, *gradients)]


@pytest.mark.parametrize(
    ("attention", "bfloat16", "tolerance"),
    [("sdpa", False, 1e-5), ("eager", True, 0.05), ("sdpa", True, 0.05)],
)
def test_tuned_attention_and_bfloat16_give_the_same_value_and_gradient(
    batch, attention, bfloat16, tolerance
):
    tokens, is_token, _ = to_tensors(batch)
    expected = with_gradient(model_of(), tokens, is_token)
    found = with_gradient(model_of(attention), tokens, is_token, bfloat16)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=tolerance * max(1.0, np.abs(other).max()))
    if bfloat16:
        assert np.abs(found[0] - expected[0]).max() > 0  # it was computed in it


def test_tuned_update_is_the_same_update(batch):
    """Without dropout, three steps with PyTorch's own attention and fused AdamW end where the plain
    ones end.
    """
    after = []
    for attention, fused in (("eager", False), ("sdpa", True)):
        model = model_of(attention, dropout_rate=0.0).double()
        step = make_step(model, make_optimizer(model, fused=fused))
        losses = [step(*to_tensors(batch)).item() for _ in range(3)]
        after.append([losses, *(p.detach().numpy() for p in model.parameters())])
    for one, other in zip(*after, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_our_classifier_with_its_weights_gives_its_logits_and_its_gradient(batch):
    theirs = model_of().double()
    tokens, is_token, labels = to_tensors(batch)
    expected = make_inference(theirs)(tokens, is_token).numpy()
    loss = torch.nn.functional.cross_entropy(theirs.eval()(tokens, is_token), labels)
    loss.backward()
    gradients = model_of().double()  # a place to put them, for their names and layouts
    for there, here in zip(theirs.parameters(), gradients.parameters(), strict=True):
        here.data = there.grad

    def logits_and_gradient(params, graph, batch):
        def objective(params):
            logits = nnx.merge(graph, params)(batch.tokens, batch.is_token)
            return cross_entropy(logits, batch.labels).mean(), logits

        return jax.grad(objective, has_aux=True)(params)

    examples = Batch(*(part[batch.is_example] for part in batch))
    with jax.enable_x64(True):
        graph, params = ours_with(our_weights(theirs), config_of())
        gradient, found = jax.jit(logits_and_gradient, static_argnums=1)(params, graph, examples)
        # Our loss is float32: what flows back from it has seven digits, the logits all.
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
        ours, theirs = named(gradient), our_weights(gradients)
        for name, value in ours.items():
            np.testing.assert_allclose(value, theirs[name], rtol=1e-5, atol=1e-7, err_msg=name)
            hidden = name.endswith("key_bias")  # moves every score of a query alike
            assert hidden or np.abs(value).max() > 1e-4, name


def test_learning_rate_of_the_recipe_is_the_same_from_the_first_step_on():
    rate = learning_rate_schedule(TUTORIAL.fit.optimizer, total_steps=1000)
    (group,) = make_optimizer(model_of()).param_groups
    assert [float(rate(step)) for step in (0, 1, 999)] == pytest.approx([group["lr"]] * 3)


@pytest.mark.optimized
@pytest.mark.slow
def test_training_step_of_the_recipe_is_the_same_update(batch):
    """Without dropout: three steps of `make_train_step` and of `make_step`."""
    theirs = model_of(dropout_rate=0.0).double()
    begun = our_weights(theirs)
    step = make_step(theirs, make_optimizer(theirs))
    expected = [step(*to_tensors(batch)).item() for _ in range(3)]
    tokenizer = train_tokenizer("word:20", ["none of these words is used"])
    assert tokenizer.pad_id == 0
    with jax.enable_x64(True):
        graph, params = ours_with(begun, config_of(dropout_rate=0.0))
        optimizer = our_optimizer(TUTORIAL.fit.optimizer, total_steps=3)
        loss = make_loss(tokenizer, token_dropout=0.0, smoothing=0.0)
        train_step = make_train_step(graph, loss, optimizer, replace(TUTORIAL.fit, dtype="float64"))
        state = TrainState(
            jnp.zeros((), jnp.int32), params, jax.tree.map(jnp.copy, params), optimizer.init(params)
        )
        found = []
        for _ in range(3):
            state, value = train_step(state, batch)
            found.append(float(value))
        after = named(state.params)
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    for name, value in our_weights(theirs).items():
        moved = np.abs(value - begun[name]).max()
        assert moved > 1e-9 or name.endswith("key_bias")
        if name == "embedding.token.embedding":  # [PAD]: theirs is 0 and stays 0
            assert not value[0].any()
        np.testing.assert_allclose(after[name], value, rtol=0, atol=1e-7, err_msg=name)


def test_initial_values_differ():
    """N(0, 1) tables and U(-1, 1)/sqrt(fan-in) maps and biases there; N(0, 0.02^2), LeCun-normal
    and 0 here.
    """
    theirs = our_weights(model_of(embed_dim=64, num_heads=2, hidden_dim=64, max_length=64))
    config = replace(
        config_of(),
        max_length=64,
        encoder=replace(config_of().encoder, embed_dim=64, hidden_dim=64),
    )
    ours = named(nnx.state(TextClassifier(config, rngs=nnx.Rngs(0)), nnx.Param))
    for name, there, here in (
        ("embedding.position.embedding", 1.0, 0.02),
        ("encoder.layers.0.feed_forward.in_kernel", 3**-0.5 / 8, 1 / 8),
        ("encoder.layers.0.attention.query_kernel", 3**-0.5 / 8, 1 / 8),
    ):
        np.testing.assert_allclose([theirs[name].std(), ours[name].std()], [there, here], rtol=0.1)
    bias = "encoder.layers.0.feed_forward.in_bias"
    assert np.abs(theirs[bias]).max() > 0.05 and not ours[bias].any()


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_padding_is_hidden(batch, attention):
    """Logits do not hang on what stands in the padding, nor on how much of it there is; -1e9 rounds
    to weight 0.
    """
    tokens, is_token, _ = to_tensors(batch)
    infer = make_inference(model_of(attention))
    expected = infer(tokens, is_token)
    torch.testing.assert_close(infer(tokens.masked_fill(~is_token, 3), is_token), expected)
    torch.testing.assert_close(infer(tokens[1:, :4], is_token[1:, :4]), expected[1:])
    everything = infer(tokens, torch.ones_like(is_token))
    assert (everything - expected)[1:].abs().max() > 1e-3  # a mask that hid nothing would show


def test_rows_that_only_fill_the_shape_stay_behind(batch):
    tokens, is_token, labels = to_tensors(batch)
    assert (len(tokens), len(labels), tokens.dtype) == (B - 1, B - 1, torch.int64)
    np.testing.assert_array_equal(is_token.sum(dim=1), [T, 1, 4, 3])


def test_dropout_is_on_in_a_step_and_off_in_inference(batch):
    model = model_of()
    tensors = to_tensors(batch)
    still = torch.optim.SGD(model.parameters(), lr=0.0)
    step, infer = make_step(model, still), make_inference(model)
    losses = {step(*tensors).item() for _ in range(4)}
    assert len(losses) == 4
    torch.testing.assert_close(infer(*tensors[:2]), infer(*tensors[:2]), rtol=0, atol=0)
    assert not infer(*tensors[:2]).requires_grad
    assert step(*tensors).item() != step(*tensors).item()  # and on again after inference


def test_dropout_stands_where_ours_does(batch, monkeypatch):
    """With the same bits, drawn in the order of the calls, the logits in training are the same."""
    theirs, ours = [], []

    def bits(calls, shape):
        calls.append(shape)
        return np.random.default_rng(len(calls)).random(shape) >= 0.3

    def drop(x, p, training, inplace=False):
        assert training
        return x * torch.from_numpy(bits(theirs, tuple(x.shape))) / (1 - p)

    def kept(key, rate, *where):  # a shape, or the indices along every axis of one
        return jnp.asarray(bits(ours, where[0] if len(where) == 1 else tuple(map(len, where))))

    module = importlib.import_module(
        "transformer_jax.functional.dropout"
    )  # the package has a function of that name
    monkeypatch.setattr(torch.nn.functional, "dropout", drop)
    monkeypatch.setattr(module, "keep", kept)
    monkeypatch.setattr(module, "keep_weights", kept)
    model = model_of(dropout_rate=0.3).double().train()
    tokens, is_token, _ = to_tensors(batch)
    expected = model(tokens, is_token).detach().numpy()
    examples = jnp.asarray(batch.tokens[batch.is_example])
    with jax.enable_x64(True):
        graph, params = ours_with(our_weights(model), config_of(0.3))
        found = jax.jit(lambda p: nnx.merge(graph, p)(examples, examples != 0, rngs=nnx.Rngs(0)))(
            params
        )
    layer = [(B - 1, N, T, T), (B - 1, T, D), (B - 1, T, F), (B - 1, T, D)]
    assert theirs == ours == [(B - 1, T, D), *layer, *layer, (B - 1, D)]
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("attention", "bfloat16"), [("eager", False), ("sdpa", True)])
def test_loss_falls(batch, attention, bfloat16):
    model = model_of(attention)
    step = make_step(model, make_optimizer(model), bfloat16=bfloat16)
    losses = [step(*to_tensors(batch)).item() for _ in range(200)]
    assert np.mean(losses[-20:]) < 0.8 * np.mean(losses[:20])


# The program
# ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def reviews(tmp_path_factory):
    """A little of the built-in sample, with its twins named so that validation parts none."""
    split = sample(0, 80, 20).train
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label", "movie"])
        rows.writerows(zip(split.texts, split.labels, split.groups, strict=True))
    return path


def arguments(reviews, log, *more):
    return [
        "--data", str(reviews), "--log", str(log), "--tokenizer", "word:300", "--length", "16",
        "--batch", "8", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def trained(reviews, tmp_path_factory):
    log = tmp_path_factory.mktemp("log") / "log.jsonl"
    more = ["--epochs", "2", "--log-every", "3", "--validate-every", "5", "--test"]
    assert main(arguments(reviews, log, *more)) == 0
    return log, [json.loads(line) for line in log.read_text().splitlines()]


def test_log_says_what_ran_and_how_long_it_took_to_be_how_good(trained):
    _, (first, *lines, last) = trained
    assert first["dtype"] == "float32" and first["attention"] == "eager" and not first["fused"]
    assert (first["batch"], first["length"], first["seed"]) == (8, 16, 0)
    assert first["tokenizer"].startswith("word:") and first["torch"] == torch.__version__
    assert "by movie" in first["split_rule"] and "--log-every 3" in first["command"]
    assert "/" not in first["command"]
    steps = -(-first["train"] // 8)
    losses = [line for line in lines if "loss" in line]
    scores = [line for line in lines if "validation_accuracy" in line]
    assert {line["step"] for line in losses} == {
        *range(3, 2 * steps + 1, 3), steps, 2 * steps
    }  # fmt: skip
    assert {line["step"] for line in scores} == {*range(5, 2 * steps + 1, 5), steps, 2 * steps}
    assert all(set(line) == {"step", "epoch", "seconds", "loss"} for line in losses)
    assert all(
        set(line) == {"step", "epoch", "seconds", "validation_accuracy", "validation_seconds"}
        for line in scores
    )
    assert all(0 <= line["validation_accuracy"] <= 1 for line in scores)
    assert [line["epoch"] for line in lines] == sorted(line["epoch"] for line in lines)
    for rising in ([x["seconds"] for x in lines], [x["validation_seconds"] for x in scores]):
        assert rising == sorted(rising) and rising[0] > 0
    assert set(last) == {"step", "test_accuracy"} and last["step"] == 2 * steps


def test_clock_stands_still_while_validating_and_a_loss_is_the_mean_since_the_line_before(
    reviews, tmp_path, monkeypatch
):
    """A second a step, a hundred a validation, and the number of the step for a loss."""
    now, steps = [0.0], itertools.count(1)

    def step(*tensors):
        now[0] += 1
        return torch.tensor(float(next(steps)))

    def score(infer, batches):
        now[0] += 100
        return 0.5

    program = importlib.import_module("bench.tutorial_torch")
    monkeypatch.setattr(program, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(program, "make_step", lambda *_, **__: step)
    monkeypatch.setattr(program, "accuracy", score)
    log = tmp_path / "log.jsonl"
    more = ["--epochs", "1", "--log-every", "3", "--validate-every", "4"]
    assert main(arguments(reviews, log, *more)) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert all(line["seconds"] == line["step"] for line in lines)
    losses = [(line["step"], line["loss"]) for line in lines if "loss" in line]
    assert losses[:2] == [(3, 2.0), (6, 5.0)]
    scores = [line["validation_seconds"] for line in lines if "validation_seconds" in line]
    assert scores == [100.0 * (i + 1) for i in range(len(scores))] and len(scores) > 1


def test_test_split_is_read_at_the_end_alone(trained):
    assert ["test_accuracy" in line for line in trained[1]].index(True) == len(trained[1]) - 1


def test_same_seed_gives_the_same_losses_and_until_stops(reviews, trained, tmp_path):
    log = tmp_path / "log.jsonl"
    more = ["--epochs", "2", "--log-every", "3", "--validate-every", "5", "--until", "0"]
    assert main(arguments(reviews, log, *more)) == 0
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["step"] for line in lines[1:]] == [3, 5]
    assert "validation_accuracy" in lines[-1]
    assert lines[1]["loss"] == trained[1][1]["loss"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--batch", "0"], "--batch must be 1 or more"),
        (["--length", "2"], "--length must be 3 or more"),
        (["--until", "80"], "--until must be an accuracy from 0 to 1"),
        (["--tokenizer", "letters"], "tokenizer must be bpe:N, word:N, char or gpt2"),
        (["--data", "nowhere.csv"], "no file or folder nowhere.csv"),
        (["--gpt2-files", "nowhere", "--tokenizer", "gpt2"], "gpt2_files must be a folder"),
        (["--log", "no/folder/log"], "is in a folder that does not exist"),
    ],
)
def test_mistake_is_one_line_and_leaves_no_log(reviews, tmp_path, capsys, more, message):
    log = tmp_path / "log.jsonl"
    assert main(arguments(reviews, log, *more)) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not log.exists()


def test_log_that_exists_is_kept(reviews, tmp_path, capsys):
    log = tmp_path / "log.jsonl"
    log.write_text("an hour of training\n")
    assert main(arguments(reviews, log)) == 2
    assert "exists already" in capsys.readouterr().err
    assert log.read_text() == "an hour of training\n"


def test_without_torch_it_says_what_to_install():
    hidden = "import sys, runpy; sys.modules['torch'] = None; "
    command = "runpy.run_module('bench.tutorial_torch', run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", hidden + command], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "pip install torch==2.13.0" in done.stderr
    done = subprocess.run(
        [sys.executable, "-c", hidden + "import bench.tutorial_torch"],
        capture_output=True,
        text=True,
    )
    assert "pip install torch==2.13.0" in done.stderr.splitlines()[-1]
