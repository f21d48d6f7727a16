"""`walk` and `attention`: every array shown is the library's own, in one language, and a mistake is
one line.
"""

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.modules import drawn
from tests.helpers.run_folders import save_run
from transformer_jax.__main__ import main
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.masks import causal
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.attention.softmax import masked_softmax
from transformer_jax.cli.attention import points, score_heads
from transformer_jax.cli.matrix_text import width
from transformer_jax.functional.positions import sinusoidal_positions
from transformer_jax.interpret.activations import attention_parameters, read_activations
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.serialization.specification import ClassifierSpec
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.walkthrough.attention_steps import (
    attention_steps,
    context_step,
    word_model,
    word_steps,
)
from transformer_jax.walkthrough.worked import EXAMPLES

WORDS = ("money", "bank", "grows")
TEXT = "a fine film not a dull film"


def arrays(steps):
    """The steps by name; no name occurs twice, or an equation would be ambiguous."""
    assert len({step.name for step in steps}) == len(steps)
    return {step.name: step.array for step in steps}


NAMES = ("query_kernel", "key_kernel", "value_kernel")
softmax = jax.jit(masked_softmax)


@partial(jax.jit, static_argnames="is_causal")
def library(x, kernels, is_causal):
    """Return the arrays of all heads by the library's functions."""
    mask = causal() if is_causal else None
    q, k, v = (jnp.einsum("BTD,DNH->BTNH", x, kernels[name]) for name in NAMES)
    output = multi_head_attention(x, x, **kernels, mask=mask)[0]
    weights = attention_weights(q, k, mask=mask)[0].swapaxes(0, 1)
    blend = dot_product_attention(q, k, v, mask=mask)[0]
    return output, {"Q": q[0], "K": k[0], "V": v[0], "weights": weights, "blend": blend}


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("head", [0, 1])
def test_every_step_is_what_the_library_computes(is_causal, head):
    model = word_model(8, 8, 2, seed=3)
    a = arrays(word_steps(model, [5, 6, 7], WORDS, head=head, is_causal=is_causal))
    position = jax.jit(sinusoidal_positions, static_argnums=1)(jnp.arange(3), 8)
    np.testing.assert_array_equal(a["E"], np.asarray(model.table)[[5, 6, 7]])
    np.testing.assert_allclose(a["X"], a["E"] + position, rtol=1e-6)
    output, of_heads = library(jnp.asarray(a["X"])[None], model.kernels, is_causal=is_causal)
    np.testing.assert_allclose(a["output"], output, rtol=1e-4, atol=1e-6)
    for name, expected in of_heads.items():
        expected = np.asarray(expected)[:, head]
        np.testing.assert_allclose(a[name], expected, rtol=1e-4, atol=1e-6, err_msg=name)
    # The steps between, by their own equations.
    np.testing.assert_allclose(a["Q"], a["X"] @ a["W_Q"], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a["scores"], a["Q"] @ a["K"].T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a["scaled"], a["scores"] / 2, rtol=1e-6)
    np.testing.assert_array_equal(
        a["mask"], np.tri(3, dtype=bool) if is_causal else np.ones((3, 3))
    )
    weights = softmax(a["scaled"], a["mask"])
    np.testing.assert_allclose(a["weights"], weights, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(a["blend"], a["weights"] @ a["V"], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(a["heads"][:, 4 * head : 4 * head + 4], a["blend"])
    np.testing.assert_allclose(a["output"], a["heads"] @ a["W_O"], rtol=1e-4, atol=1e-5)
    if is_causal:
        np.testing.assert_array_equal(a["masked"], np.where(a["mask"], a["scaled"], -np.inf))
    else:
        assert "masked" not in a


def test_heads_that_share_keys_are_shown_with_their_own():
    random = np.random.default_rng(0)
    sizes = {"query": (12, 6, 2), "key": (12, 2, 2), "value": (12, 2, 2), "out": (6, 2, 12)}
    parameters = {
        f"{kind}_kernel": jnp.asarray(random.normal(size=shape), jnp.float32)
        for kind, shape in sizes.items()
    }
    for kind, shape in (("query", (6, 2)), ("key", (2, 2)), ("value", (2, 2)), ("out", (12,))):
        parameters[f"{kind}_bias"] = jnp.asarray(random.normal(size=shape), jnp.float32)
    x = random.normal(size=(5, 12)).astype(np.float32)
    for head in (2, 3):  # the last of the first group, the first of the second
        steps = attention_steps(x, parameters, list("abcde"), head=head)
        a = arrays(steps)
        scaled = (a["Q"] @ a["K"].T) / np.sqrt(2)
        np.testing.assert_allclose(a["scaled"], scaled, rtol=1e-3, atol=1e-4)
        weights = np.exp(scaled) / np.exp(scaled).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(a["weights"], weights, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(a["blend"], weights @ a["V"], rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(a["heads"][:, 2 * head : 2 * head + 2], a["blend"])
        bias = np.asarray(parameters["out_bias"])
        np.testing.assert_allclose(a["output"], a["heads"] @ a["W_O"] + bias, rtol=1e-3, atol=1e-4)
        assert {step.equation for step in steps} >= {"X W_Q + b_Q", "heads W_O + b_O"}


def test_bank_has_one_vector_in_the_table_and_two_in_two_contexts():
    model = word_model(12, 8, 2, seed=0)
    here, there = ([5, 6, 7], WORDS), ([8, 6, 9], ("river", "bank", "flows"))
    step = context_step(model, here, there)
    assert step.rows == ("bank",) and step.columns == ("E", "X", "output")
    in_table, in_place, in_context = step.array[0]
    assert in_table == in_place == 0 and in_context > 0.1
    # In another place the position tells them apart before attention does.
    moved = context_step(model, here, ([6, 8, 9], ("bank", "river", "flows"))).array[0]
    assert moved[0] == 0 and moved[1] > 0.1
    # Every word that both have, once, and the same text is the same vector.
    twice = context_step(model, ([5, 6, 5], ("a", "b", "a")), ([5, 6, 5], ("a", "b", "a")))
    assert twice.rows == ("a", "b") and not twice.array.any()
    assert context_step(model, here, ([8], ("river",))) is None


def lines(capsys, *arguments):
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out.splitlines()


def test_walking_twice_says_the_same_and_another_seed_something_else(capsys):
    once = lines(capsys, "walk", "money bank grows")
    assert once == lines(capsys, "walk", "money bank grows", "--seed", 0)
    assert once != lines(capsys, "walk", "money bank grows", "--seed", 1)
    names = [line.split(" = ")[0] for line in once if re.match(r"[\w_]+ = ", line)]
    assert names == (
        "ids E P X W_Q Q W_K K W_V V scores scaled mask weights blend heads W_O output".split()
    )


ODD = {
    "one word": "bank",
    "no letters": "...",
    "200 words": " ".join(f"word{i}" for i in range(200)),
    "not ASCII": "привет 世界 café 👩‍👧 e\u0301",
    "half a character": "bank \udce9 grows",
    "controls": "bank\x1b[31m \x00grows\x85\u2028money",
    "HTML": "<script>alert('1')</script> & <b>bank</b>",
    "special tokens": "[PAD] [CLS] bank",
    "a word of 500 letters": "b" * 500,
}


@pytest.mark.parametrize("name", ODD)
def test_an_odd_text_is_walked_through_on_100_columns_and_a_page(name, capsys, tmp_path):
    page = tmp_path / "page.html"
    shown = lines(capsys, "walk", ODD[name], "--causal", "--html", page)
    assert max(map(width, shown)) <= 100
    assert not any("\x1b" in line for line in shown)
    html = page.read_text(encoding="utf-8")
    assert "<script" not in html and "<b>" not in html and html.endswith("</html>\n")
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def classifier_of(config):
    """A classifier that has learned nothing."""
    return drawn(lambda rngs: TextClassifier(config, rngs=rngs))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Classifiers: of tokens in two layers, of patches, and without any layer."""
    folder = tmp_path_factory.mktemp("runs")
    tokenizer = train_tokenizer("word:100", [TEXT, "世界 and other words"])
    encoder = {"embed_dim": 12, "num_heads": 6, "num_kv_heads": 2, "hidden_dim": 4}
    for name, layers, norm, more in (
        ("tokens", 2, "post", {}),
        ("regions", 1, "pre", {"region_width": 3}),
        ("patches", 1, "pre", {"patch_width": 3, "region_features": 5, "region_width": 3}),
        ("empty", 0, "pre", {}),
    ):
        config = ClassifierConfig(
            tokenizer.vocab_size,
            12,
            encoder=StackConfig(num_layers=layers, norm=norm, final_norm=True, **encoder),
            **more,
        )
        params = nnx.state(classifier_of(config), nnx.Param)
        (folder / name).mkdir()
        spec = ClassifierSpec(config, ("negative", "positive"), "head-tail", "reviews.csv")
        save_run(folder / name, params, tokenizer, spec)
    return folder


@pytest.mark.parametrize(
    "name", ["tokens", pytest.param("regions", marks=pytest.mark.slow), "patches"]
)
def test_what_is_seen_inside_is_what_the_model_computes(runs, name):
    classifier = load_classifier(runs / name)
    inside = read_activations(classifier, TEXT)
    forward = jax.jit(lambda model, x: model(x, jnp.ones_like(x, bool), return_weights=True)[1])
    maps = forward(classifier.model, jnp.asarray(inside.ids)[None])
    assert len(maps) == len(inside.maps) == classifier.spec.config.encoder.num_layers
    for ours, theirs in zip(inside.maps, maps, strict=True):
        np.testing.assert_allclose(ours, theirs[0], rtol=1e-5, atol=1e-6)
    encode = jax.jit(lambda model, x: model.encoder(x))
    output = encode(classifier.model, jnp.asarray(inside.inputs[0])[None])[0]
    np.testing.assert_allclose(inside.output, output, rtol=1e-4, atol=1e-5)
    if name == "patches":
        assert inside.rows == ("[CLS] a fine", "film not a", "dull film [SEP]")
        assert inside.separators.tolist() == [False, False, True]
        assert inside.token_vectors is None and inside.patches.shape == (3, 5)
    else:
        assert inside.rows == ("[CLS]", *TEXT.split(), "[SEP]")
        assert inside.separators.tolist() == [False] * 8 + [True]
        np.testing.assert_array_equal(inside.token_vectors[3], inside.token_vectors[7])  # film


def test_the_first_attention_without_a_norm_reads_what_its_layer_reads(runs):
    classifier = load_classifier(runs / "tokens")
    stack = replace(classifier.spec.config.encoder, norm="pre", first_norm=False)
    spec = replace(classifier.spec, config=replace(classifier.spec.config, encoder=stack))
    model = classifier_of(spec.config)
    inside = read_activations(replace(classifier, model=model, spec=spec), TEXT)
    np.testing.assert_array_equal(inside.attended[0], inside.inputs[0])
    assert np.abs(inside.attended[1] - inside.inputs[1]).max() > 0


@pytest.mark.parametrize(("name", "layer"), [("tokens", 0), ("tokens", 1), ("patches", 0)])
def test_the_walk_through_a_run_ends_on_its_own_attention(runs, name, layer, capsys):
    classifier = load_classifier(runs / name)
    inside = read_activations(classifier, TEXT)
    parameters = attention_parameters(classifier, layer)
    a = arrays(attention_steps(inside.attended[layer], parameters, inside.rows, head=5))
    attend = jax.jit(
        lambda model, x: model.encoder.layers[layer].attention(
            x, x, LayerContext(return_weights=True)
        )
    )
    output, weights = attend(classifier.model, jnp.asarray(inside.attended[layer])[None])
    np.testing.assert_allclose(a["output"], output[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(a["weights"], weights[0, 5], rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(a["weights"], inside.maps[layer][5], rtol=1e-4, atol=1e-6)
    shown = lines(capsys, "walk", TEXT, "--run", runs / name, "--layer", layer, "--head", 5)
    assert any(line.startswith("output = heads W_O + b_O") for line in shown)
    assert max(map(len, shown)) <= 100
    assert any("patch of 3 neighbouring tokens" in line for line in shown) == (name == "patches")


@pytest.mark.slow
def test_a_text_that_is_too_long_says_what_was_not_read(runs, capsys):
    for command in (
        ("walk", TEXT * 9, "--run", runs / "tokens"),
        ("attention", runs / "tokens", TEXT * 9),
    ):
        assert any("tokens of the text were not read" in line for line in lines(capsys, *command))


@pytest.mark.parametrize(
    ("name", "text", "options"),
    [
        pytest.param("tokens", TEXT, ("html",), marks=pytest.mark.slow),
        pytest.param("patches", TEXT, ("html", "png", "pca"), marks=pytest.mark.slow),
        ("tokens", "<b>世界 $x_$</b>", ("html", "png", "pca")),
        ("patches", "", ("html",)),
    ],
)
def test_attention_prints_a_line_a_head_and_writes_what_was_asked(
    runs, name, text, options, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    asked = [part for option in options for part in (f"--{option}", f"x.{option}")]
    shown = lines(capsys, "attention", runs / name, text, *asked)
    layers = 2 if name == "tokens" else 1
    heads = [line.split()[:2] for line in shown if re.match(r" *\d+ +\d+ ", line)]
    assert heads == [[str(layer), str(head)] for layer in range(layers) for head in range(6)]
    assert any("uniform" in line for line in shown)
    assert max(map(width, shown)) <= 100
    html = (tmp_path / "x.html").read_text(encoding="utf-8")
    assert html.count("<image ") == 6 * layers and html.count("<circle") >= 2
    assert "<b>" not in html and not re.search(r"\bnan\b", html)
    assert re.findall(r"patches of (\d+) neighbouring", html.split("maps</h2>")[1]) == (
        ["3"] if name == "patches" else []
    )
    assert any("lacks characters" in line for line in shown) == ("世" in text)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"x.{o}" for o in options)
    for option in set(options) - {"html"}:
        assert (tmp_path / f"x.{option}").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_a_head_of_a_run_that_looks_back_is_called_previous(runs):
    inside = read_activations(load_classifier(runs / "tokens"), TEXT)
    size = len(inside.rows)
    back = np.eye(size, k=-1, dtype=np.float32)
    back[0, 0] = 1
    maps = [np.array(layer) for layer in inside.maps]
    maps[1][3] = back
    inside = replace(inside, maps=maps)
    found = {(head.layer, head.head): head for head in score_heads(inside)}
    assert found["1", "3"].name == "previous" and found["1", "3"].most in inside.rows
    assert found["", ""].name == "uniform"
    assert found["", ""].scores["first"] == pytest.approx(1 / size)


def test_a_word_is_one_point_before_the_encoder_and_two_after(runs):
    inside = read_activations(load_classifier(runs / "tokens"), TEXT)
    (_, before, labels), (_, after, _) = points(inside)
    first, second = (i for i, label in enumerate(labels) if label == "film")
    np.testing.assert_allclose(before[first], before[second], atol=1e-6)
    assert np.abs(after[first] - after[second]).max() > 1e-3


def test_a_worked_example_shows_its_steps_and_marks_what_the_document_has_wrong(capsys, tmp_path):
    shown = lines(capsys, "walk", "--worked", "cat_sat", "--html", tmp_path / "x.html")
    assert "  sat    0.274    0.274    0.452" in shown
    whole = " ".join(shown)
    for claim in (
        "The document prints (! = wrong):",
        "weights: [[0.506, 0.186, 0.307], [0.186, 0.506, 0.307], [0.307!, 0.307!, 0.387!]]",
        "It should print:",
        "[0.274069, 0.274069, 0.451863]",
        f"Note: {EXAMPLES['cat_sat']['note']}",
    ):
        assert claim in whole
        assert claim in (tmp_path / "x.html").read_text()


def test_a_worked_example_that_agrees_says_so(capsys):
    shown = lines(capsys, "walk", "--worked", "softmax_money")
    assert "All numbers agree." in shown and "weights: [0.659, 0.242, 0.099]" in shown
    assert "should" not in " ".join(shown)


def test_the_list_names_every_example_and_which_do_not_agree(capsys):
    shown = lines(capsys, "walk", "--list")
    assert [line.split()[0] for line in shown] == list(EXAMPLES)
    assert max(map(width, shown)) <= 100
    disagree = {line.split()[0] for line in shown if line.endswith("(does not agree)")}
    assert disagree == {id for id, example in EXAMPLES.items() if not example["agrees"]}


MISTAKES = [
    (["walk"], "pass a text"),
    (["walk", "a", "--worked", "cat_sat"], "pass a text"),
    (["walk", ""], "the text has no words"),
    (["walk", " \n"], "the text has no words"),
    (["walk", "a " * 1001], "must have 1 to 1000 words"),
    (["walk", "a", "--head", "2"], "--head counts from 0, and this model has 2 heads; got 2"),
    (["walk", "a", "--head", "-1"], "--head counts from 0"),
    (["walk", "a", "--heads", "3"], "--heads must divide --dim; got 3 heads for 8"),
    (["walk", "a", "--heads", "0"], "--heads must divide --dim"),
    (["walk", "a", "--dim", "0"], "--dim must be 1 to 1024; got 0"),
    (["walk", "a", "--dim", "99999"], "--dim must be 1 to 1024"),
    (["walk", "a", "--seed", "-1"], "--seed must be 0 to 4294967295; got -1"),
    (["walk", "a", "--layer", "0"], "--layer cannot be used here"),
    (["walk", "a", "--beside", "b"], "--beside needs a text with a word of the first"),
    (["walk", "a", "--beside", ""], "must have 1 to 1000 words"),
    (["walk", "a", "--run", "nowhere"], "nowhere is not a run folder"),
    (["walk", "a", "--run", "tokens", "--dim", "8"], "--dim cannot be used here"),
    (["walk", "a", "--run", "tokens", "--beside", "a"], "--beside cannot be used here"),
    (["walk", "a", "--run", "tokens", "--head", "6"], "this model has 6 heads; got 6"),
    (["walk", "a", "--run", "tokens", "--layer", "2"], "this model has 2 layers; got 2"),
    (["walk", "a", "--run", "patches", "--layer", "-1"], "this model has 1 layer; got -1"),
    (["walk", "a", "--run", "empty"], "has no layers"),
    (["walk", "a", "--html", "nowhere/x.html"], "nowhere/x.html cannot be written: No such file"),
    (["walk", "a", "--html", "tokens"], "tokens cannot be written: Is a directory"),
    (["walk", "a", "--html", "x\0y"], "embedded null"),
    (
        ["walk", "--worked", "cat_sit"],
        "there is no worked example 'cat_sit'; did you mean cat_sat?",
    ),
    (["walk", "--worked", "zzz"], "there is no worked example 'zzz'; walk --list shows all"),
    (["walk", "--worked", ""], "there is no worked example ''"),
    (["attention", "nowhere", "a"], "nowhere is not a run folder"),
    (["attention", "empty", "a"], "empty has no attention layers"),
    (["attention", "patches", TEXT, "--html", "nowhere/x"], "nowhere/x cannot be written"),
    (["attention", "patches", TEXT, "--png", "nowhere/x"], "nowhere/x cannot be written"),
    (["attention", "patches", TEXT, "--pca", "tokens"], "tokens cannot be written: Is a directory"),
]


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[" ".join(c)[:60] for c, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(call, message, runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    before = sorted(runs.rglob("*"))
    assert main(call) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1
    assert sorted(runs.rglob("*")) == before
