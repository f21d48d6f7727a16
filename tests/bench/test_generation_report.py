"""The programs that measure what writing a token costs, and how the loss falls with size, on small
models.
"""

import itertools
import json
import time
from dataclasses import replace

import numpy as np
import pytest

from bench import generation, scaling
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.runtime.errors import InputError

SMALL = LanguageModelConfig(
    11, 128, decoder=StackConfig(1, 12, 2, 24, norm="pre", final_norm=True), positions="rotary"
)


@pytest.mark.optimized
@pytest.mark.slow
def test_the_law_is_linear_with_the_cache_and_quadratic_without(tmp_path):
    words = "--parts law --lengths 16 32 64 128 --seconds 0".split()
    assert generation.main([*words, "--docs", str(tmp_path)], small=SMALL) == 0
    found = json.loads((tmp_path / "results" / "generation.json").read_text())
    cached, uncached = (found["laws"][name] for name in ("cached", "uncached"))
    # Two products of a query with T keys of 12 features; and of T queries. Projections once, and T
    # times.
    assert cached["b"] == pytest.approx(2 * 2 * 12, rel=1e-3)
    assert cached["c"] == pytest.approx(0, abs=1e-6)
    assert uncached["c"] == pytest.approx(2 * 2 * 12, rel=1e-3)
    assert uncached["b"] == pytest.approx(2 * (4 * 12**2 + 2 * 12 * 24), rel=0.1)
    assert "With and without the cache" in (tmp_path / "benchmarks/generation.md").read_text()


@pytest.mark.optimized
@pytest.mark.slow
def test_decoding_is_measured(tmp_path, monkeypatch):
    def sleeping(batch, new):
        return lambda number: time.sleep(1e-3 * number)

    monkeypatch.setattr(generation, "hugging_face", sleeping)
    words = "--parts decode --batches 1 2 --tokens 40 --rounds 3".split()
    # With fewer features a token takes less time than a busy machine adds to a prompt.
    larger = replace(SMALL, decoder=replace(SMALL.decoder, embed_dim=240, hidden_dim=960))
    assert generation.main([*words, "--docs", str(tmp_path)], large=larger) == 0
    found = json.loads((tmp_path / "results" / "generation.json").read_text())
    assert [row["batch"] for row in found["decode"]] == [1, 2]
    for row in found["decode"]:
        assert row["prompt_tokens_per_second"][generation.OURS] > 0
        assert np.isfinite(row["tokens_per_second"][generation.OURS])
        assert generation.FLOOR in row["ratios"]
        assert min(row["seconds"].values()) > 0
    page = " ".join((tmp_path / "benchmarks/generation.md").read_text().split())
    assert "in float32 where nothing else is said; 40 tokens after a prompt of 64, greedy" in page


def test_time_that_is_lost_in_the_noise_is_measured_again_or_said(monkeypatch):
    """A text that takes less time than its prompt has no time of a token: never a negative one."""
    prompt = {generation.FLOOR: 1.0, "ours, prompt": 20.0, "ours, text": 1.0}
    text = {generation.FLOOR: 1.0, "ours, prompt": 1.0, "ours, text": 9.0}

    def clock(*rounds):
        turns = itertools.cycle(rounds)
        monkeypatch.setattr(
            generation,
            "take_turns",
            lambda calls, seconds, least: {name: [time] for name, time in next(turns).items()},
        )

    clock(prompt, text, text)
    times, by = generation.timed(dict.fromkeys(text), ["ours"], 4, 1)
    assert times["ours, text"] == [1.0, 9.0, 9.0]  # the median of two is below 0 yet
    assert by == {generation.FLOOR: [1.0] * 3, "ours": [-19 / 4, 2.0, 2.0]}
    clock(prompt)
    with pytest.raises(InputError, match="--tokens 4, --rounds 1: the time of ours is lost"):
        generation.timed(dict.fromkeys(text), ["ours"], 4, 1)


@pytest.mark.optimized
@pytest.mark.slow
def test_sizes_are_trained_and_fitted(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("the cat sat on the mat and the dog lay on the log\n" * 200)
    words = "--widths 16 32 48 --steps 30 --layers 1 --length 32 --batch-tokens 256".split()
    assert scaling.main(["--data", str(book), *words, "--docs", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results" / "scaling.json").read_text())
    sizes = [row["parameters"] for row in found["rows"]]
    assert sizes == sorted(sizes) and len(sizes) == 3
    assert found["rows"][0]["flops"] == 6 * sizes[0] * 30 * 256
    assert (tmp_path / "figures" / "scaling.svg").exists()


@pytest.mark.parametrize(
    ("program", "wrong", "says"),
    [
        (generation, "--batches 0", "must be 1 or more"),
        (generation, "--lengths 8 16", "three or more of them up to 1024"),
        (generation, "--lengths 512 1024 2048", "three or more of them up to 1024"),
        (scaling, "--widths 16 32", "--widths must be three or more"),
        (scaling, "--widths 8 16 32", "multiples of 16"),
    ],
)
def test_what_cannot_be_measured_is_said(program, wrong, says, capsys):
    with pytest.raises(SystemExit):
        program.main(wrong.split())
    assert says in capsys.readouterr().err
