"""A classifier fine-tuned from a published encoder is saved as Transformers loads it."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from flax import nnx

from tests.helpers.compiled import compiled
from tests.helpers.run_folders import save_run
from transformer_jax.__main__ import main
from transformer_jax.inference.load import load
from transformer_jax.models.config import EncoderClassifierConfig, TextEncoderConfig
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.pretrained import export
from transformer_jax.pretrained.export import export_classifier
from transformer_jax.runtime.errors import InputError, RunFolderError
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.serialization.specification import EncoderClassifierSpec
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

DATA = Path(__file__).parents[1] / "data"
TEXTS = ["the fox", "the quick brown fox and the lazy dog, not the other one", "a"]
# {family: (folder of a tokenizer, model type, number of segments, activation of the head)}
FAMILIES = {
    "bert": ("wordpiece", "bert", 2, "tanh"),
    "distilbert": ("wordpiece", "distilbert", 0, "relu"),
    "roberta": ("roberta", "roberta", 1, "tanh"),
    "xlm-roberta": ("unigram", "xlm-roberta", 1, "tanh"),
}
REPORT = {
    "data": {"name": "imdb", "source": "stanfordnlp/imdb from the Hugging Face Hub: reviews",
             "train": 12},
    "test": {"texts": 40, "accuracy": 0.925, "log_loss": 0.25, "per_class": {}},
    "command": "python -m train.imdb --data secret.csv",
}  # fmt: skip


def spec_of(family, rows, **changes):
    _, _, segments, activation = FAMILIES[family]
    stack = StackConfig(2, 8, 2, 12, norm_epsilon=1e-12, activation="gelu")
    text = TextEncoderConfig(rows, 24, stack, num_segments=segments)
    # Training makes the tables of n-grams smaller for several classes, also if there are none.
    config = EncoderClassifierConfig(text, 3, "cls", activation, ngram_bits=20)
    config = replace(config, **changes)
    return EncoderClassifierSpec(config, ("bad", "so-so", "good: #1"), "head-tail", "imdb", 12)


def make_run(folder, family="bert", report=REPORT, **changes):
    """A run folder of random weights, with a report."""
    kind, model_type, *_ = FAMILIES[family]
    tokenizer = load_pretrained_tokenizer(DATA / "tokenizers" / kind, model_type)
    spec = spec_of(family, tokenizer.vocab_size, **changes)
    model = nnx.eval_shape(lambda: EncoderClassifier(spec.config, rngs=AbstractRngs()))
    random = np.random.default_rng(0)
    params = jax.tree.map(
        lambda leaf: random.normal(0.5, 0.5, leaf.shape).astype(np.float32), nnx.state(model)
    )
    folder.mkdir()
    save_run(folder, params, tokenizer, spec)
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    return folder


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_computes_the_same_logits(family, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    run = load_classifier(make_run(tmp_path / "run", family))
    export_classifier(tmp_path / "run", tmp_path / "out")
    theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert theirs.config.id2label == dict(enumerate(run.spec.classes))
    assert theirs.config.label2id == {name: i for i, name in enumerate(run.spec.classes)}
    short = TEXTS[::2]  # a longer one loses its middle here, and its end there
    ids = run.tokenizer.encode(short, run.spec.max_length, run.spec.truncate)
    given = tokenizer(short, padding=True, truncation=True, return_tensors="pt")
    is_token = given["attention_mask"].numpy().astype(bool)
    for row, seen, ours in zip(given["input_ids"].numpy(), is_token, ids, strict=True):
        np.testing.assert_array_equal(row[seen], ours)
    with torch.no_grad():
        found = theirs.eval()(**given).logits.numpy()
    right = compiled(run.model)(given["input_ids"].numpy(), is_token)
    np.testing.assert_allclose(found, right, rtol=1e-5, atol=1e-5)
    (long,) = tokenizer(TEXTS[1:2], truncation=True)["input_ids"]
    assert len(long) == run.spec.max_length


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_exported_is_the_model_of_the_run(family, tmp_path):
    run = load_classifier(make_run(tmp_path / "run", family))
    export_classifier(tmp_path / "run", tmp_path / "new" / "out")
    found = load(tmp_path / "new" / "out", "classifier")
    jax.tree.map(
        np.testing.assert_array_equal, *(nnx.state(one.model, nnx.Param) for one in (found, run))
    )
    assert (found.spec.classes, found.spec.max_length) == (run.spec.classes, 12)
    ids = [np.concatenate(one.tokenizer.encode(TEXTS, 12, "head")).tolist() for one in (found, run)]
    assert ids[0] == ids[1] and names(tmp_path / "new") == ["out"]


def card_of(folder):
    _, metadata, body = (folder / "README.md").read_text().split("---\n", 2)
    return yaml.safe_load(metadata), body


def test_the_card_states_what_the_report_says(tmp_path):
    export_classifier(make_run(tmp_path / "run"), tmp_path / "out")
    metadata, body = card_of(tmp_path / "out")
    assert metadata["labels"] == ["bad", "so-so", "good: #1"]
    assert metadata["datasets"] == ["stanfordnlp/imdb"] and "license" not in metadata
    (result,) = metadata["model-index"][0]["results"]
    assert {m["type"]: m["value"] for m in result["metrics"]} == {
        "accuracy": 0.925, "log_loss": 0.25,
    }  # fmt: skip
    assert "on 12 texts of imdb" in body and "40 test texts" in body
    assert "more than 12 tokens" in body and "secret" not in body


def test_the_card_of_a_run_without_a_report_has_no_numbers(tmp_path):
    export_classifier(make_run(tmp_path / "run", report=None), tmp_path / "out")
    metadata, body = card_of(tmp_path / "out")
    assert not {"datasets", "model-index", "license"} & set(metadata) and "## Results" not in body


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"pooling": "mean", "activation": None}, "reads the mean over all tokens"),
        ({"activation": None}, "its head has one layer"),
        ({"ngrams": 2, "ngram_bits": 4}, "include those of n-grams"),
    ],
)
def test_a_head_that_transformers_lacks_is_refused_with_the_reason(changes, says, tmp_path, capsys):
    make_run(tmp_path / "run", **changes)
    assert main(["export", str(tmp_path / "run"), str(tmp_path / "out")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "cannot be exported" in line and says in line and names(tmp_path) == ["run"]


@pytest.mark.parametrize(
    ("run", "says"),
    [
        ("imdb", "it was trained from scratch"),
        ("imdb-finetune", "its encoder is not that of a published model"),
        ("lm", "holds a LanguageModel"),
    ],
)
def test_a_run_of_another_model_is_refused_with_the_reason(run, says, tmp_path):
    with pytest.raises(RunFolderError, match=says):
        export_classifier(DATA / "run_folders" / run, tmp_path / "out")
    assert names(tmp_path) == []


def test_nothing_is_overwritten_and_half_a_folder_is_never_left(tmp_path, monkeypatch, capsys):
    run = make_run(tmp_path / "run")
    (tmp_path / "there").mkdir()
    with pytest.raises(InputError, match="there exists; pass the name of a new folder"):
        export_classifier(run, tmp_path / "there")
    monkeypatch.setattr(export, "model_card", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_classifier(run, tmp_path / "out")
    assert names(tmp_path) == ["run", "there"] and names(tmp_path / "there") == []
    monkeypatch.undo()
    (tmp_path / "file").write_text("")
    assert main(["export", str(run), str(tmp_path / "file" / "out")]) == 2
    assert "cannot be written: Not a directory" in capsys.readouterr().err


def test_the_command_says_how_long_texts_differ(tmp_path, capsys):
    run = make_run(tmp_path / "run")
    assert main(["export", str(run), str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("note: Transformers cuts a text of more than 12 tokens at its end")
    assert lines[1].endswith("out: bad, so-so, good: #1")
    settings = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert (settings["model_max_length"], settings["padding_side"]) == (12, "right")
    shutil.rmtree(tmp_path / "out")
