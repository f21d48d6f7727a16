"""`python -m train.imdb`, from a file on disk to a model that predicts."""

import html
import io
import json
import shlex
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from flax import nnx
from sklearn.utils.class_weight import compute_class_weight

from tests.helpers.small_recipes import bare_reports, small_recipes
from train.imdb import main
from train.objectives.classification import (
    balanced_weights,
    cross_entropy,
    drop_tokens,
    make_loss,
    squared_hinge,
)
from train.recipes.classify_options import ImdbOptions, recipe_of
from train.recipes.imdb import FAST, SAMPLE, TUTORIAL
from train.trainer.metrics_log import event_log
from train.trainer.run import RunError
from transformer_jax.__main__ import main as use
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.text.batching import Batch
from transformer_jax.text.tokenizer import train_tokenizer

WORDS = {"good": ("fine", "superb", "lovely", "great"), "bad": ("dull", "poor", "awful", "weak")}


@pytest.fixture(scope="module")
def csv(tmp_path_factory):
    """300 texts whose label one word tells, but in six: what any trainer must learn."""
    rng = np.random.default_rng(0)
    path = tmp_path_factory.mktemp("data") / "reviews.csv"
    rows = ["text,label"]
    for i in range(300):
        label = ("bad", "good")[i % 2]
        filler = " ".join(
            rng.choice(["the", "film", "plot", "was", "it", "and"], rng.integers(3, 12))
        )
        told = WORDS["good" if i % 50 == 0 else label]  # some texts are labelled wrongly
        rows.append(f"{filler} {rng.choice(told)} {i},{label}")
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def run(csv, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    options = [
        "--data", str(csv), "--out", str(folder), "--epochs", "6", "--batch-tokens", "512",
        "--tokenizer", "word:40", "--dtype", "float32", "--max-length", "16",
    ]  # fmt: skip
    assert main(options) == 0
    return folder


def test_it_learns_and_leaves_a_whole_run_folder(run):
    report = json.loads((run / "report.json").read_text())
    assert report["test_accuracy"] > 0.8
    low, high = report["test_accuracy_interval"]
    assert low < report["test_accuracy"] <= high
    assert report["baseline"]["test_accuracy"] > 0.5
    assert 0 <= report["mcnemar"]["p_value"] <= 1
    assert report["steps"] > 0 and report["train_seconds"] > 0 and report["tokens_per_second"] > 0
    assert sum(map(sum, report["test"]["confusion_matrix"])) == report["data"]["test"]
    assert report["test"]["classes"] == ["bad", "good"]
    for name in (
        "model.safetensors", "config.json", "tokenizer.json", "report.md", "metrics.jsonl",
        "curves.png", "options.json", "checkpoints", "report.html",
    ):  # fmt: skip
        assert (run / name).exists(), name
    markdown = (run / "report.md").read_text()
    assert "logistic regression" in markdown and "transformer" in markdown


def test_the_weights_kept_are_those_that_were_scored(run, csv):
    report = json.loads((run / "report.json").read_text())
    best = max(
        (json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()),
        key=lambda line: line.get("validation_accuracy", -1),
    )
    assert report["best_epoch"] == best["epoch"]
    assert report["validation_accuracy"] == pytest.approx(best["validation_accuracy"], rel=1e-5)


def test_a_test_split_of_one_class_is_noted_on_the_screen_and_in_the_report(tmp_path, capsys):
    texts = [f"text {i}" for i in range(20)]
    train = pd.DataFrame({"text": texts, "label": [0, 1] * 10})
    train.to_parquet(tmp_path / "train.parquet")
    pd.DataFrame({"text": ["a", "b"], "label": [1, 1]}).to_parquet(tmp_path / "test.parquet")
    run, note = tmp_path / "run", "the test split has texts of one class only, positive"
    options = "--epochs 0 --batch-tokens 512 --max-length 16 --tokenizer word:40 --dtype float32"
    with small_recipes(), bare_reports():
        assert main(["--data", str(tmp_path), "--out", str(run), *options.split()]) == 0
    assert f"note        {note}" in capsys.readouterr().out
    assert note in json.loads((run / "report.json").read_text())["data"]["notes"][0]
    assert note in (run / "report.md").read_text()


# Three texts at a time, so that one compiled program serves all.


def test_predict_prints_label_and_probability_and_says_what_was_cut(run, capsys):
    assert use(["predict", str(run), "the film was superb", "the plot was awful", ""]) == 0
    said = capsys.readouterr()
    good, bad, empty = said.out.splitlines()
    assert said.err == "note: 1 of 3 texts are blank, so that the label says nothing\n"
    assert good.startswith("good") and bad.startswith("bad")
    assert empty.split()[0] in ("good", "bad")
    assert "cut" not in good
    assert use(["predict", str(run), "it was superb", "zork quux", "superb " * 20]) == 0
    said = capsys.readouterr()
    first, _, long = said.out.splitlines()
    assert first.startswith("good") and "note: in 1 of 3 texts at least half" in said.err
    assert "tokens were not read" in long and "tokens were not read" not in first


def test_predict_reads_a_file_by_line_feeds_alone_and_writes_json(run, tmp_path, capsys):
    file = tmp_path / "texts.txt"
    file.write_text("it was\u0085lovely\nit was poor\nit was dull\n", encoding="utf-8")
    assert use(["predict", str(run), "--file", str(file), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [line["label"] for line in lines] == ["good", "bad", "bad"]
    assert lines[0]["text"] == "it was\u0085lovely"
    assert sum(lines[0]["probabilities"].values()) == pytest.approx(1, abs=1e-6)
    assert lines[0]["probability"] == max(lines[0]["probabilities"].values())


def test_predict_reads_standard_input(run, monkeypatch, capsys):
    given = io.BytesIO(b"it was great\nit was poor\nit was fine\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(given, "utf-8"))
    assert use(["predict", str(run), "--file", "-"]) == 0
    labels = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == ["good", "bad", "good"]


def test_finished_run_resumed_with_more_epochs_goes_on_where_it_ended(csv, tmp_path, monkeypatch):
    monkeypatch.setattr("train.evaluation.mistakes.MOST", 0)  # none is explained
    run = tmp_path / "run"
    options = "--epochs 1 --batch-tokens 512 --max-length 16 --tokenizer word:40 --no-baseline"
    with small_recipes():
        assert main(["--data", str(csv), "--out", str(run), *options.split()]) == 0
        before = (run / "metrics.jsonl").read_text()
        first = json.loads((run / "report.json").read_text())["test_accuracy"]
        assert main(["--resume", str(run), "--epochs", "2"]) == 0
    after = (run / "metrics.jsonl").read_text()
    assert after.startswith(before) and len(after) > len(before)
    report = json.loads((run / "report.json").read_text())
    assert report["epochs"] == 2
    assert report["earlier_test_accuracies"] == [first]
    commands = [*report["earlier_commands"], report["command"]]
    assert [f"--{name} " in command for command in commands for name in ("data", "resume")] == [
        True, False, False, True
    ]  # fmt: skip
    page = (run / "report.html").read_text()
    assert all(html.escape(command) in page for command in commands)


def test_the_page_has_the_mistakes_of_the_test_split_alone(run, csv):
    report, texts = json.loads((run / "report.json").read_text()), set(pd.read_csv(csv)["text"])
    mistakes = json.loads((run / "mistakes.json").read_text())
    assert len(mistakes) == min(20, report["test"]["texts"] - report["test"]["correct"]) > 0
    assert {"".join(piece[0] for piece in each["pieces"]) for each in mistakes} <= texts
    assert any(piece[1] for piece in mistakes[0]["pieces"])
    page = (run / "report.html").read_text()
    assert "The most confident mistakes" in page and page.count("<mark") > 0


def test_a_finished_run_does_not_pass_for_one_of_other_data(run, csv, tmp_path, capsys):
    began = json.loads((run / "options.json").read_text())["options"]["data"]
    same = f"{Path(began).parent}/../{Path(began).parent.name}/{Path(began).name}"
    with bare_reports():
        for data in ([], ["--data", began], ["--data", same]):
            assert main(["--resume", str(run), *data]) == 0
            assert f"{run} is finished: " in capsys.readouterr().out
    assert main(["--resume", str(run), "--data", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert f"{run} is finished and began with --data {began}; leave --data out" in line
    assert printed.out == ""


def test_tutorial_recipe_is_the_documents_model():
    """Listings 1.30-1.36; spec imdb_model: 16,092,674 parameters."""
    model = nnx.eval_shape(lambda: TextClassifier(TUTORIAL.model, rngs=AbstractRngs()))
    assert sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param))) == 16_092_674
    optimizer = TUTORIAL.fit.optimizer
    assert (optimizer.learning_rate, optimizer.schedule, TUTORIAL.fit.epochs) == (
        3e-4,
        "constant",
        100,
    )
    assert (TUTORIAL.batch_examples, TUTORIAL.buckets, TUTORIAL.truncate) == (16, 1, "head")


def test_options_change_the_recipe_and_nothing_else():
    assert recipe_of(ImdbOptions(), "imdb") == FAST
    assert recipe_of(ImdbOptions(), "sample") == SAMPLE
    changed = recipe_of(ImdbOptions(max_length=64, epochs=2, seed=3), "imdb")
    assert (changed.model.max_length, changed.fit.epochs, changed.fit.seed) == (64, 2, 3)
    assert changed.model.encoder == FAST.model.encoder


@pytest.mark.parametrize("classes", [2, 4])
def test_the_squared_hinge_is_the_formula(classes):
    @jax.jit
    def value_and_pull(logits, labels):
        pull = jax.grad(lambda logits: squared_hinge(logits, labels).sum())
        return squared_hinge(logits, labels), pull(logits)

    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, classes)).astype(np.float32)
    labels = rng.integers(0, classes, 50).astype(np.int32)
    expected = [
        sum(max(0.0, 1 - (row[label] - row[c])) ** 2 for c in range(classes) if c != label)
        for row, label in zip(logits, labels, strict=True)
    ]
    found, _ = value_and_pull(logits, labels)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    _, pull = value_and_pull(5.0 * np.eye(classes, dtype=np.float32)[labels], labels)
    assert (np.asarray(pull) == 0).all()


def test_cross_entropy_is_the_formula():
    logits = np.array([[1.0, -1.0], [0.5, 0.0]], np.float32)
    labels = np.array([0, 1])
    q = 0.8 * np.eye(2)[labels] + 0.1
    expected = -(q * (logits - np.log(np.exp(logits).sum(-1, keepdims=True)))).sum(-1)
    found = jax.jit(cross_entropy, static_argnums=2)(logits, labels, 0.2)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_token_dropout_spares_special_tokens():
    tokenizer = train_tokenizer("word:20", ["the film was good"] * 3)
    text = tokenizer.encode(["the film was good"] * 200, 16)
    tokens = np.full((200, 8), tokenizer.pad_id, np.int32)
    tokens[:, : len(text[0])] = np.stack(text)

    @jax.jit
    def drop(tokens):
        rngs = nnx.Rngs(dropout=0)
        return drop_tokens(tokens, tokens != tokenizer.pad_id, 0.5, tokenizer, rngs)

    dropped = np.asarray(drop(tokens))
    special = np.isin(tokens, [tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id])
    np.testing.assert_array_equal(dropped[special], tokens[special])
    share = (dropped[~special] == tokenizer.mask_id).mean()
    assert abs(share - 0.5) < 4 * np.sqrt(0.25 / (~special).sum())
    assert ((dropped == tokens) | (dropped == tokenizer.mask_id)).all()


def test_rows_that_fill_do_not_count_and_others_by_their_weights():
    tokenizer = train_tokenizer("word:20", ["the film was good"] * 3)
    losses = [
        make_loss(tokenizer, token_dropout=0.0, smoothing=0.0, **options)
        for options in (
            {},
            {"labelled": 1, "unlabelled_weight": 0.25},
            {"class_weights": np.array([0.5, 3.0])},
        )
    ]

    def model(tokens, is_token, rngs):
        return jnp.tile(jnp.array([[2.0, 0.0]]), (len(tokens), 1))

    tokens, is_example = np.ones((3, 8), np.int32), np.array([True, True, False])
    labels, index = np.array([0, 1, 1], np.int32), np.arange(3, dtype=np.int32)
    filled = Batch(tokens, tokens > 0, labels, is_example, index)
    found = jax.jit(lambda batch: [loss(model, batch, nnx.Rngs(0)) for loss in losses])(filled)
    first, second = np.log1p(np.exp(-2.0)), 2 + np.log1p(np.exp(-2.0))
    expected = [first + second, first + 0.25 * second, 0.5 * first + 3 * second]
    np.testing.assert_allclose(found, np.stack([expected, [2, 1.25, 3.5]], axis=1), rtol=1e-6)


def test_balanced_weights_are_those_of_scikit_learn():
    labels = np.array([0, 0, 0, 1, 3, 3])
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels)
    np.testing.assert_allclose(balanced_weights(labels, 5)[[0, 1, 3]], expected)
    assert balanced_weights(labels, 5)[[2, 4]].tolist() == [1, 1]


