"""`python -m train.imdb --pretrained`: a text encoder becomes a classifier, by rates of its own and
by LoRA.
"""

import json
import shutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tests.helpers.checkpoint_files import FOLDER
from tests.helpers.compiled import compiled
from tests.helpers.kills import differences
from train.classifier.build import FromPretrained
from train.classifier.finetuning import classifier_of, load_encoder
from train.imdb import main
from train.optim.config import OptimizerConfig, Rates
from train.optim.layer_rates import factors, first_steps
from train.optim.optimizers import make_optimizer
from train.recipes.classify_options import ImdbOptions, recipe_of
from train.recipes.imdb import FINETUNE, FINETUNE_LORA
from transformer_jax.__main__ import main as use
from transformer_jax.nn.lora import Lora, input_axes, merged
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.pretrained import from_pretrained
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

WORDS = {"good": ("fine", "superb", "lovely"), "bad": ("dull", "poor", "awful")}
FILLERS = ("the", "film", "plot", "was", "it", "and")
TOKENS = np.array([[2, 5, 6, 7, 8, 3], [2, 9, 3, 0, 0, 0]], np.int32)
IS_TOKEN = TOKENS != 0


pytestmark = pytest.mark.usefixtures("bare_reports")


def configure(folder, **changes):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Tiny checkpoints with a vocabulary beside them, and texts whose label one word tells."""
    folder = tmp_path_factory.mktemp("place")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *FILLERS, *WORDS["good"], *WORDS["bad"]]
    for name in ("bert", "distilbert", "gpt2"):
        shutil.copytree(FOLDER / name, folder / name)
        rest = [f"word{i}" for i in range(len(known), 97)]
        (folder / name / "vocab.txt").write_text("".join(f"{word}\n" for word in known + rest))
    # Most tests need one layer, and most runs no dropout but that of the head.
    for name in ("calm", "short", "sentences"):
        shutil.copytree(folder / "bert", folder / name)
    for name in ("calm", "short"):
        configure(folder / name, hidden_dropout_prob=0.0)
    for name, key in (
        ("short", "num_hidden_layers"),
        ("sentences", "num_hidden_layers"),
        ("distilbert", "n_layers"),
    ):
        configure(folder / name, **{key: 1})
        path = folder / name / "model.safetensors"
        save_file({k: v for k, v in load_file(path).items() if ".layer.1." not in k}, path)
    (folder / "sentences" / "1_Pooling").mkdir()
    pooling = {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
    (folder / "sentences" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    modules = [
        {"type": "sentence_transformers.models.Transformer", "path": ""},
        {"type": "sentence_transformers.models.Pooling", "path": "1_Pooling"},
    ]
    (folder / "sentences" / "modules.json").write_text(json.dumps(modules))
    rng = np.random.default_rng(0)
    rows = ["text,label"]
    for i in range(200):
        label = ("bad", "good")[i % 2]
        filler = " ".join(rng.choice(FILLERS, rng.integers(3, 8)))
        rows.append(f"{filler} {rng.choice(WORDS[label])} {i},{label}")
    (folder / "reviews.csv").write_text("\n".join(rows), encoding="utf-8")
    return folder


def arguments(place, run, *more, model="bert"):
    return [
        "--pretrained", str(place / model), "--data", str(place / "reviews.csv"), "--out", str(run),
        "--epochs", "2", "--batch-tokens", "256", "--dtype", "float32", "--no-baseline", *more,
    ]  # fmt: skip


@pytest.fixture(scope="module")
def run(place, bare_reports, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = "--epochs 8 --learning-rate 0.01 --layer-decay 1 --pooling mean".split()
    assert main(arguments(place, folder, *options, model="short")) == 0
    return folder


def weights_of(model):
    return {name: np.asarray(leaf) for name, leaf in named_parameters(nnx.state(model, nnx.Param))}


def tiny(place, name="bert", **changes):
    pretrained = load_encoder(place / name, **changes)
    return classifier_of(pretrained, 3, rngs=nnx.Rngs(0))


def test_a_run_learns_and_leaves_a_folder_that_predicts(run, place, capsys):
    report = json.loads((run / "report.json").read_text())
    assert report["validation_accuracy"] > 0.9
    assert (report["recipe"], report["pretrained"]) == ("finetune", str(place / "short"))
    assert report["settings"]["model"] == {
        "max_length": 256,
        "pooling": "mean",
        "lora_rank": 0,
        "attention_dropout_rate": 0.0,
        "dropout_rate": None,
        "ngrams": 0,
        "ngram_bits": 22,
    }
    assert use(["predict", str(run), "the film was superb", "the plot was awful", "it " * 300]) == 0
    good, bad, long = capsys.readouterr().out.splitlines()
    assert good.startswith("good") and bad.startswith("bad")
    assert "cut: 46 tokens were not read" in long


def test_the_first_logits_are_the_encoders_vector_through_the_new_head(place):
    """BERT's own pooler comes along; DistilBERT's map begins anew; a sentence encoder has none."""

    def mapped(linear, x):
        return x @ np.asarray(linear.kernel[...]) + np.asarray(linear.bias[...])

    is_token = IS_TOKEN[:, :, None]
    pools = {
        "short": lambda model, encoder, x: np.tanh(mapped(encoder.pooler, x[:, 0])),
        "distilbert": lambda model, encoder, x: np.maximum(mapped(model.linear, x[:, 0]), 0),
        "sentences": lambda model, encoder, x: (is_token * x).sum(1) / is_token.sum(1),
    }
    for name, pool in pools.items():
        model, encoder = tiny(place, name), from_pretrained(place / name, kind="encoder")
        pooled = pool(model, encoder, np.asarray(compiled(encoder)(TOKENS, IS_TOKEN)))
        found = compiled(model)(TOKENS, IS_TOKEN)
        np.testing.assert_allclose(found, mapped(model.head, pooled), rtol=1e-6, atol=1e-6)
        assert np.asarray(model.head.kernel[...]).std() > 0.05


def test_the_encoder_drops_what_the_configuration_says(place):
    pretrained = load_encoder(place / "sentences")
    text = pretrained.config.text
    stack = replace(text.encoder, dropout_rate=0.0, attention_dropout_rate=0.0)
    text = replace(text, encoder=stack, embedding_dropout_rate=0.0)
    config = replace(pretrained.config, text=text, head_dropout_rate=0.0)
    whole = compiled(classifier_of(pretrained, 2, rngs=nnx.Rngs(0)))(TOKENS, IS_TOKEN)
    for changed, alike in ((pretrained, False), (pretrained._replace(config=config), True)):
        model = classifier_of(changed, 2, rngs=nnx.Rngs(0))
        dropped = compiled(model)(TOKENS, IS_TOKEN, rngs=nnx.Rngs(dropout=1))
        assert np.array_equal(dropped, whole) == alike


def test_the_head_reads_what_the_files_say_or_the_command_line(place, run):
    def head(name, **changes):
        config = tiny(place, name, **changes).config
        return config.pooling, config.activation

    assert head("bert") == ("cls", "tanh")
    assert head("distilbert") == ("cls", "relu")
    assert head("sentences") == ("mean", None)
    assert head("bert", pooling="mean") == ("mean", None)
    assert head("sentences", pooling="cls") == ("cls", None)
    again = load_encoder(run)  # a run of ours, which was told so
    assert (again.config.pooling, again.config.activation) == ("mean", None)


# of the two layers of the tiny BERT: the beginning of a name, and the power of --layer-decay
RATES = {
    "text.embedding.": 3,
    "text.encoder.layers.0.": 2,
    "text.encoder.layers.1.": 1,
    "linear.": 0,
    "head.": 0,
}


def test_every_parameter_has_the_rate_of_its_place(place):
    params = nnx.state(tiny(place), nnx.Param)
    found = dict(named_parameters(factors(params, Rates(layer_decay=0.5, head=10.0))))
    assert len(found) == 5 + 2 * 16 + 4
    for name, factor in found.items():
        (power,) = [power for start, power in RATES.items() if name.startswith(start)]
        assert factor == 0.5**power * (10.0 if power == 0 else 1.0), name


def some_of(params):
    """Parameters of every place and kind; a program of all takes three times as long to compile."""
    kept = ("token.embedding", "norm.scale", "out_kernel", "in_bias", "linear.kernel", "head.bias")
    return nnx.filter_state(params, lambda path, _: ".".join(map(str, path)).endswith(kept))


def test_the_factors_scale_the_steps_and_the_weight_decay(place):
    params = some_of(nnx.state(tiny(place), nnx.Param))
    rates = Rates(layer_decay=0.5, head=10.0, faster=(("head.bias", 3.0),))
    optimizers = [
        make_optimizer(OptimizerConfig(1e-2, "constant", 0.0, weight_decay=0.5, rates=rates), 10)
        for rates in (Rates(), rates)
    ]

    @jax.jit
    def steps(params):
        gradient = jax.tree.map(jnp.ones_like, params)
        return [each.update(gradient, each.init(params), params)[0] for each in optimizers]

    plain, scaled = (dict(named_parameters(step)) for step in steps(params))
    expected = dict(named_parameters(factors(params, rates)))
    assert set(expected) == set(plain) == set(scaled) and len(plain) == 14
    for name, step in plain.items():
        wanted = expected[name] * np.asarray(step)
        np.testing.assert_allclose(scaled[name], wanted, rtol=1e-6, err_msg=name)
        assert np.abs(step).max() > 0
    head = np.asarray(plain["head.bias"])
    np.testing.assert_allclose(scaled["head.bias"], 30 * head, 1e-6)


def test_layers_join_from_the_top_weight_decay_and_all(place):
    """With a share of 0.2 of 10 steps: the head at once, the layers after 2 and 4, the embeddings
    after 6.
    """
    params = some_of(nnx.state(tiny(place), nnx.Param))
    rates = Rates(unfreeze=0.2)
    optimizer = make_optimizer(
        OptimizerConfig(
            1e-2, "constant", 0.0, weight_decay=0.5, decay_everything=True, rates=rates
        ),
        10,
    )
    state, first = optimizer.init(params), {}
    gradient = jax.tree.map(np.zeros_like, params)  # weight decay alone
    update = jax.jit(optimizer.update)
    for step in range(10):
        updates, state = update(gradient, state, params)
        for name, leaf in named_parameters(updates):
            if np.any(np.asarray(leaf)):
                first.setdefault(name, step)
    nonzero = {name for name, leaf in named_parameters(params) if np.any(np.asarray(leaf))}
    assert set(first) == nonzero
    for name, step in first.items():
        (power,) = [power for start, power in RATES.items() if name.startswith(start)]
        assert step == 2 * power, name
    assert {step for _, step in named_parameters(first_steps(params, rates, 10))} == {0, 2, 4, 6}


def test_lora_begins_as_the_model_and_merges_into_what_it_computes(place):
    model = tiny(place, "short")
    lora = Lora(model, 3, rngs=nnx.Rngs(1))
    before = np.asarray(compiled(model)(TOKENS, IS_TOKEN))
    np.testing.assert_array_equal(compiled(lora)(TOKENS, IS_TOKEN), before)
    rng = np.random.default_rng(0)
    for factor in lora.factors.values():  # as if trained
        factor.b[...] = jax.device_put(rng.normal(size=factor.b.shape).astype(np.float32))
    changed = np.asarray(compiled(lora)(TOKENS, IS_TOKEN))
    assert np.abs(changed - before).max() > 0.1
    params = jax.jit(merged, static_argnums=1)(nnx.state(lora, nnx.Param), lora.scale)
    plain = nnx.merge(nnx.graphdef(model), params)
    np.testing.assert_array_equal(compiled(plain)(TOKENS, IS_TOKEN), changed)
    name = "text.encoder.layers.0.attention.out_kernel"
    difference = (weights_of(plain)[name] - weights_of(model)[name]).reshape(24, 24)
    a, b = np.asarray(lora.factors[name].a[...]), np.asarray(lora.factors[name].b[...])
    np.testing.assert_allclose(difference, 16 / 3 * a.reshape(24, 3) @ b, rtol=1e-4, atol=1e-5)
    assert sum(map(bool, map(input_axes, weights_of(model)))) == len(lora.factors) == 6


def test_lora_moves_its_factors_and_the_head_and_nothing_else(place):
    lora = Lora(tiny(place), 2, rngs=nnx.Rngs(1))
    params = nnx.state(lora, nnx.Param)
    optimizer = make_optimizer(FINETUNE_LORA.fit.optimizer, 1)

    @jax.jit
    def step(params):
        gradient = jax.tree.map(jnp.ones_like, params)
        return optimizer.update(gradient, optimizer.init(params), params)[0]

    updates = named_parameters(step(params))
    still = {name for name, leaf in updates if not np.any(np.asarray(leaf))}
    assert still == {name for name, _ in named_parameters(params) if name.startswith("model.text.")}
    assert len(still) == 5 + 2 * 16
    # Nor has what stands still any moments.
    moving = sum(leaf.size for name, leaf in named_parameters(params) if name not in still)
    state = jax.eval_shape(optimizer.init, params)
    kept = sum(leaf.size for leaf in jax.tree.leaves(state) if leaf.ndim)
    assert kept == 2 * moving


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("--unfreeze", "0.15"), id="layers", marks=pytest.mark.slow),
        pytest.param(("--unfreeze", "0.15", "--layer-decay", "0.5", "--lora", "2"), id="lora"),
    ],
)
def test_a_stopped_run_goes_on_bit_for_bit(options, place, tmp_path, ctrl_c_behind):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    options = (*options, "--epochs", "1")
    assert main(arguments(place, whole, *options, model="calm")) == 0
    options = (*options, "--checkpoint-minutes", "0")
    with ctrl_c_behind(3):  # of 12 steps: a layer has joined, another has not
        assert main(arguments(place, stopped, *options, model="calm")) == 130
    assert main(["--resume", str(stopped), "--checkpoint-minutes", "5"]) == 0
    assert differences(stopped, whole) == []
    source, kept = weights_of(tiny(place)), load_file(whole / "model.safetensors")
    assert set(source) == set(kept)
    same = {name for name in source if np.array_equal(source[name], kept[name])}
    if "--lora" not in options:
        assert not same
        again = load_encoder(whole)  # its map comes along, as BERT's pooler did
        np.testing.assert_array_equal(again.linear.kernel[...], kept["linear.kernel"])
        return
    encoder = {name for name in source if name.startswith("text.")}
    assert same == {name for name in encoder if not input_axes(name)}
    for name in encoder - same:  # merged: what was added is of rank 2
        rows = np.prod(source[name].shape[: input_axes(name)])
        change = np.linalg.svd((kept[name] - source[name]).reshape(rows, -1), compute_uv=False)
        assert change[1] > 10 * change[2], name


def test_a_run_goes_on_with_the_weights_it_began_with(place, tmp_path, capsys):
    model, run = tmp_path / "model", tmp_path / "run"
    shutil.copytree(place / "short", model)
    options = ["--data", str(place / "reviews.csv"), "--epochs", "0", "--max-steps", "0"]
    assert main(arguments(tmp_path, run, *options, model="model")) == 0
    tensors = load_file(model / "model.safetensors")
    name = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    save_file(tensors | {name: tensors[name] + 1}, model / "model.safetensors")
    go_on = ["--resume", str(run), "--epochs", "1"]
    assert main(go_on) == 2
    said = capsys.readouterr().err
    assert "the data, or the pretrained model, are not those that" in said
    assert main([*go_on, "--pretrained", str(place / "short")]) == 0  # elsewhere, but the same


def test_a_run_can_be_fine_tuned_again(place, run, tmp_path):
    again = tmp_path / "again"
    more = ("--data", str(place / "reviews.csv"), "--epochs", "0")
    assert main(arguments(run.parent, again, *more, model="run")) == 0
    before, after = (load_file(folder / "model.safetensors") for folder in (run, again))
    different = {name for name in before if not np.array_equal(before[name], after[name])}
    assert different == {"head.kernel", "head.bias"}
    assert load_classifier(again).tokenizer.vocab_size == 97


def test_options_change_the_recipe_and_nothing_else():
    def recipe(**options):
        return recipe_of(ImdbOptions(pretrained="bert", **options), "imdb")

    assert recipe() == FINETUNE == recipe(recipe="finetune")
    changed = recipe(learning_rate=0.5, layer_decay=1.0, unfreeze=0.1)
    optimizer = changed.fit.optimizer
    assert (optimizer.learning_rate, optimizer.rates) == (
        0.5,
        replace(FINETUNE.fit.optimizer.rates, layer_decay=1.0, unfreeze=0.1),
    )
    lora = recipe(lora=4, pooling="mean")
    assert lora.fit == FINETUNE_LORA.fit
    assert (lora.model.lora_rank, lora.model.pooling) == (4, "mean")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--pretrained", "PLACE/gpt2"], "gpt2 is not a text encoder; pass one such as BERT"),
        (["--pretrained", "PLACE/none"], "none is not a folder; pass one that holds config.json"),
        (["--pretrained", "PLACE"], "has no config.json"),
        (["--pretrained", "PLACE/bert", "--recipe", "fast"], "--recipe fast trains a model from"),
        (["--recipe", "finetune"], "--recipe finetune needs --pretrained MODEL"),
        (["--lora", "2"], "--lora needs --pretrained MODEL"),
        (["--vectors"], "--vectors needs --unlabelled"),
        (["--pretrained", "PLACE/bert", "--tokenizer", "char"], "has a tokenizer of its own"),
        (["--pretrained", "PLACE/bert", "--max-length", "33"], "more than the 32 tokens that"),
        (["--pretrained", "PLACE/bert", "--unfreeze", "0.34"], "pass less than 0.333"),
        (["--pretrained", "PLACE/bert", "--lora", "25"], "more than the width of"),
        (["--pretrained", "PLACE/bert", "--lora", "0"], "--lora must be at least 1; got 0"),
        (["--pretrained", "PLACE/bert", "--layer-decay", "1.1"], "at most 1; got 1.1"),
        (["--learning-rate", "0"], "--learning-rate must be above 0; got 0.0"),
    ],
    ids=lambda value: " ".join(value[-2:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_leaves_nothing(options, says, place, tmp_path, capsys):
    options = [option.replace("PLACE", str(place)) for option in options]
    given = ["--data", str(place / "reviews.csv"), "--out", str(tmp_path / "run"), *options]
    assert main(given) == 2
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def start_of(folder):
    options = ImdbOptions(pretrained=str(folder))
    return FromPretrained(recipe_of(options, "reviews.csv"), options)


def test_a_text_with_a_token_beyond_the_model_is_one_line(place, tmp_path, capsys):
    shutil.copytree(place / "bert", tmp_path / "bert")
    with open(tmp_path / "bert" / "vocab.txt", "a") as file:
        file.write("splendid\n")
    texts = (place / "reviews.csv").read_text()
    (tmp_path / "reviews.csv").write_text(texts.replace("superb", "splendid"))
    assert main(arguments(tmp_path, tmp_path / "run")) == 2
    error = capsys.readouterr().err
    assert "the token 'splendid' of a text has the id 97, but the model embeds 97 of" in error
    (tmp_path / "reviews.csv").write_text(texts)
    assert start_of(tmp_path / "bert").make_tokenizer([]).vocab_size == 98


def test_a_sentence_encoder_that_lower_cases_does_so_in_training(place, tmp_path):
    shutil.copytree(place / "sentences", tmp_path / "bert")
    (tmp_path / "bert" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    (tmp_path / "bert" / "sentence_bert_config.json").write_text('{"do_lower_case": true}')
    tokenizer = start_of(tmp_path / "bert").make_tokenizer([])
    upper, lower = tokenizer.pieces(["The FILM", "the film"])
    np.testing.assert_array_equal(upper, lower)
    tokenizer.save(tmp_path / "saved")
    saved = load_pretrained_tokenizer(tmp_path / "saved")
    np.testing.assert_array_equal(saved.pieces(["The FILM"])[0], lower)


def test_a_damaged_run_folder_is_one_line(run, tmp_path, capsys):
    for name, change, says in (
        ("config.json", lambda tree: tree.update(max_length=2), "max_length must be 3 or more"),
        (
            "config.json",
            lambda tree: tree["config"]["text"]["encoder"].update(num_layers=2),
            "lacks text.encoder.layers.1",
        ),
        (
            "config.json",
            lambda tree: tree["config"]["text"].update(vocab_size=96),
            "is F32 of the shape (97, 24)",
        ),
        (
            "config.json",
            lambda tree: tree["config"].update(pooling="max"),
            "pooling must be one of cls, mean; got 'max'",
        ),
        ("tokenizer.json", lambda tree: tree.pop("model"), "tokenizer"),
    ):
        copy = tmp_path / "copy"
        shutil.copytree(run, copy)
        tree = json.loads((copy / name).read_text())
        change(tree)
        (copy / name).write_text(json.dumps(tree))
        assert use(["predict", str(copy), "fine"]) == 2
        error = capsys.readouterr().err
        assert says in error and error.count("\n") == 1
        shutil.rmtree(copy)


def test_low_rank_changes_are_trained_where_they_are_not_rounded_away():
    """bfloat16 rounds the sum of a kernel and a thousandth of it to the kernel."""
    kernel, change = np.array([0.04, 4e-5], jnp.bfloat16)
    assert kernel + change == kernel
    assert FINETUNE_LORA.dtype == "float32"
