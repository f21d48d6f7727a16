"""A loaded model takes texts, answers as the functions do, and keeps what it compiled."""

import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import transformer_jax as tj
from tests.helpers.checkpoint_files import FOLDER
from tests.serialization.test_run_folder import write
from transformer_jax.inference import classify
from transformer_jax.inference.classify import Classifier, predict
from transformer_jax.inference.embed import SentenceEncoder
from transformer_jax.inference.fill_mask import MaskFiller, fill_masks
from transformer_jax.inference.load import load
from transformer_jax.inference.text_generator import TextGenerator
from transformer_jax.inference.translate import Translator, translate
from transformer_jax.runtime import progress
from transformer_jax.runtime.errors import InputError, PretrainedError, RunFolderError

ROOT = Path(__file__).parents[2]
RUNS = ROOT / "tests" / "data" / "run_folders"
# Of the continuations: each set of settings is compiled.
SETTINGS, DRAWN = {"max_tokens": 7, "stop": ["n"], "seed": 3}, {"top_k": 9, "temperature": 1.5}
TEXTS = ["a fine film and the cast was superb", "", "the plot was dull", "quite a poor play " * 4]


@pytest.fixture(scope="module")
def classifier():
    return tj.load(RUNS / "imdb", "classifier")


@pytest.fixture(scope="module")
def writer():
    return tj.load(RUNS / "lm", "language")


@pytest.fixture
def compiled():
    """A list that holds the name of each program that is compiled after its first use."""
    found = []

    def listen(event, duration, **how):
        if event == "/jax/core/compile/backend_compile_duration":
            found.append(how.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield found
    jax.monitoring.unregister_event_duration_listener(listen)


# What is loaded -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("imdb", None, Classifier),
        ("imdb-finetune", "classifier", Classifier),
        ("imdb-finetune", "encoder", SentenceEncoder),
        ("lm", None, TextGenerator),
        ("mlm", None, MaskFiller),
        ("mlm", "encoder", SentenceEncoder),
        ("translate", None, Translator),
    ],
)
def test_a_run_folder_is_loaded_as_the_class_of_its_kind(name, kind, expected):
    assert type(tj.load(RUNS / name, kind)) is expected
    assert type(tj.load(str(RUNS / name), kind)) is expected


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("bert-classifier", None, Classifier),
        ("bert-classifier", "encoder", SentenceEncoder),
        ("bert", None, MaskFiller),
    ],
)
def test_a_published_model_is_loaded_as_the_class_of_its_kind(name, kind, expected, tmp_path):
    shutil.copytree(FOLDER / name, tmp_path / name)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"word{i}" for i in range(92))]
    (tmp_path / name / "vocab.txt").write_text("\n".join(words))
    assert type(tj.load(tmp_path / name, kind)) is expected


@pytest.mark.parametrize("name", ["TextClassifier", "LanguageModel"])
def test_a_model_is_loaded_in_another_dtype(name, tmp_path):
    write(tmp_path / "run", name)
    trained = tj.load(tmp_path / "run", dtype="bfloat16").trained
    assert {p.dtype.name for p in jax.tree.leaves(trained.model)} == {"bfloat16"}


@pytest.mark.parametrize(
    ("source", "kind", "error", "says"),
    [
        (RUNS / "imdb", "sentiment", ValueError, "kind must be one of classifier, language"),
        (RUNS / "imdb", "language", RunFolderError, "holds a TextClassifier, not a LanguageModel"),
        (RUNS / "imdb", "masked", PretrainedError, "which is not of the kind 'masked'"),
        (RUNS / "nowhere", None, RunFolderError, "is not a run folder"),
    ],
)
def test_a_model_that_is_not_there_is_one_line(source, kind, error, says):
    with pytest.raises(error, match=says) as raised:
        tj.load(source, kind)
    assert "\n" not in str(raised.value)


