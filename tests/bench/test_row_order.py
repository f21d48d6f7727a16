"""The page of validation without movie ids compares the movies of both parts."""

import numpy as np
import pytest

from bench import row_order
from train.data import splits
from train.data.dataset import Split


def test_the_share_is_that_of_held_out_texts_whose_movie_is_in_training(monkeypatch):
    given = []

    def draw(split, fraction, seed, part):
        given.append((split.groups, fraction, seed))
        return np.array([0, 1]), "by chance (0.1 asked for)"

    monkeypatch.setattr(splits, "draw", draw)
    split = Split(list("abcd"), np.array([0, 1, 0, 1], np.int32), ["tt1", "tt2", "tt1", "tt3"])
    found = row_order.compare(split, 2)
    assert given == [(None, 0.1, 0), (None, 0.1, 1)]
    assert found.pop("seconds") >= 0
    twice = {"shared": [0.5, 0.5], "sizes": [2, 2], "balance": [0.5, 0.5]}
    assert found == {"rule": "by chance"} | twice


def test_every_order_has_every_row():
    split = Split(list("abcd"), np.array([1, 0, 1, 0], np.int32), ["tt2", "tt3", "tt1", "tt2"])
    by_class, by_movie, shuffled = row_order.orders(split).values()
    assert by_class.tolist() == [1, 3, 0, 2] and by_movie.tolist() == [2, 0, 3, 1]
    assert sorted(shuffled) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("words", "message"),
    [("--data no/such/file.csv", "no file or folder"), ("--data {table}", "names no movies")],
)
def test_data_without_movies_are_one_line(words, message, tmp_path, capsys):
    table = tmp_path / "texts.csv"
    table.write_text("text,label\n" + "".join(f"text {i},{i % 2}\n" for i in range(20)))
    words = words.format(table=table).split()
    assert row_order.main([*words, "--docs", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ") and message in line