def test_help_reads_well(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    printed = capsys.readouterr().out
    for option in (
        "--data",
        "--recipe",
        "--tokenizer",
        "--resume",
        "--no-baseline",
        "--gpt2-files",
        "--unlabelled",
    ):
        assert option in printed


@pytest.mark.optimized
@pytest.mark.slow
def test_the_built_in_sample_is_learnt_where_counting_words_is_at_chance(tmp_path, capsys):
    assert main(["--data", "sample", "--out", str(tmp_path / "run")]) == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    command, labels = capsys.readouterr().out.splitlines()[-2:]
    assert use(shlex.split(command)[4:]) == 0
    one, other = (line.split()[0] for line in capsys.readouterr().out.splitlines())
    assert labels.endswith(f"in another order; they are {one} and {other})") and one != other
    assert report["test_accuracy"] > 0.95
    assert report["baseline"]["test_accuracy"] < 0.6
    assert "NOT OF IMDb" in (tmp_path / "run" / "report.md").read_text().splitlines()[0]


def test_tensorboard_gets_every_line_and_its_absence_is_one_line(tmp_path, monkeypatch):
    with event_log(tmp_path, tensorboard=True) as log:
        log({"step": 1, "loss": 0.5})
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"loss" in events.read_bytes()
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(RunError, match="pip install tensorboardX"), event_log(tmp_path, True):
        pass
