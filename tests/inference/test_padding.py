"""Padding is what a batch adds: the id that fills it may occur in a text, and is then read."""

import copy
import shutil
from dataclasses import replace
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from flax import nnx
from scipy.special import softmax

from tests.helpers.checkpoint_files import FOLDER
from tests.helpers.compiled import compiled
from tests.helpers.modules import drawn
from train.classifier.ngram_solver import ngrams_held
from train.objectives.classification import drop_tokens, make_loss
from train.objectives.seq2seq import make_loss as make_pair_loss
from train.objectives.seq2seq import make_pair_batch
from train.tasks.classification import Classification
from train.tasks.translation import Translation
from train.trainer.step import mean
from transformer_jax.inference.classify import Classifier, Scorer, predict
from transformer_jax.inference.load import load
from transformer_jax.inference.translate import translated
from transformer_jax.interpret.explain import explain
from transformer_jax.models.config import ClassifierConfig, SequenceToSequenceConfig
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.text.batching import Plan, make_batch
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer

WORDS = "the film plot was it and fine superb lovely dull poor awful".split()
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
STACK = StackConfig(
    num_layers=1,
    embed_dim=8,
    num_heads=2,
    hidden_dim=8,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
)
# The logits of Transformers 5.24, whose tokenizer gives these texts an attention mask of ones.
LOGITS = {
    "bert-classifier": {
        "the film [PAD] was fine": (-0.806084, -1.083835),
        "[PAD]": (-1.033936, -0.998901),
        "it [PAD] [PAD] was dull [PAD]": (-0.793763, -0.821374),
        "the [SEP] [PAD] plot": (-1.036014, -0.991653),
        "the film was fine": (-0.992725, -0.993106),
        "[PAD] [PAD] the": (-1.140797, -0.947172),
    },
    "distilbert-classifier": {
        "the film [PAD] was fine": (0.209667, 0.101892, 0.216585),
        "[PAD]": (0.0796, -0.281177, -0.122444),
        "it [PAD] [PAD] was dull [PAD]": (0.01205, 0.076034, 0.126732),
        "the [SEP] [PAD] plot": (0.257228, 0.00803, 0.202256),
        "the film was fine": (-0.180901, -0.27235, 0.094862),
        "[PAD] [PAD] the": (-0.004983, -0.02838, 0.021392),
    },
}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Published classifiers, by name."""
    folder, found = tmp_path_factory.mktemp("published"), {}
    for name in LOGITS:
        shutil.copytree(FOLDER / name, folder / name)
        known = [*SPECIAL, *WORDS]
        lines = [*known, *(f"word{i}" for i in range(len(known), 97))]
        (folder / name / "vocab.txt").write_text("".join(f"{line}\n" for line in lines))
        found[name] = load(folder / name, "classifier")
    return found


@pytest.mark.parametrize("name", LOGITS)
def test_a_pad_token_in_a_text_is_read_as_in_transformers(name, published):
    texts, logits = zip(*LOGITS[name].items(), strict=True)
    expected = softmax(np.array(logits), axis=1)
    classifier = Classifier(published[name])
    together = classifier.predictions([*texts, "the film " * 9])[:-1]
    for text, found, row in zip(texts, together, expected, strict=True):
        (alone,) = classifier.predictions([text])
        for each in (found, alone):
            np.testing.assert_allclose(list(each.probabilities.values()), row, atol=2e-6)


@pytest.mark.parametrize("name", LOGITS)
def test_a_pad_token_in_a_text_is_explained_as_it_is_read(name, published):
    text = "the film [PAD] was fine"
    found = explain(published[name], text)
    expected = softmax(np.array(LOGITS[name][text]))
    np.testing.assert_allclose(list(found.probabilities.values()), expected, atol=2e-6)
    assert found.attribution.is_complete
    (value,) = (piece.value for piece in found.pieces if piece.text == "[PAD]")
    assert abs(value) > 1e-4


def test_a_published_classifier_without_a_pad_token_pads_all_the_same(published, tmp_path):
    classifier = published["bert-classifier"]
    tokenizer = copy.copy(classifier.tokenizer)
    expected = predict(classifier, ["the film", "the plot was dull and it was poor"])
    tokenizer.pad_id = None
    without = replace(classifier, tokenizer=tokenizer)
    assert predict(without, ["the film", "the plot was dull and it was poor"]) == expected
    assert explain(without, "the film").label == explain(classifier, "the film").label


# Ids of texts that contain the id 0, which fills a batch.
EXAMPLES = [np.array(ids, np.int32) for ids in ([1, 5, 0, 0, 6, 2], [1, 0, 2], [1, 7, 2])]
LABELS = np.array([0, 1, 1])
TOKENS = 12
MODEL = ClassifierConfig(
    12, 8, 2, STACK, region_width=3, region_features=4, patch_width=2, ngrams=2, ngram_bits=6,
    embedding_dropout_rate=0.0, head_dropout_rate=0.0,
)  # fmt: skip


def batch_of(pad_id):
    return make_batch(Plan(4, 8, np.arange(3, dtype=np.int32)), EXAMPLES, LABELS, pad_id)


@pytest.fixture(scope="module")
def classifier():
    """A classifier with n-grams."""
    return model_of(TextClassifier, MODEL)


def model_of(kind, config):
    """A model, all of whose weights are drawn, biases and n-grams too."""
    return drawn(lambda rngs: kind(config, rngs=rngs))


def test_a_batch_says_which_ids_are_of_a_text():
    batch = batch_of(0)
    lengths = [6, 3, 3, 0]
    np.testing.assert_array_equal(batch.is_token, np.arange(8) < np.array(lengths)[:, None])
    task = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0))
    assert Classification.count_tokens(task, batch) == TOKENS


def test_class_probabilities_do_not_depend_on_the_id_that_fills_a_batch(classifier):
    alone = [compiled(classifier)(ids[None], np.ones((1, len(ids)), bool)) for ids in EXAMPLES]
    expected = softmax(np.concatenate(alone), axis=1)
    scorer = Scorer(classifier, None, (8,), 32)
    for pad_id in (0, 5, 11, None):
        scorer.pad_id = pad_id  # a scorer of its own would be compiled again
        np.testing.assert_allclose(scorer(EXAMPLES), expected, atol=1e-5)


@pytest.mark.parametrize("token_dropout", [0.0, 0.4])
def test_a_loss_and_its_gradient_do_not_depend_on_the_id_that_fills_a_batch(
    token_dropout, classifier
):
    tokenizer = SimpleNamespace(pad_id=0, cls_id=1, sep_id=2, mask_id=3, spec="")
    loss = make_loss(tokenizer, token_dropout=token_dropout, smoothing=0.1)
    graph, params = nnx.split(classifier, nnx.Param)

    @jax.jit
    @jax.value_and_grad
    def value(params, batch):
        return mean(*loss(nnx.merge(graph, params), batch, nnx.Rngs(dropout=0)))

    expected, found = (value(params, batch_of(pad_id)) for pad_id in (11, 0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), expected, found)


def test_token_dropout_drops_a_pad_token_of_a_text_like_any_other():
    tokenizer = SimpleNamespace(pad_id=0, cls_id=1, sep_id=None, mask_id=3)
    tokens, is_token = np.zeros((1, 2000), np.int32), np.arange(2000)[None] < 1000
    drop = jax.jit(lambda *text: drop_tokens(*text, 0.5, tokenizer, nnx.Rngs(dropout=0)))
    dropped = np.asarray(drop(tokens, is_token))[0]
    assert 400 < (dropped[:1000] == 3).sum() < 600
    assert (dropped[1000:] == 0).all()


def test_ngrams_with_a_pad_token_of_a_text_count():
    found = ngrams_held(EXAMPLES, 0, 2, 6)
    np.testing.assert_array_equal(found.toarray(), ngrams_held(EXAMPLES, 11, 2, 6).toarray())


def test_a_translation_loss_does_not_depend_on_the_id_that_fills_a_batch():
    model = model_of(SequenceToSequence, SequenceToSequenceConfig(12, 8, STACK, STACK))
    graph, params = nnx.split(model, nnx.Param)
    plan = Plan(4, 8, np.arange(3, dtype=np.int32))
    loss = make_pair_loss(0.1)
    value = jax.jit(lambda params, batch: mean(*loss(nnx.merge(graph, params), batch, None)))
    batches = [make_pair_batch(plan, EXAMPLES, EXAMPLES[::-1], 8, pad_id) for pad_id in (11, 0)]
    expected, found = (float(value(params, batch)) for batch in batches)
    assert found == pytest.approx(expected, rel=1e-6)
    task = SimpleNamespace(tokenizer=SimpleNamespace(pad_id=0))
    assert {Translation.count_tokens(task, batch) for batch in batches} == {TOKENS - 3}


def test_a_translation_does_not_depend_on_the_id_that_fills_a_batch():
    texts = ["abc", "a", "bca cab", "cc"]
    tokenizer = train_tokenizer("char", ["abc xyz"], lossless=True)
    config = SequenceToSequenceConfig(tokenizer.vocab_size, 16, STACK, STACK)
    model = model_of(SequenceToSequence, config)
    expected = translated(model, tokenizer, texts, beams=1)
    other = copy.copy(tokenizer)
    # Decoding leaves out the padding token, wherever it is.
    other.decode = lambda ids: tokenizer.decode(np.asarray(ids)[ids != other.pad_id])
    for other.pad_id in tokenizer.pieces(["abc"])[0].tolist():
        found = translated(model, other, texts, beams=1)
        name = tokenizer.token(other.pad_id)
        assert found == [text.replace(name, "") for text in expected]


def test_an_end_of_text_in_a_text_is_read_where_it_is_also_the_pad_token(request):
    tokenizer = load_pretrained_tokenizer(request.config.rootpath / "tests/data/tokenizers/gpt2")
    assert tokenizer.pad_id == tokenizer.eos_id
    (ids,) = tokenizer.encode(["a film<|endoftext|>a plot"], 32)
    assert tokenizer.eos_id in ids
    config = ClassifierConfig(tokenizer.vocab_size, 16, 2, STACK)
    model = model_of(TextClassifier, config)
    expected = softmax(compiled(model)(ids[None], np.ones((1, len(ids)), bool)), axis=1)
    scorer = Scorer(model, tokenizer.pad_id, (16,), 64)
    np.testing.assert_allclose(scorer([ids]), expected, atol=1e-6)