def test_loading_a_model_needs_neither_orbax_nor_pandas():
    code = (
        "import sys, transformer_jax as tj; assert 'flax' not in sys.modules; "
        f"tj.load({str(RUNS / 'imdb')!r}); "
        "print([n for n in ('orbax', 'pandas', 'sklearn') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.strip() == "[]"


# What it answers ----------------------------------------------------------------------------------


def test_a_classifier_predicts_labels_and_probabilities_in_the_order_of_its_classes(classifier):
    expected = predict(load(RUNS / "imdb"), TEXTS)
    assert classifier.classes == ("negative", "positive")
    labels, probabilities = classifier.predict(TEXTS), classifier.predict_proba(TEXTS)
    assert labels.tolist() == [one.label for one in expected]
    right = [list(one.probabilities.values()) for one in expected]
    np.testing.assert_allclose(probabilities, right, atol=1e-6)
    assert probabilities.shape == (4, 2)
    assert classifier.predictions(TEXTS)[3].tokens_cut == expected[3].tokens_cut


def test_predictions_come_in_the_order_of_the_texts_while_later_ones_are_computed(
    classifier, monkeypatch, capsys
):
    monkeypatch.setattr(classify, "ROWS", 2)
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.0)
    monkeypatch.setattr(classify, "SHORT", 0.0)
    found = classifier.stream(TEXTS, progress=True)
    first = next(found)
    assert "predicting: text 2 of 4" in capsys.readouterr().err
    assert [one.text for one in (first, *found)] == TEXTS
    assert "predicting: text 4 of 4" in capsys.readouterr().err
    streamed = [one.probability for one in classifier.stream(TEXTS)]
    expected = [one.probability for one in classifier.predictions(TEXTS)]
    np.testing.assert_allclose(streamed, expected, atol=1e-6)
    with pytest.raises(TypeError, match="write stream"):
        classifier.stream("a single text")


def test_no_text_has_no_prediction(classifier):
    assert classifier.predict([]).shape == (0,)
    assert classifier.predict_proba(np.array([], str)).shape == (0, 2)
    assert classifier.predictions([]) == [] == list(classifier.stream([]))


def test_texts_may_be_of_numpy_or_pandas(classifier):
    import pandas as pd

    expected = classifier.predict(TEXTS).tolist()
    shuffled = pd.Series(TEXTS, index=[7, 3, 5, 1])
    for texts in (np.array(TEXTS), np.array(TEXTS, object), shuffled, tuple(TEXTS), iter(TEXTS)):
        assert classifier.predict(texts).tolist() == expected


def test_an_explanation_is_of_the_class_that_is_named(classifier):
    found = classifier.explain("a fine film", name="negative")
    assert (found.label, found.name) == ("positive", "negative")
    assert {piece.text for piece in found.pieces} >= {"fine", "film"}


def test_a_language_model_continues_a_prompt_as_the_command_does(writer, capsys):
    from transformer_jax.__main__ import main

    words = ["--tokens", "7", "--top-k", "9", "--temperature", "1.5", "--seed", "3", "--stop", "n"]
    assert main(["generate", str(RUNS / "lm"), "the film", *words]) == 0
    assert capsys.readouterr().out == f"{writer.generate('the film', **SETTINGS, **DRAWN)}\n"


@pytest.mark.parametrize("settings", [DRAWN, {"beams": 2}])
def test_the_pieces_of_a_continuation_make_the_text(writer, settings):
    pieces = list(writer.stream("the film", **SETTINGS, **settings))
    whole = writer.generate("the film", **SETTINGS, **settings)
    assert "the film" + "".join(pieces) == whole
    assert len(pieces) == (1 if "beams" in settings else len("".join(pieces)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"max_tokens": 0}, "max_tokens must be 1 to 8, the room that the prompt leaves"),
        ({"seed": 2**63}, "seed must fit into 64 bits"),
        ({"beams": 0}, "beams must be 1 or more"),
    ],
)
def test_a_setting_that_is_wrong_is_named_before_anything_is_generated(writer, settings, says):
    for use in (writer.generate, writer.stream):
        with pytest.raises(ValueError, match=says):
            use("the film", **settings)


def test_a_prompt_that_fills_the_model_is_not_padded(writer):
    prompt = "the film w"
    room = 16 - len(writer.trained.tokenizer.prompt(prompt, framed=writer.trained.spec.framed))
    whole = writer.generate(prompt, greedy=True)
    assert whole == writer.generate(prompt, greedy=True, max_tokens=room)
    with pytest.raises(ValueError, match="max_length"):
        writer.generate(prompt, max_tokens=room + 1)


