"""The command line: a command imports what it needs, and no more."""

import io
import itertools
import subprocess
import sys
from pathlib import Path

import pytest

from transformer_jax import __version__
from transformer_jax.__main__ import COMMANDS, command_parser, main

# Positionals of each command, and its options with their values.
USES = {
    "predict": (["RUN", "one", "two"], [["--json"], ["--file", "f"]]),
    "tokens": (["A film"], [["--corpus", "f"], ["--merges", "3"]]),
    "walk": (["a b"], [["--causal"], ["--dim", "4"], ["--html=x"]]),
    "attention": (["RUN", "one"], [["--html", "f"], ["--png", "g"]]),
    "explain": (["RUN", "one"], [["--top", "3"], ["--class", "positive"]]),
    "cost": (["gpt2"], [["--length", "8"], ["--json"]]),
    "generate": (["RUN", "one"], [["--tokens", "3"], ["--greedy"], ["--stop", "."]]),
    "next": (["RUN", "one"], [["--count", "3"]]),
    "translate": (["RUN", "one", "two"], [["--beams", "2"], ["--alpha=1"]]),
    "embed": (["RUN", "f"], [["-o", "x.npy"], ["--dtype", "bfloat16"]]),
    "similar": (["RUN", "one", "f"], [["--top", "3"], ["--dtype", "bfloat16"]]),
    "fill": (["RUN", "one"], [["--top", "3"]]),
    "runs": (["FOLDER"], [[]]),
    "export": (["RUN", "new"], []),
    "build": ([], []),
}
RUNS = Path(__file__).parents[1] / "data" / "run_folders"
WITH_OPTIONS = [command for command in COMMANDS if USES[command][1]]


def test_every_command_has_a_line_in_the_help(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0] for line in lines if line.startswith("    ") and line.strip()}
    assert raised.value.code == 0 and set(COMMANDS) <= shown


def test_the_version_is_printed_with_the_name(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert raised.value.code == 0
    assert capsys.readouterr().out == f"transformer_jax {__version__}\n"


@pytest.mark.parametrize("path", ["/usr/bin/transformer-jax", r"C:\bin/transformer-jax.exe"])
def test_help_names_the_script_that_was_called(path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [path])
    for words in (["predict", "--help"], ["--help"]):
        with pytest.raises(SystemExit):
            main(words)
        shown = capsys.readouterr().out
        assert shown.startswith("usage: transformer-jax ") and "python -m" not in shown


def test_a_message_names_the_script_that_was_called(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["/usr/bin/transformer-jax"])
    assert main(["predict", str(RUNS / "lm"), "fine"]) == 2
    error = capsys.readouterr().err
    assert f": transformer-jax generate {RUNS / 'lm'} uses it" in error


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_argument_shows_the_usage_of_its_command(command, capsys):
    words = [*USES[command][0], *(["--out", "x.npy"] if command == "embed" else [])]
    with pytest.raises(SystemExit) as raised:
        main([command, *words, "--no-such-option"])
    usage, error = capsys.readouterr().err.split(f"\npython -m transformer_jax {command}: error: ")
    assert raised.value.code == 2 and "--no-such-option" in error
    assert usage.startswith(f"usage: python -m transformer_jax {command} [-h]")


def test_an_unknown_command_names_all_others(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["predit"])
    error = capsys.readouterr().err
    assert raised.value.code == 2 and all(name in error for name in COMMANDS)


def orders(positionals: list[str], options: list[list[str]]) -> list[list[str]]:
    """Every order of the options with the positionals, whose own order stays."""
    parts = [*([text] for text in positionals), *options]
    keep = range(len(positionals))
    return [
        [word for i in order for word in parts[i]]
        for order in itertools.permutations(range(len(parts)))
        if [i for i in order if i in keep] == list(keep)
    ]


@pytest.mark.parametrize("command", WITH_OPTIONS)
def test_positionals_stand_before_between_and_behind_the_options(command):
    positionals, options = USES[command]
    parse = command_parser(command).parse
    found = [vars(parse(words)) for words in orders(positionals, options)]
    assert all(each == found[0] for each in found) and len(found) >= len(positionals) + 1
    values = [x for value in found[0].values() for x in (value if type(value) is list else [value])]
    assert [value for value in values if value in positionals] == positionals
    first, *rest = positionals
    flat = [word for option in options for word in option]
    for words in (
        [*flat, "--", *positionals],
        [first, *flat, "--", *rest],
        [*flat[: len(options[0])], first, *flat[len(options[0]) :], "--", *rest],
    ):
        assert vars(parse(words)) == found[0]


@pytest.mark.parametrize(
    ("words", "texts"),
    [
        (["RUN", ""], [""]),
        (["RUN", "--json", ""], [""]),
        (["RUN", "-1"], ["-1"]),
        (["RUN", "-5 stars", "--json"], ["-5 stars"]),
        (["RUN", "--json", "-- what a film"], ["-- what a film"]),
        (["RUN", "--json", "--", "-bad", "--json", "--"], ["-bad", "--json", "--"]),
        (["--json", "--", "RUN", "-bad"], ["-bad"]),
        (["RUN", "a", "--json", "--", "-b"], ["a", "-b"]),
        (["RUN", "--json", "--"], []),
    ],
)
def test_a_text_may_be_empty_or_begin_with_a_dash(words, texts):
    found = command_parser("predict").parse(words)
    assert (found.folder, found.texts) == ("RUN", texts)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["predict", "RUN", "-bad"], "unrecognized arguments: -bad; put -- before a text that"),
        (["predict", "RUN", "--skip-bad"], "unrecognized arguments: --skip-bad\n"),
        (["predict", "RUN", "--tex", "a"], "unrecognized arguments: --tex"),
        (["fill", "RUN", "a", "--", "-b"], "unrecognized arguments: -b"),
        (["fill", "RUN", "a", "b"], "unrecognized arguments: b\n"),
        (["predict", "RUN", "-hated it"], "argument 'ated it'; put -- before a text that begins"),
        (["predict", "--json"], "the following arguments are required: RUN"),
        (["embed", "RUN", "f"], "the following arguments are required: -o/--out"),
        (["--", "predict", "RUN"], "required: COMMAND"),
        (["--json", "predict", "RUN"], "required: COMMAND"),
        ([], "required: COMMAND"),
    ],
)
def test_a_command_line_that_does_not_fit_is_said(words, says, capsys):
    with pytest.raises(SystemExit) as raised:
        main(words)
    error = capsys.readouterr().err
    assert raised.value.code == 2 and says in error and "\0" not in error


def test_cutting_a_text_imports_no_model():
    code = (
        "import sys; from transformer_jax.__main__ import main; main(['tokens', 'A film']); "
        "print([name for name in ('flax', 'tokenizers', 'safetensors') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"


def test_a_pipe_that_its_reader_closes_ends_a_command_quietly(monkeypatch):
    class Closed(io.StringIO):
        def flush(self):
            raise BrokenPipeError

    run, out, err = Path(__file__).parents[1] / "data/run_folders/imdb", Closed(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert main(["predict", str(run), "a fine film", "a dull play"]) == 0
    assert out.getvalue().count("\n") == 1 and err.closed


def test_the_cost_of_a_mesh_needs_none_of_its_devices(capsys):
    asked = ["gpt2", "--mesh", "data=64,fsdp=8", "--device", "h100", "--batch", "512"]
    assert main(["cost", *asked]) == 0
    assert "512 x NVIDIA H100" in capsys.readouterr().out
