"""`python -m train.mlm`, from reviews to an encoder that fills masks and is fine-tuned; and going
on.
"""

import json
import shutil
import signal

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from tests.helpers.evaluations import evaluated_weights
from tests.helpers.kills import differences
from tests.helpers.record_behaviour import RUN_FOLDERS
from train.classifier.finetuning import load_encoder
from train.imdb import main as finetune
from train.mlm import main
from train.optim import precision
from train.tasks import masked_lm
from train.tasks.masked_lm import MaskedLanguageModeling
from transformer_jax.__main__ import main as use
from transformer_jax.inference.fill_mask import fill_masks
from transformer_jax.pretrained import from_pretrained, tokenizer_of
from transformer_jax.serialization.run_folder import (
    WEIGHTS,
    load_classifier,
    load_model,
    steps_taken,
)
from transformer_jax.text.tokenizer import load_tokenizer

SMALL = [
    "--length", "32", "--layers", "1", "--embed-dim", "24", "--heads", "2", "--batch-tokens", "512",
    "--dtype", "float32",
]  # fmt: skip
LEARNING = ["--epochs", "3", "--learning-rate", "0.03", "--dropout", "0.02"]
WORDS = {"good": ("fine", "superb", "lovely"), "bad": ("dull", "poor", "awful")}
THINGS = {"good": ("play", "cast"), "bad": ("plot", "end")}


def review(rng, label):
    """Texts in which praised things are never blamed: the words around a mask predict it."""
    parts = [f"the {rng.choice(THINGS[label])} was {rng.choice(WORDS[label])}" for _ in range(3)]
    return " and ".join(parts)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Reviews with and without labels, of which a number makes each another."""
    folder = tmp_path_factory.mktemp("data") / "reviews"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name, rows in (("train", 200), ("test", 40), ("unsupervised", 1300)):
        labels = [("bad", "good")[i % 2] for i in range(rows)]
        table = {"text": [f"{review(rng, label)} {name} {i}" for i, label in enumerate(labels)]}
        if name != "unsupervised":
            table["label"] = [i % 2 for i in range(rows)]
        pd.DataFrame(table).to_parquet(folder / f"{name}.parquet")
    return folder


def arguments(data, run, *more):
    return ["--data", str(data), "--out", str(run), *SMALL, "--tokenizer", "word:100", *more]


@pytest.fixture(scope="module")
def run_and_evaluations(data, tmp_path_factory):
    """A run folder, and the weights that its training evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with evaluated_weights(masked_lm) as weights:
        assert main(arguments(data, folder, *LEARNING)) == 0
    return folder, weights


@pytest.fixture(scope="module")
def run(run_and_evaluations):
    return run_and_evaluations[0]


@pytest.fixture(scope="module")
def pieces(data, tmp_path_factory):
    """An encoder of byte-level pieces, not trained."""
    folder = tmp_path_factory.mktemp("runs") / "pieces"
    assert main(arguments(data, folder, "--tokenizer", "bpe:400", "--epochs", "0")) == 0
    return folder


def test_it_learns_and_leaves_a_whole_run_folder(run):
    report = json.loads((run / "report.json").read_text())
    assert report["held_out_loss"] < report["unigram_loss"] - 0.8
    assert report["held_out_accuracy"] > 0.4
    assert report["data"]["texts"] == 180 + 1300
    for name in (
        "model.safetensors", "config.json", "tokenizer.json", "report.md", "metrics.jsonl",
        "curves.png", "options.json", "checkpoints", "report.html",
    ):  # fmt: skip
        assert (run / name).exists(), name
    assert (run / "report.md").read_text().startswith("# Masked language model on reviews")
    spec = load_model(run, "MaskedLanguageModel").spec
    assert (spec.data, spec.seed, spec.config.max_length) == ("reviews", 0, 32)


def test_the_held_out_texts_are_read_once_an_epoch(run_and_evaluations):
    """The report has the scores of the validation that chose the weights."""
    run, weights = run_and_evaluations
    report = json.loads((run / "report.json").read_text())
    assert len(weights) == 3 and report["held_out_loss"] == report["validation_loss"]


def test_no_held_out_text_is_read(run, data):
    """Each text has its own number; those of test and of validation are in no vocabulary of all
    words.
    """
    known = set(load_tokenizer(run / "tokenizer.json")._core.get_vocab())
    assert "test" not in known and {"train", "unsupervised"} < known


