"""A configuration survives JSON; what does not fit is named."""

import dataclasses
import json

import pytest

from transformer_jax.models.config import ClassifierConfig
from transformer_jax.nn.config import StackConfig
from transformer_jax.serialization.typed_json import from_dict

pytestmark = pytest.mark.usefixtures("as_users_run_it")

CLASSIFIER = {"vocab_size": 11, "max_length": 7}


def test_a_config_survives_json():
    config = ClassifierConfig(
        **CLASSIFIER,
        encoder=StackConfig(embed_dim=12, num_heads=6, num_kv_heads=3, norm="pre"),
        pooling=("mean", "max"),
    )
    again = from_dict(ClassifierConfig, json.loads(json.dumps(dataclasses.asdict(config))))
    assert again == config
    assert hash(again) == hash(config)


def test_what_is_left_out_is_the_default():
    assert from_dict(StackConfig, {}) == StackConfig()
    assert from_dict(ClassifierConfig, CLASSIFIER | {"encoder": {"num_layers": 2}}).encoder == (
        StackConfig(num_layers=2)
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (CLASSIFIER | {"layers": 3}, "ClassifierConfig has no 'layers'; its fields are vocab_size"),
        (
            CLASSIFIER | {"encoder": {"heads": 3}},
            "StackConfig has no 'heads'; its fields are num_layers",
        ),
        ({"vocab_size": 11}, "ClassifierConfig needs 'max_length'"),
        ([11, 7], r"ClassifierConfig must be an object, got \[11, 7\]"),
        (CLASSIFIER | {"encoder": {"num_heads": 7}}, "num_heads must divide"),
    ],
)
def test_a_key_that_is_unknown_or_missing_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        from_dict(ClassifierConfig, values)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (CLASSIFIER | {"max_length": "7"}, "max_length must be an integer, got '7'"),
        (CLASSIFIER | {"max_length": 7.0}, "max_length must be an integer, got 7.0"),
        (CLASSIFIER | {"max_length": True}, "max_length must be an integer, got True"),
        (CLASSIFIER | {"max_length": None}, "max_length must be an integer, got None"),
        (CLASSIFIER | {"head_dropout_rate": "0.1"}, "head_dropout_rate must be a number"),
        (CLASSIFIER | {"head_dropout_rate": 10**400}, "head_dropout_rate must be a number"),
        (CLASSIFIER | {"pooling": "cls"}, "pooling must be a list, got 'cls'"),
        (CLASSIFIER | {"pooling": ["cls", 1]}, "pooling must be a string, got 1"),
        (CLASSIFIER | {"encoder": {"norm": ["pre"]}}, "norm must be a string"),
        (CLASSIFIER | {"encoder": {"final_norm": 1}}, "final_norm must be true or false, got 1"),
        (CLASSIFIER | {"encoder": {"head_dim": "4"}}, "head_dim must be an integer, got '4'"),
        (CLASSIFIER | {"encoder": 3}, "StackConfig must be an object, got 3"),
        (CLASSIFIER | {"max_length": "7" * 9999}, r"got '7{59}\.\.\.$"),
    ],
)
def test_a_value_of_another_type_is_named(values, message):
    with pytest.raises(ValueError, match=message):
        from_dict(ClassifierConfig, values)


def test_json_may_spell_a_number_without_its_point():
    assert from_dict(ClassifierConfig, CLASSIFIER | {"head_dropout_rate": 0}).head_dropout_rate == 0
    assert from_dict(StackConfig, {"head_dim": None, "final_norm": True}).head_dim is None