def test_a_token_that_stops_a_text_is_named(writer):
    assert writer.generate("the", max_tokens=9, greedy=True, stop=["n"]) == "the an"


def test_the_likeliest_next_tokens_are_texts_with_probabilities(writer):
    found = writer.next_tokens("the fil", 3)
    assert found[0][0] == "m"
    assert [p for _, p in found] == sorted((p for _, p in found), reverse=True)


def test_a_translator_and_a_mask_filler_answer_as_the_functions_do():
    translator, filler = tj.load(RUNS / "translate"), tj.load(RUNS / "mlm")
    texts = np.array(["one two", "", "nine ten"])
    assert translator.translate(texts) == translate(translator.trained, texts.tolist())
    text = "the film was [MASK]"
    trained = filler.trained
    assert filler.fill(text, top=2) == fill_masks(trained.model, trained.tokenizer, text, 2)


def test_an_encoder_embeds_texts():
    encoder = tj.load(RUNS / "mlm", "encoder")
    np.testing.assert_array_equal(encoder.embed(np.array(TEXTS)), encoder(TEXTS))


# What is compiled ---------------------------------------------------------------------------------


def test_a_padded_length_that_was_met_is_not_compiled_again(classifier, compiled):
    classifier.predict(["a film"])
    compiled.clear()
    classifier.predict(["the plot was dull"])
    classifier.predict_proba(["a fine film and the cast was superb"])
    assert compiled == []


def test_lists_of_similar_size_share_what_is_compiled(classifier, compiled):
    classifier.predict(["a film"] * 5)
    compiled.clear()
    classifier.predict(["the plot was dull"] * 8)
    assert compiled == []


def test_prompts_of_one_padded_length_share_what_is_compiled(writer, compiled):
    settings = {"max_tokens": 5, "greedy": True, "stop": ["n"]}
    first = writer.generate("the", **settings)
    writer.next_tokens("the")
    compiled.clear()
    second = writer.generate("a film", **settings)
    writer.next_tokens("a film")
    assert compiled == []
    assert len(first) != len(second)  # continuations of any length are read alike


def test_texts_of_one_padded_length_are_translated_and_embedded_without_compiling(compiled):
    translator, encoder = tj.load(RUNS / "translate"), tj.load(RUNS / "mlm", "encoder")
    translator.translate(["one two", "nine ten"])
    encoder.embed(["a film"])
    compiled.clear()
    translator.translate(["four", "one"])
    encoder.embed(["the plot was dull"])
    assert compiled == []


# Mistakes -----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("texts", "says"),
    [
        ("a film", r"texts must be a list of str, got a single str; write predict\(\[text\]\)"),
        (b"a film", "texts must be a list of str, got bytes"),
        ({"text": "a film"}, "texts must be a list of str, got dict"),
        (None, "texts must be a list of str, got NoneType"),
        (["a film", float("nan")], r"texts\[1\] must be a str, got nan \(float\); drop"),
        (np.array([["a", "film"]]), "a single column, got ndarray with 2 axes"),
        (np.array("a film"), "a single column, got ndarray with 0 axes"),
    ],
)
def test_what_is_not_a_list_of_texts_is_one_line(texts, says, classifier):
    with pytest.raises(TypeError, match=says) as raised:
        classifier.predict(texts)
    assert "\n" not in str(raised.value)


@pytest.mark.usefixtures("as_users_run_it")
def test_a_single_text_is_a_str(classifier, writer):
    with pytest.raises(TypeError, match="text must be a str, got list; pass one at a time"):
        classifier.explain(["a film"])
    with pytest.raises(TypeError, match="prompt must be a str, got list"):
        writer.generate(["a film"])
    with pytest.raises(InputError, match="an empty prompt"):
        writer.next_tokens("")
    with pytest.raises(InputError, match="has 32 tokens, but the model reads at most 16"):
        writer.next_tokens("the film" * 4)
    with pytest.raises(InputError, match="stop: the vocabulary has no token 'film'"):
        writer.generate("the", stop=["film"])
    with pytest.raises(TypeError, match=r"a list of tokens, got a str; write stop=\['n'\]"):
        writer.generate("the", stop="n")
