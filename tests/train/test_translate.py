"""`python -m train.translate`, from pairs on disk to a model that translates."""

import json
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

from train.evaluation.metrics import bleu
from train.translate import main
from transformer_jax.__main__ import main as use
from transformer_jax.inference.translate import translate, translated
from transformer_jax.serialization.run_folder import load_model

WORDS = {"one": "eins", "two": "zwei", "ten": "zehn", "nil": "null", "few": "paar"}
SMALL = [
    "--layers", "1", "--embed-dim", "32", "--heads", "2", "--max-length", "32",
    "--tokenizer", "char", "--batch-tokens", "64", "--dtype", "float32", "--dropout", "0",
    "--epochs", "3", "--learning-rate", "4e-3",
]  # fmt: skip


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """All rows of up to three words, which are translated one by one."""
    path = tmp_path_factory.mktemp("data") / "pairs.tsv"
    words = list(WORDS)
    texts = [[w] for w in words] + [[a, b] for a in words for b in words]
    texts += [[a, b, c] for a in words for b in words for c in words]
    lines = ["{}\t{}".format(" ".join(t), " ".join(WORDS[w] for w in t)) for t in texts]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture(scope="module")
def run(table, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "run"
    assert main(["--data", str(table), "--out", str(folder), *SMALL]) == 0
    return folder


def test_it_learns_and_leaves_a_whole_run_folder(run):
    report = json.loads((run / "report.json").read_text())
    assert report["exact"] >= 0.5
    assert "13a" in report["bleu_signature"]
    for name in (
        "model.safetensors", "config.json", "tokenizer.json", "report.md", "metrics.jsonl",
        "curves.png", "options.json", "checkpoints", "report.html", "translations.txt",
    ):  # fmt: skip
        assert (run / name).exists(), name
    assert (run / "report.md").read_text().startswith("# Translation on pairs")


def test_it_translates_lines_in_their_order(run, tmp_path, capsys):
    texts = ["one two ten", "", "two", "ten one", "nil nil nil", "few", "two nil"]
    trained = load_model(run, "SequenceToSequence")
    expected = translate(trained, texts)
    assert expected[1] == "" and expected[2] == "zwei"
    for text, found in zip(texts, expected, strict=True):
        assert translate(trained, [text]) == [found]
    assert use(["translate", str(run), *texts]) == 0
    assert capsys.readouterr().out.split("\n")[:-1] == expected
    (tmp_path / "texts").write_text("\n".join(texts))
    assert use(["translate", str(run), "--file", str(tmp_path / "texts"), "--beams", "1"]) == 0
    greedy = capsys.readouterr().out.split("\n")[:-1]
    assert len(greedy) == 7 and greedy[2] == "zwei"


@pytest.mark.usefixtures("without_figures")
def test_a_run_goes_on_to_the_bits_it_would_have_had(run, table, tmp_path, monkeypatch, capsys):
    stopped, calls = tmp_path / "stopped", []

    def then_a_signal(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return translated(*arguments, **options)

    monkeypatch.setattr("train.tasks.translation.translated", then_a_signal)
    assert main(["--data", str(table), "--out", str(stopped), *SMALL]) == 130
    assert len(calls) == 2 and not (stopped / "report.json").exists()
    assert main(["--resume", str(stopped), "--beams", "1"]) == 0
    expected, found = (load_file(folder / "model.safetensors") for folder in (run, stopped))
    assert set(found) == set(expected)
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], err_msg=name)
    assert json.loads((stopped / "report.json").read_text())["beams"] == 1
    assert main(["--resume", str(stopped)]) == 0
    assert "is finished: 3 epochs, BLEU" in capsys.readouterr().out


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["translate", "RUN", "one " * 20], "tokens more than the 32 that the model reads"),
        (["translate", "RUN", "one", "--beams", "0"], "--beams must be 1 or more; got 0"),
        (["translate", "RUN", "one", "--alpha", "-1"], "--alpha must be 0 or more"),
        (["generate", "RUN", "one"], "holds a SequenceToSequence, not a LanguageModel"),
        (["predict", "RUN", "one"], "holds a SequenceToSequence, not a TextClassifier"),
    ],
)
def test_a_mistake_is_one_line(run, arguments, message, capsys):
    assert use([str(run) if a == "RUN" else a for a in arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "none"], "no file or folder none"),
        (["--data", "TABLE", "--max-length", "2"], "--max-length must be at least 3"),
        (["--data", "TABLE", "--beams", "0"], "--beams must be at least 1"),
        (["--data", "TABLE", "--heads", "5"], "embed_dim"),
        (["--data", "TABLE", "--learning-rate", "0"], "--learning-rate must be above 0"),
        (["--data", "TABLE", "--muon-rate", "-1"], "--muon-rate must be 0 or more; got -1.0"),
        (["--data", "TABLE", "--label-smoothing", "1"], "--label-smoothing must be in [0, 1)"),
        (["--data", "TABLE", "--batch-tokens", "10"], "less than one text of 128"),
    ],
)
def test_a_mistake_of_training_is_one_line(table, arguments, message, capsys, tmp_path):
    arguments = [str(table) if a == "TABLE" else a for a in arguments]
    assert main([*arguments, "--out", str(tmp_path / "run")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "run").exists()


def test_bleu_is_sacrebleus():
    """One line by hand: all n-grams are right but the text is a word short."""
    reference = "a b c d e f g h i j"
    found = bleu(["a b c d e f g h i"], [reference])
    assert found["bleu"] == pytest.approx(100 * np.exp(1 - 10 / 9), abs=0.01)
    assert found["exact"] == 0.0
    assert bleu([reference], [reference])["bleu"] == pytest.approx(100)