def test_it_fills_masks(run, capsys):
    text = "the play was fine and the cast was [MASK] and the play was lovely train 3"
    assert use(["fill", str(run), text, "--top", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[1] for line in lines} == set(WORDS["good"])
    assert sum(float(line.split("%")[0]) for line in lines) > 80


def test_a_mask_takes_the_space_before_it_along(pieces):
    """The mask includes the space, as pieces do; else the model would see a space that it never saw
    there.
    """
    tokenizer = tokenizer_of(pieces)
    (ids,) = tokenizer.pieces(["the cast was [MASK] and"])
    assert [tokenizer.token(i) for i in ids] == ["the", "Ġcast", "Ġwas", "[MASK]", "Ġand"]
    ((guess,),) = fill_masks(from_pretrained(pieces), tokenizer, "the cast was [MASK] and", 1)
    assert guess.text.startswith("the cast was") and guess.text.endswith(" and")


@pytest.mark.parametrize("kind", ["run", "pieces"])
def test_its_tokenizer_gives_the_ids_that_were_learned(kind, request):
    """Read by `tokenizers` alone, or as a pretrained one: but for a special token that is spelled
    out.
    """
    folder = request.getfixturevalue(kind)
    own, published = load_tokenizer(folder / "tokenizer.json"), tokenizer_of(folder)
    texts = ["The cast was SUPERB<br />and it’s odd: zebra", ""]
    for one, other in zip(own.encode(texts, 30), published.encode(texts, 30), strict=True):
        np.testing.assert_array_equal(one, other)
    assert own.spec == published.spec
    assert (own.mask_id in own.encode(["[MASK]"], 9)[0]) is False
    assert published.encode(["[MASK]"], 9)[0].tolist() == [2, published.mask_id, 3]


@pytest.mark.parametrize("kind", ["run", "pieces"])
def test_it_is_fine_tuned_and_predicts(kind, request, data, tmp_path, capsys):
    """No words are said about what it is: config.json tells."""
    folder, tuned = request.getfixturevalue(kind), tmp_path / "tuned"
    options = [
        "--data", str(data), "--pretrained", str(folder), "--out", str(tuned), "--no-baseline",
        "--dtype", "float32", "--batch-tokens", "128", "--learning-rate", "3e-3", "--epochs", "2",
    ]  # fmt: skip
    assert finetune(options) == 0
    assert "has seen validation texts" not in capsys.readouterr().out  # it is of the same seed
    report = json.loads((tuned / "report.json").read_text())
    assert report["test_accuracy"] > 0.85
    assert report["settings"]["model"]["pooling"] == "mean"  # no [CLS] has learned anything
    assert report["weights"].keys() == {"head", "evidence"} and report["evidence_seconds"] > 0
    assert (load_file(tuned / "model.safetensors")["evidence.weight"] != 0).any()
    texts = [
        " and ".join([text] * 3) + " train 3"
        for text in ("the cast was superb", "the plot was awful")
    ]
    assert use(["predict", str(tuned), *texts]) == 0
    good, bad = capsys.readouterr().out.splitlines()
    assert good.startswith("positive") and bad.startswith("negative")
    assert load_classifier(tuned).tokenizer.spec == tokenizer_of(folder).spec


def test_the_encoder_comes_along_whole(run):
    pretrained = load_encoder(run)
    weights = load_file(run / "model.safetensors")
    text = {name for name in weights if name.startswith("text.")}
    assert weights.keys() - text == {"head.linear.kernel", "head.norm.scale", "head.bias"}
    table = pretrained.encoder.embedding.token.embedding[...]
    np.testing.assert_array_equal(table, weights["text.embedding.token.embedding"])
    assert (pretrained.config.pooling, pretrained.linear) == ("mean", None)
    encoder = from_pretrained(run, kind="encoder")
    np.testing.assert_array_equal(encoder.embedding.token.embedding[...], table)


@pytest.mark.usefixtures("without_figures")
def test_another_seed_is_told_of(run, data, tmp_path, monkeypatch, capsys):
    """Its validation would be of texts that were learned from. (The same seed is not, above.)"""
    monkeypatch.setattr("train.tasks.classification.write_mistakes", lambda *_, **__: None)
    options = ["--data", str(data), "--pretrained", str(run), "--epochs", "0", "--no-baseline",
               "--dtype", "float32", "--seed", "1", "--out", str(tmp_path / "tuned")]  # fmt: skip
    assert finetune(options) == 0
    assert "has seen validation texts of this run" in capsys.readouterr().out


@pytest.mark.usefixtures("without_figures")
def test_a_stopped_run_goes_on_bit_for_bit(run, data, tmp_path, monkeypatch):
    """The run is stopped in the middle of the second epoch, with dropout."""
    stopped, taken, count_tokens = tmp_path / "stopped", [], MaskedLanguageModeling.count_tokens
    report = json.loads((run / "report.json").read_text())
    steps, at = report["steps"], round(1.4 * report["steps"] / 3)

    def then_ctrl_c(task, batch):
        taken.append(batch)
        if len(taken) == at:
            signal.raise_signal(signal.SIGINT)
        return count_tokens(task, batch)

    monkeypatch.setattr(MaskedLanguageModeling, "count_tokens", then_ctrl_c)
    assert main(arguments(data, stopped, *LEARNING)) == 130
    assert steps_taken(stopped / WEIGHTS) == (at, steps)
    assert main(["--resume", str(stopped), "--checkpoint-minutes", "5"]) == 0
    assert differences(stopped, run) == []
    assert steps_taken(stopped / WEIGHTS) is None


@pytest.mark.usefixtures("without_figures")
def test_a_run_goes_on_with_its_own_texts_alone(data, tmp_path, capsys):
    copy, folder = tmp_path / "reviews", tmp_path / "run"
    shutil.copytree(data, copy)
    assert main(arguments(copy, folder, "--epochs", "0")) == 0
    table = pd.read_parquet(copy / "unsupervised.parquet")
    table.loc[3, "text"] += " and more"
    table.to_parquet(copy / "unsupervised.parquet")
    assert main(["--resume", str(folder), "--epochs", "1"]) == 2
    assert "the data are not those that" in capsys.readouterr().err


@pytest.fixture(scope="module")
def others(run, tmp_path_factory):
    """Folders that are no run of train.mlm, or a damaged one; a table without other texts."""
    folder = tmp_path_factory.mktemp("others")
    (folder / "nothing").mkdir()
    shutil.copytree(RUN_FOLDERS / "lm", folder / "lm")
    shutil.copytree(RUN_FOLDERS / "imdb", folder / "scratch")
    for name in ("shallow", "lost", "words"):
        shutil.copytree(run, folder / name)
    config = json.loads((run / "config.json").read_text())
    config["config"]["encoder"]["num_layers"] = 2
    (folder / "shallow" / "config.json").write_text(json.dumps(config))
    weights = load_file(run / "model.safetensors")
    weights.pop("head.bias")
    save_file(weights, folder / "lost" / "model.safetensors")
    (folder / "words" / "tokenizer.json").write_text("{}")
    rows = [f"review {i},{i % 2}\n" for i in range(20)]
    (folder / "labelled.csv").write_text("text,label\n" + "".join(rows))
    (folder / "empty.csv").write_text("text,label\n" + ",0\n" * 9 + "a,1\n" * 2 + "b,1\n")
    return folder


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("OTHERS/none", "is not a folder"),
        ("OTHERS/nothing", "has no config.json"),
        ("OTHERS/lm", "holds a LanguageModel, which has no text encoder"),
        ("OTHERS/scratch", "holds a TextClassifier, which has no text encoder"),
        ("OTHERS/shallow", "lacks text.encoder.layers.1"),
        ("OTHERS/lost", "lacks head.bias"),
        ("OTHERS/words", "tokenizer.json cannot be used"),
    ],
)  # fmt: skip
def test_what_cannot_be_fine_tuned_is_one_line(others, data, model, message, tmp_path, capsys):
    folder = model.replace("OTHERS", str(others))
    out = tmp_path / "tuned"
    assert finetune(["--data", str(data), "--pretrained", folder, "--out", str(out)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line and not out.exists()


@pytest.mark.usefixtures("as_users_run_it")
def test_no_more_tokens_are_read_than_it_holds(run, data, tmp_path, capsys):
    """But in passages, of which a mean is made."""
    out = tmp_path / "tuned"
    options = ["--data", str(data), "--pretrained", str(run), "--out", str(out), "--pooling", "cls"]
    assert finetune([*options, "--max-length", "33"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"--max-length 33 is more than the 32 tokens that {run} holds" in line
    assert not out.exists()


@pytest.mark.parametrize(
    ("resumed", "message"),
    [
        ("none", "none: there is no such folder"),
        ("nothing", "nothing: it has no readable options.json"),
        ("lm", "lm is a run of 'train.lm', not of train.mlm"),
    ],
)
def test_what_cannot_go_on_is_one_line(others, resumed, message, capsys):
    assert main(["--resume", str(others / resumed)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["fill", "RUN", "no mask"], "the text has no [MASK]"),
        (
            ["fill", "OTHERS/lm", "[MASK]"],
            "is a run folder of a LanguageModel, which is not of the kind 'masked'",
        ),
        (["fill", "OTHERS/nothing", "[MASK]"], "has no config.json"),
        (["fill", "RUN", "[MASK] " * 40], "the text has 42 tokens; the model holds 32"),
        (["predict", "RUN", "fine"], "python -m transformer_jax fill RUN uses it"),
        (["generate", "RUN", "fine"], "holds a MaskedLanguageModel, not a LanguageModel"),
    ],
)  # fmt: skip
def test_a_mistake_of_use_is_one_line(run, others, command, message, capsys):
    def placed(text):
        return text.replace("RUN", str(run)).replace("OTHERS", str(others))

    assert use(list(map(placed, command))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert placed(message) in line


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "none"], "no file or folder none"),
        (["--data", "OTHERS/empty.csv"], "9 with a blank text (lines 2, 3, 4, ...)"),
        (["--tokenizer", "gpt2"], "has no mask token; pass word:N or bpe:N"),
        (["--tokenizer", "words"], "tokenizer must be bpe:N, word:N"),
        (["--mask-rate", "1"], "--mask-rate must be above 0 and below 1; got 1.0"),
        (["--mask-rate", "nan"], "--mask-rate must be above 0 and below 1"),
        (["--length", "2"], "--length must be at least 3"),
        (["--batch-tokens", "100"], "less than one row of 128 tokens"),
        (["--heads", "7"], "embed_dim"),
        (["--embed-dim", "12", "--heads", "4"], "rotary positions turn pairs of features"),
        (["--muon-rate", "-1"], "--muon-rate must be 0 or more"),
    ],
)
def test_a_mistake_of_training_is_one_line(others, options, message, capsys, tmp_path):
    options = [option.replace("OTHERS", str(others)) for option in options]
    if "--data" not in options:
        options += ["--data", "sample"]
    assert main([*options, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("without_figures")
def test_without_unlabelled_texts_those_with_labels_are_all(others, tmp_path, capsys):
    """A line says so; it is no mistake."""
    options = ["--data", str(others / "labelled.csv"), "--epochs", "0", "--tokenizer", "word:50"]
    assert main([*SMALL, *options, "--out", str(tmp_path / "run")]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "unlabelled texts" in line]
    said = "labelled.csv has no unlabelled texts: only its training texts are used"
    assert line == f"note        {said}"


@pytest.mark.usefixtures("without_figures")
@pytest.mark.parametrize(
    ("source", "asked", "found"),
    [
        ("DATA", [], "bfloat16"),
        ("DATA", ["--dtype", "float32"], "float32"),
        ("sample", [], "float32"),
    ],
)
def test_it_computes_in_the_faster_dtype_but_for_the_sample(
    source, asked, found, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(precision, "operands_dtype", lambda _: "bfloat16")
    place, folder = source.replace("DATA", str(data)), tmp_path / "run"
    assert main(["--data", place, "--out", str(folder), *SMALL[:-2], "--epochs", "0", *asked]) == 0
    assert json.loads((folder / "report.json").read_text())["compute_dtype"] == found
    assert json.loads((folder / "options.json").read_text())["options"]["dtype"] == found


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_sample_is_told_by_an_encoder_that_was_pretrained_on_it(tmp_path):
    """The default settings of the programs; five minutes on two cores, and ten on one."""
    encoder, classifier = tmp_path / "encoder", tmp_path / "classifier"
    assert main(["--data", "sample", "--out", str(encoder)]) == 0
    options = ["--data", "sample", "--pretrained", str(encoder), "--out", str(classifier)]
    assert finetune(options) == 0
    found = {run: json.loads((run / "report.json").read_text()) for run in (encoder, classifier)}
    assert found[encoder]["held_out_loss"] < 1.0
    assert found[classifier]["test_accuracy"] > 0.95
    assert found[classifier]["baseline"]["test_accuracy"] < 0.6
