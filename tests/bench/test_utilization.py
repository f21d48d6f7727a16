"""The program that measures how much of a device's arithmetic a training step uses."""

import json

import pytest

from bench import utilization


@pytest.mark.optimized
@pytest.mark.slow
def test_a_small_step_is_measured(tmp_path, capsys):
    words = "--model tutorial --layers 1 --rows 1 --length 8 --rounds 2 --dtype float32".split()
    assert utilization.main([*words, "--docs", str(tmp_path)]) == 0
    found = json.loads((tmp_path / "results" / "utilization.json").read_text())
    # 8 tokens through one layer of 256 features and 1024 hidden ones, its scores, the head; three
    # times.
    layer = 2 * 8 * (4 * 256**2 + 2 * 256 * 1024) + 2 * 2 * 8 * 8 * 256
    assert found["flops"] == pytest.approx(3 * (layer + 2 * 256 * 2), rel=0.05)
    assert found["utilization"] == pytest.approx(
        found["flops"] / found["seconds"] / found["ceiling"], rel=1e-3
    )
    assert "GFLOP/s" in capsys.readouterr().out


@pytest.mark.parametrize("wrong", ["--length 1000", "--length 0", "--rows 0", "--rounds 0"])
def test_sizes_that_cannot_be_are_an_error(capsys, wrong):
    with pytest.raises(SystemExit):
        utilization.main(["--model", "tutorial", *wrong.split()])
    assert "--length 1 to 256" in capsys.readouterr().err
