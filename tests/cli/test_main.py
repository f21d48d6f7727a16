"""The command line: a command imports what it needs, and no more."""

import subprocess
import sys

import pytest

from transformer_jax.__main__ import COMMANDS, main


def test_every_command_has_a_line_in_the_help(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    shown = {line.split()[0] for line in lines if line.startswith("    ") and line.strip()}
    assert raised.value.code == 0 and set(COMMANDS) <= shown


def test_an_unknown_command_names_all_others(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["predit"])
    error = capsys.readouterr().err
    assert raised.value.code == 2 and all(name in error for name in COMMANDS)


def test_cutting_a_text_imports_no_model():
    code = (
        "import sys; from transformer_jax.__main__ import main; main(['tokens', 'A film']); "
        "print([name for name in ('flax', 'tokenizers', 'safetensors') if name in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.splitlines()[-1] == "[]"
