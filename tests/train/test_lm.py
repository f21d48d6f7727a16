"""`python -m train.lm`, from a text on disk to a model that writes; `generate` and `next`; and
going on.
"""

import errno
import json
import os
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.helpers.evaluations import evaluated_weights
from train.data.token_file import write_tokens
from train.lm import main
from train.tasks import language_modeling
from train.tasks.language_modeling import sample_text
from transformer_jax.__main__ import main as use

LINE = "the cat sat on the mat and the dog lay on the log\n"
SMALL = [
    "--length", "32", "--layers", "1", "--embed-dim", "24", "--heads", "2", "--batch-tokens", "256",
    "--dtype", "float32", "--dropout", "0",
]  # fmt: skip


@pytest.fixture(scope="module")
def book(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "book.txt"
    path.write_text(LINE * 600)
    return path


@pytest.fixture(scope="module")
def run_and_evaluations(book, tmp_path_factory):
    """A run folder, and the weights that its training evaluated."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    with evaluated_weights(language_modeling) as weights:
        assert main(["--data", str(book), "--out", str(folder), "--epochs", "3", *SMALL]) == 0
    return folder, weights


@pytest.fixture(scope="module")
def run(run_and_evaluations):
    return run_and_evaluations[0]


def test_it_learns_and_leaves_a_whole_run_folder(run):
    report = json.loads((run / "report.json").read_text())
    assert report["held_out_loss"] < 0.3  # a line that comes again and again
    assert report["bits_per_byte"] == pytest.approx(report["held_out_loss"] / 0.6931, rel=2e-3)
    assert report["perplexity"] == pytest.approx(2.71828 ** report["held_out_loss"], rel=1e-3)
    assert report["data"]["held_out_bytes"] == len(LINE) * 60
    for name in (
        "model.safetensors", "config.json", "tokenizer.json", "report.md", "metrics.jsonl",
        "curves.png", "options.json", "checkpoints", "report.html",
    ):  # fmt: skip
        assert (run / name).exists(), name
    assert not (run / "tokens").exists()
    assert (run / "report.md").read_text().startswith("# Language model on book.txt")


def test_the_held_out_text_is_read_once_an_epoch(run_and_evaluations):
    """The report has the scores of the validation that chose the weights."""
    run, weights = run_and_evaluations
    report = json.loads((run / "report.json").read_text())
    assert len(weights) == 3 and report["held_out_loss"] == report["validation_loss"]


def test_it_writes_what_it_has_read(run, capsys):
    assert use(["generate", str(run), "the cat", "--greedy", "--tokens", "15"]) == 0
    assert capsys.readouterr().out == "the cat sat on the mat\n"
    assert use(["generate", str(run), "the cat", "--beams", "3", "--tokens", "11"]) == 0
    assert capsys.readouterr().out == "the cat sat on the\n"
    texts = []
    for seed in ("1", "1", "2"):
        assert use(["generate", str(run), "the", "--temperature", "3", "--seed", seed]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1] != texts[2]


def test_it_stops_where_it_is_told(run, capsys):
    assert use(["generate", str(run), "the cat", "--greedy", "--stop", "n"]) == 0
    assert capsys.readouterr().out == "the cat sat on\n"


def test_the_next_tokens_are_a_table(run, capsys):
    assert use(["next", str(run), "the ca", "--count", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3 and lines[0].endswith("'t'")
    shares = [float(line.split("%")[0]) for line in lines]
    assert shares[0] > 90 and shares == sorted(shares, reverse=True)


def test_its_cost_is_counted(run, capsys):
    assert use(["cost", str(run), "--length", "32", "--xla", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["parameters"] == json.loads((run / "report.json").read_text())["parameters"]
    assert found["compiled"]["counted: products"] == found["forward_flops"]
    assert found["cache_bytes"] == 2 * 32 * 24 * 4


@pytest.mark.usefixtures("without_figures")
def test_separate_texts_are_framed(tmp_path, monkeypatch, capsys):
    for i in range(800):
        (tmp_path / f"{i}.txt").write_text("one two three four five")
    folder = tmp_path / "run"
    monkeypatch.setattr(language_modeling, "sample_text", lambda *_: "")
    options = ["--epochs", "2", "--muon-rate", "0", *SMALL]
    assert main(["--data", str(tmp_path), "--out", str(folder), *options]) == 0
    capsys.readouterr()
    assert use(["generate", str(folder), "one", "--greedy"]) == 0
    assert capsys.readouterr().out == "one two three four five\n"  # and there it ends


@pytest.mark.usefixtures("without_figures")
def test_a_run_goes_on_to_the_bits_it_would_have_had(run, book, tmp_path, monkeypatch):
    stopped, texts = tmp_path / "stopped", []

    def then_a_signal(*arguments):
        texts.append(sample_text(*arguments))
        if len(texts) == 2:
            signal.raise_signal(signal.SIGTERM)
        return texts[-1]

    monkeypatch.setattr("train.tasks.language_modeling.sample_text", then_a_signal)
    begin = ["--data", str(book), "--out", str(stopped), "--epochs", "3", *SMALL]
    assert main(begin) == 128 + signal.SIGTERM
    assert len(texts) == 2 and not (stopped / "report.json").exists()
    assert main(["--resume", str(stopped)]) == 0
    expected = load_file(run / "model.safetensors")
    found = load_file(stopped / "model.safetensors")
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    book.write_text(LINE.upper() * 600)
    try:
        assert main(["--resume", str(stopped), "--epochs", "4"]) == 2  # other texts
    finally:
        book.write_text(LINE * 600)


@pytest.mark.parametrize("fault", ["a full disk", "Ctrl-C"])
def test_what_stops_it_before_training_leaves_nothing(fault, book, tmp_path, monkeypatch, capsys):
    """While the texts become tokens on disk: nothing can be gone on with, so nothing stays, and
    nothing is advised.
    """

    def fail(path, *arguments, **options):
        if fault == "Ctrl-C":
            signal.raise_signal(signal.SIGINT)
        if fault == "a full disk" and path.stem == "held_out":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "held_out.bin")
        return write_tokens(path, *arguments, **options)

    monkeypatch.setattr("train.data.token_file.write_tokens", fail)
    run = tmp_path / "run"
    code = main(["--data", str(book), "--out", str(run), *SMALL])
    error = capsys.readouterr().err
    if fault == "a full disk":
        assert code == 1 and "held_out.bin: No space left on device; free disk space\n" in error
    if fault == "Ctrl-C":
        assert code == 130 and "nothing was kept" in error
    assert not run.exists() and "--resume" not in error


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate", "RUN", ""], "an empty prompt"),
        (["generate", "RUN", "the " * 20], "the prompt has 80 tokens, and the model holds 32"),
        (["generate", "RUN", "the", "--tokens", "40"], "--tokens must be 1 to 29"),
        (["generate", "RUN", "the", "--stop", "Q"], "the vocabulary has no token 'Q'"),
        (["generate", "RUN", "the", "--temperature", "0"], "temperature must be above 0"),
        (["generate", "RUN", "the", "--top-p", "1.5"], "top_p must be in (0, 1]"),
        (["generate", "RUN", "the", "--top-p", "0"], "top_p must be in (0, 1]"),
        (["generate", "RUN", "the", "--beams", "0"], "--beams must be 1 or more"),
        (["next", "RUN", ""], "an empty prompt"),
        (["next", "RUN", "the", "--count", "0"], "--count must be 1 or more"),
        (["predict", "RUN", "the"], "holds a LanguageModel, not a TextClassifier"),
        (["translate", "RUN", "the"], "holds a LanguageModel, not a SequenceToSequence"),
    ],
)  # fmt: skip
def test_a_mistake_is_one_line(run, arguments, message, capsys):
    assert use([str(run) if a == "RUN" else a for a in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none"], "no file or folder none"),
        (["--data", "BOOK", "--length", "1"], "--length must be at least 2"),
        (["--data", "BOOK", "--length", "4000"], "must have more than one window of 4000"),
        (["--data", "BOOK", "--heads", "5"], "embed_dim"),
        (["--data", "BOOK", "--tokenizer", "word:99"], "drops the spaces between words"),
        (["--data", "BOOK", "--learning-rate", "0"], "--learning-rate must be above 0"),
        (["--data", "BOOK", "--batch-tokens", "10"], "less than one window of 256"),
    ],
)  # fmt: skip
def test_a_mistake_of_training_is_one_line(book, arguments, message, capsys, tmp_path):
    arguments = [str(book) if a == "BOOK" else a for a in arguments]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()
