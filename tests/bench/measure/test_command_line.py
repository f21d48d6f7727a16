"""The command beside a number names no place of a machine."""

import shlex

import pytest

from bench.measure.command_line import without_paths


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("x --data some/where/imdb --log where/a.jsonl", "x --data PATH --log a.jsonl"),
        ("x --data=imdb.csv --docs docs", "x --data PATH --docs docs"),
        ("x --data=sample --tokenizer word:300", "x --data sample --tokenizer word:300"),
        ("x --data imdb", "x --data imdb"),
        ("x --only 'the whole'", "x --only 'the whole'"),
    ],
)
def test_commands_are_shown_without_paths(words, shown):
    assert without_paths(shlex.split(words)) == shown
