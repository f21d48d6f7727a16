"""The comparison of meshes fails where a loss is further from one device than its page promises."""

import json

import jax
import pytest

from bench import mesh


@pytest.fixture
def far(monkeypatch):
    """Training that computes nothing, with losses on a mesh this far from those on one device."""

    def put(distance):
        def trained(case, sizes=None):
            return [1.0, 1.0 if sizes is None else 1.0 + distance]

        monkeypatch.setattr(mesh, "simulate_devices", lambda: None)
        monkeypatch.setattr(mesh, "trained", trained)
        step = {"collectives": {"all-reduce": 2}, "share": 0.25}
        monkeypatch.setattr(mesh, "step_on", lambda case, sizes: step)

    return put


def test_a_loss_that_is_too_far_fails_and_is_written(far, tmp_path, capsys):
    far(2e-5)
    assert mesh.main(["--steps", "2", "--docs", str(tmp_path)]) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("error: classifier, AdamW, ") and "bfloat16" not in error
    results = json.loads((tmp_path / "results/mesh.json").read_text())
    assert results["differences"]["language model, Muon"] == pytest.approx(5 * [2e-5])
    assert "2.0e-05 |" in (tmp_path / "benchmarks/mesh.md").read_text()


def test_a_loss_that_is_not_a_number_fails(far, tmp_path):
    far(float("nan"))
    assert mesh.main(["--small", "--docs", str(tmp_path)]) == 1
    assert "|       NaN |" in (tmp_path / "benchmarks/mesh.md").read_text()


def test_losses_close_to_one_device_are_written_as_a_page(far, tmp_path):
    far(1e-6)
    assert mesh.main(["--small", "--docs", str(tmp_path)]) == 0
    assert "| language model, AdamW |   1.0e-06 |" in (tmp_path / "benchmarks/mesh.md").read_text()


def test_devices_cannot_be_simulated_once_jax_has_started(tmp_path, capsys):
    assert jax.device_count() != mesh.DEVICES
    assert mesh.main(["--small", "--docs", str(tmp_path)]) == 2
    assert "set JAX_NUM_CPU_DEVICES=8" in capsys.readouterr().err


def test_no_steps_are_an_error(capsys):
    with pytest.raises(SystemExit):
        mesh.main(["--steps", "0"])
    assert "--steps must be 1 or more" in capsys.readouterr().err
