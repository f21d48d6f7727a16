"""The scaling of rotary positions is checked, has the defaults of its kind, and is saved."""

import json
from dataclasses import asdict

import numpy as np
import pytest

from transformer_jax.functional.rotary import rope_frequencies, yarn_temperature
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.position_schemes import RopeScaling
from transformer_jax.serialization.specification import LanguageModelSpec
from transformer_jax.serialization.typed_json import from_dict


def test_the_defaults_of_a_scaling_are_those_of_its_kind():
    yarn, llama3 = RopeScaling("yarn", 4.0, 16), RopeScaling("llama3", 4.0, 16)
    assert (yarn.temperature, llama3.temperature) == (yarn_temperature(4.0), 1.0)
    assert RopeScaling("yarn", 4.0, 16, attention_factor=0.5).temperature == 0.5


def test_dynamic_scaling_changes_nothing_up_to_the_longest_text():
    np.testing.assert_array_equal(
        RopeScaling("dynamic", 4.0).frequencies(8, 500.0), rope_frequencies(8, base=500.0)
    )


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"scaling": "longrope"}, "scaling must be one of linear, dynamic, ntk, yarn, llama3"),
        ({"factor": 0.5}, "factor must be 1 or more; got 0.5"),
        ({"factor": float("nan")}, "factor must be 1 or more"),
        ({"original_length": None}, "yarn needs original_length"),
        ({"original_length": -1}, "yarn needs original_length, .* got -1"),
        ({"beta_slow": 40.0}, "beta_slow between 0 and beta_fast; got 16, 40.0 and 32.0"),
        ({"attention_factor": 0.0}, "attention_factor must be above 0"),
    ],
)
def test_a_scaling_that_cannot_be_is_an_error(wrong, says):
    with pytest.raises(ValueError, match=says):
        RopeScaling(**{"scaling": "yarn", "factor": 4.0, "original_length": 16} | wrong)


def test_a_run_folder_keeps_the_scaling():
    scaling = RopeScaling("yarn", 4.0, 16, beta_fast=8.0, truncate=False, attention_factor=0.9)
    config = LanguageModelConfig(11, 64, positions="rotary", rope_scaling=scaling)
    spec = LanguageModelSpec(config, "data", framed=False)
    assert from_dict(LanguageModelSpec, json.loads(json.dumps(asdict(spec)))) == spec


def test_a_scaling_of_an_earlier_run_folder_is_read():
    stored = {
        "scaling": "llama3", "factor": 8, "original_length": 32, "low": 1.0, "high": 4.0,
    }  # fmt: skip
    found = from_dict(RopeScaling, stored)
    assert found == RopeScaling("llama3", 8.0, 32)
