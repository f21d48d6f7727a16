"""Curves against the clock: what a log of the tutorial's program says, and when a curve first
passed a bar.
"""

import json

import pytest

from bench.peers.curves import HEAD, read_log, seconds_until
from transformer_jax.runtime.errors import InputError

HEADLINE = {name: None for name in HEAD} | {"data": "x", "parameters": 7}


def points(*accuracies):
    return [{"seconds": 10.0 * (i + 1), "accuracy": a} for i, a in enumerate(accuracies)]


def lines(*accuracies):
    scores = [
        {
            "step": 5 * (i + 1),
            "epoch": 1,
            "seconds": 10.0 * (i + 1),
            "validation_accuracy": a,
            "validation_seconds": 2.0 * (i + 1),
        }
        for i, a in enumerate(accuracies)
    ]
    return [HEADLINE, {"step": 1, "epoch": 1, "seconds": 0.5, "loss": 0.7}, *scores]


def text_of(*accuracies):
    return "".join(json.dumps(line) + "\n" for line in lines(*accuracies))


def test_seconds_until_is_the_first_time_it_was_so_good():
    curve = points(0.5, 0.8, 0.7, 0.9)
    assert [seconds_until(curve, a) for a in (0.5, 0.75, 0.8, 0.9, 0.95)] == [10, 20, 20, 40, None]
    assert seconds_until([], 0.0) is None


def test_a_log_is_what_ran_and_its_points(tmp_path):
    log = tmp_path / "log"
    log.write_text(text_of(0.5, 0.8) + json.dumps({"step": 10, "test_accuracy": 1.0}) + "\n")
    head, found = read_log(log)
    assert set(head) == set(HEAD) and head["data"] == "x"
    assert found == [
        {"step": 5, "seconds": 10.0, "validation_seconds": 2.0, "accuracy": 0.5},
        {"step": 10, "seconds": 20.0, "validation_seconds": 4.0, "accuracy": 0.8},
    ]


@pytest.mark.parametrize("cut", [1, 30])
def test_the_line_that_is_being_written_is_not_read(tmp_path, cut):
    log = tmp_path / "log"
    log.write_text(text_of(0.5, 0.8)[:-cut])
    assert len(read_log(log)[1]) == 1


@pytest.mark.parametrize("text", ["", "an hour of training\n", "[]\n", '{"data": "x"}\n', "7\n"])
def test_what_is_not_a_log_is_one_line(tmp_path, text):
    log = tmp_path / "log"
    log.write_text(text)
    with pytest.raises(InputError, match="is not a log of bench"):
        read_log(log)
