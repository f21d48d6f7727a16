"""The programs compute and accept what was recorded (tests/helpers/record_behaviour.py)."""

import importlib
import json
import shutil

import numpy as np
import pytest

import transformer_jax as tj
from tests.helpers import record_behaviour as behaviour

LOGITS = {"rtol": 1e-5, "atol": 1e-5}
LOSSES = {"rtol": 1e-4, "atol": 1e-4}


# Training -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def training(tmp_path_factory):
    """The results of a run, by its name; each is trained once."""
    folder = tmp_path_factory.mktemp("runs") / "behaviour"
    behaviour.write_data(folder)
    found = {}

    def of(name):
        before = behaviour.RUNS[name][1].get("--pretrained")
        if before:
            of(before)
        if name not in found:
            found[name] = behaviour.trained(name, folder)
        return found[name]

    return of


@pytest.mark.parametrize("name", behaviour.RUNS)
def test_a_training_has_the_recorded_losses(name, training):
    found, recorded = training(name), behaviour.recorded("training")[name]
    assert found["options"] == recorded["options"]
    assert len(recorded["losses"]) == behaviour.STEPS
    np.testing.assert_allclose(found["losses"], recorded["losses"], **LOSSES)
    assert len(found["validation"]) == len(recorded["validation"])
    for scores, expected in zip(found["validation"], recorded["validation"], strict=True):
        assert list(scores) == list(expected)
        np.testing.assert_allclose(list(scores.values()), list(expected.values()), **LOSSES)


@pytest.mark.parametrize("name", behaviour.RUNS)
def test_a_run_folder_has_the_recorded_tensors_and_keys(name, training):
    found, recorded = training(name), behaviour.recorded("training")[name]
    for file in ("model.safetensors", "options.json", "config.json"):
        assert found[file] == recorded[file], file


# Run folders of an earlier version ----------------------------------------------------------------


@pytest.mark.parametrize("name", behaviour.USES)
def test_an_earlier_run_folder_gives_what_it_gave(name):
    found = behaviour.USES[name](behaviour.RUN_FOLDERS / name)
    recorded = behaviour.recorded("outputs")[name]
    assert list(found) == list(recorded)
    for what, value in recorded.items():
        if what in ("logits", "probabilities", "embeddings"):
            np.testing.assert_allclose(found[what], value, **LOGITS, err_msg=what)
        else:
            assert found[what] == value, what


def test_an_earlier_run_that_was_stopped_goes_on_as_if_it_had_not_been(tmp_path):
    found, recorded = behaviour.gone_on(tmp_path), behaviour.recorded("resumed")
    assert found["exit code"] == recorded["exit code"] == 0
    np.testing.assert_allclose(found["losses"], recorded["losses"], **LOSSES)
    np.testing.assert_allclose(found["validation"], recorded["validation"], **LOSSES)


@pytest.mark.parametrize("name", behaviour.USES)
def test_an_earlier_run_that_is_finished_is_known_to_be(name, tmp_path, capsys):
    shutil.copytree(behaviour.RUN_FOLDERS / name, tmp_path / name)
    options = json.loads((tmp_path / name / "options.json").read_text(encoding="utf-8"))
    main = importlib.import_module(options["program"]).main
    assert main(["--resume", str(tmp_path / name)]) == 0
    assert "is finished" in capsys.readouterr().out


# Command lines and names --------------------------------------------------------------------------


@pytest.mark.parametrize("module", behaviour.COMMANDS)
def test_a_command_takes_the_recorded_options(module):
    found = behaviour.command_line(module)
    assert json.loads(json.dumps(found)) == behaviour.recorded("commands")[module]


def test_the_public_names_are_still_there():
    found, recorded = behaviour.names(), behaviour.recorded("names")
    assert not set(recorded) - set(found)
    assert not {name for name in recorded if not name.startswith("_")} - set(dir(tj))


@pytest.mark.parametrize("name", behaviour.recorded("names"))
def test_a_public_function_can_be_called_as_before(name):
    """Parameters keep their names, order and defaults; new ones are optional and come behind."""
    found, recorded = behaviour.names()[name], behaviour.recorded("names")[name]
    by_position = [[p for p in part if not p.startswith("*")] for part in (found, recorded)]
    assert by_position[0][: len(by_position[1])] == by_position[1]
    assert set(recorded) <= set(found)
    assert all("=" in parameter for parameter in set(found) - set(recorded))


def test_documented_import_paths_give_the_public_functions():
    from transformer_jax.attention import dot_product_attention
    from transformer_jax.masks import causal

    assert dot_product_attention is tj.dot_product_attention
    assert causal is tj.causal
