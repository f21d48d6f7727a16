"""Progress on standard error: lines without a terminal, and estimates without compilation."""

import io
import sys

import pytest

from transformer_jax.runtime.progress import ProgressBar


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still until a test moves it, by `clock[0]`."""
    now = [1000.0]
    for module in ("tqdm.std", "transformer_jax.runtime.progress"):
        monkeypatch.setattr(f"{module}.time", lambda: now[0])
    return now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_without_a_terminal_a_line_is_printed_every_ten_seconds(clock, capsys):
    with ProgressBar(total=100, unit="step") as bar:
        bar.set_postfix(loss="0.312")
        for _ in range(50):
            clock[0] += 0.5
            bar.update()
    assert capsys.readouterr().err.splitlines() == [
        "step 20 of 100, loss=0.312, 00:40 left",
        "step 40 of 100, loss=0.312, 00:30 left",
    ]


def test_a_loop_of_unknown_length_says_for_how_long_it_has_run(clock, capsys):
    for _ in ProgressBar(iter(range(30)), desc="reading", unit="text"):
        clock[0] += 0.5
    assert capsys.readouterr().err.splitlines() == ["reading: text 20, 00:10 so far"]


def test_the_time_left_does_not_count_what_is_uncounted(clock, capsys):
    """A minute of compilation before the first step, and another later."""
    with ProgressBar(total=100, unit="step") as bar:
        for step in range(40):
            if step in (0, 20):
                with bar.uncounted(f"compiling shape {step}"):
                    clock[0] += 60
            clock[0] += 0.5
            bar.update()
    assert capsys.readouterr().err.splitlines() == [
        "compiling shape 0 ...",
        "step 20 of 100, 00:40 left",
        "compiling shape 20 ...",
        "step 40 of 100, 00:30 left",
    ]


def test_a_terminal_shows_a_bar_that_says_what_it_waits_for(clock, monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with ProgressBar(total=100, unit="step") as bar:
        with bar.uncounted("compiling"):
            assert "compiling:   0%" in terminal.getvalue()
            clock[0] += 60
        clock[0] += 0.5
        bar.update()
    last = terminal.getvalue().rpartition("\r")[2]
    assert "compiling" not in last and "1/100 [00:00<00:49" in last


def test_a_bar_that_is_off_prints_nothing(clock, capsys):
    with ProgressBar(total=3, disable=True) as bar, bar.uncounted("compiling"):
        clock[0] += 60
        bar.update()
    assert capsys.readouterr().err == ""
