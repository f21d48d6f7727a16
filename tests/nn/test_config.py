"""A config is checked when it is made, and names what is wrong with it."""

import dataclasses

import pytest

from transformer_jax.models.config import ClassifierConfig
from transformer_jax.nn.config import StackConfig

pytestmark = pytest.mark.usefixtures("as_users_run_it")

CLASSIFIER = {"vocab_size": 11, "max_length": 7}


def test_the_defaults_are_the_base_model_of_the_paper():
    config = StackConfig()
    sizes = (config.num_layers, config.embed_dim, config.num_heads, config.hidden_dim)
    assert sizes == (6, 512, 8, 2048)
    assert (config.norm, config.activation, config.dropout_rate) == ("post", "relu", 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"embed_dim": 0}, "embed_dim must be 1 or more; got 0"),
        ({"num_heads": -1}, "num_heads must be 1 or more; got -1"),
        ({"hidden_dim": 0}, "hidden_dim must be 1 or more"),
        ({"num_layers": -1}, "num_layers must be 0 or more; got -1"),
        ({"embed_dim": 13, "num_heads": 6}, "num_heads must divide embed_dim.*6 heads for 13"),
        (
            {"embed_dim": 12, "num_heads": 6, "num_kv_heads": 4},
            "num_kv_heads must divide.*got 4 for 6",
        ),
        ({"num_kv_heads": 0}, "num_kv_heads must be 1 or more; got 0"),
        ({"num_kv_heads": -2}, "num_kv_heads must be 1 or more; got -2"),
        ({"head_dim": 0}, "head_dim must be 1 or more; got 0"),
        ({"embed_dim": 2**31}, "embed_dim must be less than 2147483648; got 2147483648"),
        ({"num_layers": 10**400}, r"num_layers must be less than 2147483648; got 10+\.\.\.$"),
        ({"norm_epsilon": 0.0}, "norm_epsilon must be a number above 0; got 0.0"),
        ({"norm_epsilon": float("nan")}, "norm_epsilon must be a number above 0; got nan"),
        ({"norm": "sandwich"}, "norm must be one of pre, post; got 'sandwich'"),
        (
            {"activation": "swish"},
            "activation must be one of relu, gelu, gelu_tanh, swiglu, geglu, geglu_tanh; "
            "got 'swish'",
        ),
        ({"dropout_rate": 1.0}, r"dropout_rate must be in \[0, 1\); got 1.0"),
        ({"dropout_rate": -0.1}, r"dropout_rate must be in \[0, 1\)"),
        ({"attention_dropout_rate": float("nan")}, r"attention_dropout_rate must be in .* got nan"),
    ],
)
def test_an_encoder_that_cannot_be_says_why(changes, message):
    with pytest.raises(ValueError, match=message):
        StackConfig(**changes)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be 1 or more"),
        ({"max_length": 0}, "max_length must be 1 or more"),
        ({"num_classes": 0}, "num_classes must be 1 or more"),
        ({"num_segments": 0}, "num_segments must be 1 or more"),
        ({"region_width": 2}, "region_width must be odd; got 2"),
        (
            {"patch_width": 2},
            "patch_width=2 makes patches of regions: region_features must be 1 or more",
        ),
        ({"encoder_scale": 0.0}, "encoder_scale must be above 0; got 0.0"),
        ({"encoder_scale": float("nan")}, "encoder_scale must be above 0; got nan"),
        ({"region_features": -1}, "region_features must be 0 or more; got -1"),
        ({"pooling": ("cls", "median")}, "pooling must be among .*mean.*; got 'median'"),
        ({"pooling": ()}, "pooling needs at least one of cls"),
        ({"head_dropout_rate": 1.0}, "head_dropout_rate must be in"),
        ({"embedding_dropout_rate": float("nan")}, "embedding_dropout_rate must be in"),
    ],
)
def test_a_classifier_that_cannot_be_says_why(changes, message):
    with pytest.raises(ValueError, match=message):
        ClassifierConfig(**CLASSIFIER | changes)


def test_a_config_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        StackConfig().num_layers = 3
