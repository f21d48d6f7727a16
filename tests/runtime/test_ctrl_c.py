"""Ctrl-C ends a program with one line and exit code 130, whatever it is doing."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from transformer_jax.runtime import ctrl_c
from transformer_jax.runtime.ctrl_c import end_on_ctrl_c, interruptible

ROOT = Path(__file__).parents[2]


class Ended(BaseException):
    """The end of a process that the test is in."""


@pytest.fixture
def ctrl_c_ends(monkeypatch):
    """Handle Ctrl-C as a command does, but raise Ended at the end of the process."""

    def end(code):
        raise Ended(code)

    monkeypatch.setattr(ctrl_c.os, "_exit", end)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)
    before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    end_on_ctrl_c()
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    for each, handler in before.items():
        signal.signal(each, handler)


def send():
    signal.raise_signal(signal.SIGINT)


class Lose:
    """An object whose end sends Ctrl-C; an exception raised there is lost."""

    def __del__(self):
        send()


def ended(command, capfd):
    with pytest.raises(Ended) as end:
        interruptible(command)
    assert end.value.args == (130,)
    return capfd.readouterr().err


def test_files_are_closed_before_the_end(ctrl_c_ends, capfd, tmp_path):
    def command():
        with open(tmp_path / "rows", "w", encoding="utf-8") as file:
            file.write("a row\n")
            send()

    assert ended(command, capfd) == "stopped\n"
    assert (tmp_path / "rows").read_text(encoding="utf-8") == "a row\n"


def test_an_error_that_a_library_makes_of_ctrl_c_is_not_shown(ctrl_c_ends, capfd):
    def command():
        try:
            send()
        except KeyboardInterrupt:
            raise ImportError("initialization failed") from None

    assert ended(command, capfd) == "stopped\n"


def test_a_lost_exception_ends_the_process_soon(ctrl_c_ends, capfd, monkeypatch):
    monkeypatch.setattr(ctrl_c, "PATIENCE", 0.05)

    def command():
        Lose()
        time.sleep(10)
        raise AssertionError("it was lost")

    assert set(ended(command, capfd).splitlines()) == {"stopped"}


def test_a_second_ctrl_c_ends_the_process_at_once(ctrl_c_ends, capfd):
    def command():
        try:
            send()
        finally:
            send()

    assert set(ended(command, capfd).splitlines()) == {"stopped"}


def test_without_ctrl_c_a_command_ends_as_it_does(ctrl_c_ends):
    assert interruptible(lambda: 2) == 2
    with pytest.raises(ZeroDivisionError):
        interruptible(lambda: 1 // 0)


def test_a_process_that_ignores_ctrl_c_still_does(ctrl_c_ends):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_on_ctrl_c()
    assert interruptible(lambda: send() or 0) == 0


@pytest.fixture
def not_ignored():
    """Do not ignore Ctrl-C, as the jobs of a shell without a terminal do, and their children."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


SCRIPT = "import sys; sys.argv = ['/bin/transformer-jax', 'runs']; import transformer_jax.__main__"


@pytest.mark.parametrize(
    "words",
    [
        *(["-m", f"train.{name}"] for name in ("classify", "imdb", "lm", "mlm", "translate")),
        ["-m", "transformer_jax", "runs"],
        ["-c", SCRIPT],
        ["-c", "import transformer_jax"],
    ],
    ids=lambda words: words[1],
)
def test_ctrl_c_during_imports_is_one_line_of_a_program_and_an_exception_of_a_library(
    words, tmp_path, not_ignored
):
    """A module that sends Ctrl-C stands in the place of JAX, which costs no time."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text("import signal; signal.raise_signal(2)")
    done = subprocess.run(
        [sys.executable, *words],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
    )
    if words[1] == "import transformer_jax":
        assert done.returncode == -signal.SIGINT and "KeyboardInterrupt" in done.stderr
    else:
        assert (done.returncode, done.stderr) == (130, "stopped\n")
