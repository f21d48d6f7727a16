"""The answers of a training program before it trains: usage, version, and its task by name."""

import importlib
import json
import os
import sys

import pytest

from train.recipes.lm import LanguageModelOptions
from train.trainer.closed_pipes import outlast_readers
from train.trainer.launcher import Program
from transformer_jax import __version__

PROGRAMS = pytest.mark.parametrize(
    "name", ["train.imdb", "train.lm", "train.mlm", "train.translate"]
)


class Begin:
    """A task that writes the options of its run, and finishes in no time."""

    def __init__(self, run):
        self.run = run

    def train(self):
        self.run.begin("sum", epochs=self.run.options.epochs or 7)


PROGRAM = Program("train.lm", "", LanguageModelOptions, "this_test:Begin")


class Talk(Begin):
    """A task that prints, too."""

    def train(self):
        print("data        said")
        super().train()
        print("model       said")


@pytest.fixture
def begin(tmp_path, monkeypatch):
    """Run a program that only writes its options, and return what it wrote."""
    monkeypatch.setitem(sys.modules, "this_test", sys.modules[__name__])

    def run(name, *words):
        assert PROGRAM.main([*words, "--out", str(tmp_path / name)]) == 0
        return json.loads((tmp_path / name / "options.json").read_text())

    return run


def test_a_run_starts_from_the_options_of_another_and_the_command_line_comes_first(begin, tmp_path):
    given = ["--seed", "3", "--dropout", "0.5", "--positions", "alibi", "--tensorboard"]
    first = begin("first", *given)
    file = str(tmp_path / "first" / "options.json")
    assert begin("again", "--config", file)["options"] == first["options"]
    assert first["options"]["epochs"] == 7
    changed = begin("changed", "--config", file, "--seed", "0", "--layers", "2")
    assert changed["options"] == first["options"] | {"seed": 0, "layers": 2}
    assert changed["commands"] == [
        f"python -m train.lm --config {file} --seed 0 --layers 2 --out {tmp_path / 'changed'}"
    ]


def test_a_config_may_lack_options_and_those_of_a_command_line_are_not_taken(begin, tmp_path):
    options = {"learning_rate": 1, "out": "x", "resume": "y", "config": "z"}
    (tmp_path / "mine.json").write_text(json.dumps({"program": "train.lm", "options": options}))
    found = begin("run", "--config", str(tmp_path / "mine.json"))["options"]
    assert found == begin("other", "--learning-rate", "1")["options"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read: No such file or directory; pass the options.json of a run folder"),
        ("[]", "has no options of a run; pass the options.json of a run folder"),
        ('{"program": "train.lm", "options": 3}', "has no options of a run"),
        ("[" * 9999, "has no options of a run"),
        (
            '{"program": "train.mlm", "options": {}}',
            "is of a run of 'train.mlm', not of train.lm; pass the options.json of a run folder of "
            "train.lm",
        ),
        (
            '{"program": "train.lm", "options": {"lr": 1}}',
            "train.lm has no option 'lr'; remove it from the file",
        ),
        (
            '{"program": "train.lm", "options": {"layers": "2"}}',
            "layers cannot be '2'; change it in the file",
        ),
    ],
)
def test_a_config_that_cannot_be_used_is_one_line(content, says, tmp_path, capsys):
    file = tmp_path / "options.json"
    if content is not None:
        file.write_text(content)
    assert PROGRAM.main(["--config", str(file), "--out", str(tmp_path / "run")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and f"train.lm: error: --config {file}" in error and says in error
    assert not (tmp_path / "run").exists()


def test_a_config_is_not_combined_with_a_resumed_run(begin, tmp_path, capsys):
    begin("run")
    file = str(tmp_path / "run" / "options.json")
    assert PROGRAM.main(["--resume", str(tmp_path / "run"), "--config", file]) == 2
    assert "--config cannot be combined with --resume" in capsys.readouterr().err


def test_a_resumed_run_lists_the_command_lines_before(begin, tmp_path):
    folder = tmp_path / "run"
    first = begin("run", "--seed", "3")["commands"]
    assert PROGRAM.main(["--resume", str(folder), "--epochs", "9"]) == 0
    found = json.loads((folder / "options.json").read_text())["commands"]
    assert found == [*first, f"python -m train.lm --resume {folder} --epochs 9"]


@PROGRAMS
def test_an_unknown_argument_shows_the_usage_of_the_program(name, capsys):
    assert importlib.import_module(name).main(["--no-such-option"]) == 2
    usage, error = capsys.readouterr().err.split(f"\n{name}: error: ")
    assert usage.startswith(f"usage: python -m {name} [-h]") and "--batch-tokens N" in usage
    assert error == "unrecognized arguments: --no-such-option; --help lists the options\n"


@PROGRAMS
def test_the_version_is_that_of_the_library(name, capsys):
    with pytest.raises(SystemExit) as raised:
        importlib.import_module(name).main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"transformer_jax {__version__}\n"


@PROGRAMS
def test_the_name_of_the_task_is_that_of_a_class(name):
    assert importlib.import_module(name).PROGRAM.task.result


def test_a_run_whose_output_nobody_reads_goes_on_to_its_end(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "this_test", sys.modules[__name__])
    monkeypatch.setattr(sys, "argv", ["train.lm", "--out", str(tmp_path / "run")])
    reader, writer = os.pipe()
    with open(writer, "w", encoding="utf-8") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        patch.setattr(sys, "stderr", pipe)
        os.close(reader)
        assert Program("train.lm", "", LanguageModelOptions, "this_test:Talk").script() == 0
    assert (tmp_path / "run" / "options.json").exists()


def test_what_is_read_of_the_output_comes_line_by_line(monkeypatch):
    reader, writer = os.pipe()
    with open(writer, "w", encoding="latin-1") as pipe, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", pipe)
        patch.setattr(sys, "stderr", None)
        print("first")
        outlast_readers()
        print("zw\xf6lf")
        assert os.read(reader, 99) == b"first\nzw\xf6lf\n" and sys.stderr is None
        os.close(reader)
