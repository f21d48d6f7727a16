"""Every setting of config.json that changes what Transformers computes is obeyed, or refused in a
line.
"""

import pytest

from tests.helpers.checkpoint_files import FOLDER
from tests.pretrained.test_families import config, copy, write_config
from transformer_jax.pretrained import PretrainedError, from_pretrained
from transformer_jax.pretrained.family import family_of
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.rope_settings import read_rope

FOLDERS = {
    "bert": "bert-classifier",
    "roberta": "roberta",
    "xlm-roberta": "xlm-roberta",
    "distilbert": "distilbert-classifier",
    "modernbert": "modernbert",
    "gpt2": "gpt2",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
}
# Fields of all configurations of Transformers 5.24 with no effect on the outputs of a model: notes,
# what is returned, initial values, ids for texts and losses.
WITHOUT_EFFECT = set(
    "transformers_version architectures output_hidden_states return_dict dtype torch_dtype "
    "chunk_size_feed_forward is_encoder_decoder label2id problem_type initializer_range use_cache "
    "pad_token_id bos_token_id eos_token_id cls_token_id sep_token_id qa_dropout "
    "sinusoidal_pos_embds initializer_cutoff_factor classifier_pooling classifier_dropout "
    "deterministic_flash_attn sparse_prediction sparse_pred_ignore_index summary_type "
    "summary_use_proj summary_activation summary_proj_to_labels summary_first_dropout "
    "reorder_and_upcast_attn pretraining_tp".split()
)
# The other fields of each configuration class, each with a value that is not the folder's.
BERT = {
    "vocab_size": 98, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2,
    "intermediate_size": 41, "hidden_act": "gelu_new", "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.2, "max_position_embeddings": 31, "type_vocab_size": 3,
    "layer_norm_eps": 1e-7, "is_decoder": True, "add_cross_attention": True,
    "tie_word_embeddings": False,
}  # fmt: skip
LLAMA = {
    "vocab_size": 98, "hidden_size": 48, "num_hidden_layers": 1, "num_attention_heads": 6,
    "num_key_value_heads": 1, "intermediate_size": 41, "hidden_act": "gelu",
    "max_position_embeddings": 31, "rms_norm_eps": 1e-7, "head_dim": 8,
    "rope_parameters": {"rope_theta": 7.0}, "attention_bias": True, "attention_dropout": 0.5,
}  # fmt: skip
QWEN = LLAMA | {
    "layer_types": ["full_attention", "sliding_attention"],
}  # fmt: skip
OTHERS: dict[str, dict] = {
    "bert": BERT | {"classifier_dropout": 0.3, "id2label": {"0": "a", "1": "b", "2": "c"}},
    "roberta": BERT | {"pad_token_id": 0},
    "xlm-roberta": BERT | {"pad_token_id": 0},
    "distilbert": {
        "vocab_size": 98, "max_position_embeddings": 31, "n_layers": 1, "n_heads": 2, "dim": 48,
        "hidden_dim": 41, "dropout": 0.2, "attention_dropout": 0.2, "activation": "relu",
        "seq_classif_dropout": 0.4, "tie_word_embeddings": False, "id2label": {"0": "a"},
    },
    "modernbert": {
        "vocab_size": 98, "hidden_size": 48, "intermediate_size": 41, "num_hidden_layers": 3,
        "num_attention_heads": 2, "hidden_activation": "gelu_new", "max_position_embeddings": 31,
        "norm_eps": 1e-7, "norm_bias": True, "attention_bias": True, "attention_dropout": 0.2,
        "layer_types": ["full_attention"] * 4, "local_attention": 4, "embedding_dropout": 0.2,
        "rope_parameters": {"full_attention": {"rope_theta": 7.0}}, "mlp_bias": True,
        "mlp_dropout": 0.2, "decoder_bias": False, "classifier_bias": True,
        "classifier_activation": "gelu_new", "tie_word_embeddings": False,
    },
    "gpt2": {
        "vocab_size": 98, "n_positions": 31, "n_embd": 48, "n_layer": 1, "n_head": 2, "n_inner": 41,
        "activation_function": "gelu", "resid_pdrop": 0.2, "embd_pdrop": 0.2, "attn_pdrop": 0.2,
        "layer_norm_epsilon": 1e-7, "scale_attn_weights": False,
        "scale_attn_by_inverse_layer_idx": True, "add_cross_attention": True,
        "tie_word_embeddings": False,
    },
    "llama": LLAMA | {"mlp_bias": True, "tie_word_embeddings": True},
    "qwen2": {k: v for k, v in QWEN.items() if k != "attention_bias"}
    | {"tie_word_embeddings": False},
    "qwen3": QWEN | {"tie_word_embeddings": True},
}  # fmt: skip


def read(folder: str, **changes):
    """The configuration in a folder of the tests, with changed settings."""
    settings = Settings(FOLDER / folder / "config.json")
    settings.values.update(changes)
    family = family_of(settings)
    architecture = settings.values["architectures"][0]
    try:
        return family.read_config(settings, family.ARCHITECTURES[architecture], set())
    except PretrainedError as error:
        raise error
    except ValueError as error:  # as `from_pretrained` does
        raise settings.error(str(error)) from None


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "gpt2"])
def test_there_is_no_dropout_inside_the_feed_forward_network(name):
    """The families whose reference code has none there, unlike Vaswani et al.'s."""
    config = read(FOLDERS[name])
    config = getattr(config, "text", config)
    stack = config.decoder if name == "gpt2" else config.encoder
    assert stack.hidden_dropout_rate == 0 and stack.dropout_rate > 0


CASES = [(name, field) for name, others in OTHERS.items() for field in others]


@pytest.mark.parametrize(("name", "field"), CASES)
def test_another_value_of_a_setting_gives_another_model_or_a_line(name, field):
    usual = read(FOLDERS[name])
    try:
        assert read(FOLDERS[name], **{field: OTHERS[name][field]}) != usual
    except PretrainedError as error:
        assert "\n" not in str(error) and "config.json" in str(error)


@pytest.mark.parametrize(("name", "field"), CASES)
@pytest.mark.parametrize("value", ["", "x", [1], {"a": {}}, 1.5, -1, True, 10**400])
def test_a_setting_of_another_type_is_a_line(name, field, value):
    if type(value) is type(OTHERS[name][field]) or (value == 1.5 and "drop" not in field):
        return
    if value == 1.5 and field in ("rms_norm_eps", "layer_norm_eps", "norm_eps"):
        return
    with pytest.raises(PretrainedError) as told:
        read(FOLDERS[name], **{field: value})
    assert "\n" not in str(told.value) and len(str(told.value)) < 400


@pytest.mark.parametrize("name", FOLDERS)
def test_every_field_of_transformers_is_listed(name):
    """A setting in the folder, which Transformers wrote, is either obeyed or without effect."""
    known = WITHOUT_EFFECT | set(OTHERS[name]) | {"model_type", "id2label"}
    known |= {
        "use_sliding_window",
        "sliding_window",
        "max_window_layers",
        "global_attn_every_n_layers",
    }
    assert set(config(FOLDER / FOLDERS[name])) <= known


# Two names, two places
# --------------------------------------------------------------------------------------------------

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
}  # fmt: skip
NAMES = ["a", "b"]
NAN, INF = float("nan"), float("inf")  # JSON as Python reads it has both


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("bert-classifier", {"num_labels": 3}, None),
        ("bert-classifier", {"id2label": {"0": "a", "1": "b"}, "num_labels": 3}, "num_labels is 3, and id2label names 2"),
        ("bert-classifier", {"id2label": {"1": "a", "2": "b"}}, "id2label must name the classes 0 to 1"),
        ("bert-classifier", {"id2label": NAMES}, "id2label must be an object"),
        ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='relative_key' is not"),
        ("bert", {"hidden_act": "gelu_10"}, "hidden_act is 'gelu_10'; known are gelu, gelu_python"),
        ("bert", {"hidden_act": "quick_gelu"}, "hidden_act is 'quick_gelu'"),
        ("roberta", {"hidden_act": "relu"}, "hidden_act must be gelu in a masked language model"),
        ("distilbert", {"hidden_size": 48}, "dim is 24, and hidden_size, another name of it, is 48; keep one"),
        ("gpt2", {"n_ctx": 64}, "n_positions is 32, and n_ctx, another name of it, is 64"),
        ("gpt2", {"max_position_embeddings": 64}, "n_positions is 32, and max_position_embeddings"),
        ("gpt2", {"hidden_size": "24"}, "n_embd is 24, and hidden_size, another name of it, is '24'"),
        ("gpt2", {"scale_attn_weights": 1}, "scale_attn_weights=1 is not supported, True is"),
        ("modernbert", {"rope_scaling": YARN}, "rope_scaling=.* is not supported"),
        ("modernbert", {"global_rope_theta": 7.0}, "rope_theta is 500.0 .*, and global_rope_theta outside is 7.0"),
        ("modernbert", {"rope_parameters": {"rope_theta": 7.0}}, "rope_parameters has 'rope_theta'; it must hold full_attention and"),
        ("modernbert", {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "rope_type='linear' is not supported"),
        ("modernbert", {"rope_theta": 7.0}, "rope_theta=7.0 is not supported"),
        ("modernbert", {"sliding_window": 4}, "sliding_window is 4, and local_attention, twice as wide, is 6"),
        ("modernbert", {"hidden_activation": "silu"}, "classifier_activation, of the head, must be"),
        ("modernbert", {"hidden_activation": "silu", "classifier_activation": "silu"}, "classifier_activation, of the head, must be"),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 4096, "max_window_layers": 1, "layer_types": None}, "layers from 1 on attend to 4096 tokens"),
        ("qwen2", {"layer_types": ["full_attention"]}, "layer_types must be full_attention for each of 2 layers"),
        ("llama", {"attn_logit_softcapping": 50.0}, "attn_logit_softcapping=50.0 is not supported"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ("llama", {"rope_theta": 7.0}, "rope_theta is 500.0 .*, and rope_theta outside is 7.0; keep one"),
        ("llama", {"rope_scaling": YARN}, "disagree on rope_theta, which is 10000.0 and 500.0; write all of it into"),
        ("llama", {"rope_scaling": YARN | {"rope_theta": 500.0}, "rope_parameters": YARN | {"rope_theta": 500.0, "factor": 8.0}}, "disagree on the scaling"),
        ("llama", {"rope_scaling": {"rope_type": "default"}, "rope_theta": 500.0, "rope_parameters": YARN}, "disagree on the scaling"),
        ("llama", {"rope_scaling": "yarn"}, "rope_scaling must be an object, got 'yarn'"),
        ("llama", {"rope_parameters": YARN | {"type": "linear"}}, "rope_type is 'yarn', and type, another name of it, is 'linear'"),
        ("llama", {"rope_parameters": {"type": "linear", "rope_type": None}}, "factor is missing"),
        ("llama", {"rope_parameters": {"factor": 4.0}}, "rope_type 'default' does not use 'factor'"),
        ("llama", {"rope_parameters": YARN | {"beta": 4.0}}, "rope_type 'yarn' does not use 'beta'"),
        ("llama", {"rope_parameters": {"full_attention": YARN}}, "does not use 'full_attention'"),
        ("llama", {"rope_parameters": YARN | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor=0.5"),
        ("llama", {"rope_parameters": {"rope_type": "longrope"}}, "rope_type is 'longrope'; known are default"),
        ("llama", {"rope_parameters": YARN | {"factor": 0.5}}, "factor must be 1 or more; got 0.5"),
        ("llama", {"rope_parameters": {"rope_type": "yarn"}}, "factor is missing"),
        ("llama", {"rope_parameters": YARN | {"beta_fast": 1}}, "beta_slow between 0 and beta_fast; got 16, 1.0 and 1.0"),
        ("llama", {"rope_parameters": YARN | {"attention_factor": 0}}, "attention_factor must be above 0"),
        ("llama", {"rope_parameters": YARN | {"truncate": None}}, "truncate must be true or false"),
        ("llama", {"rope_parameters": YARN | {"mscale": "1"}}, "mscale must be a number"),
        ("llama", {"rope_parameters": YARN, "original_max_position_embeddings": 8}, "original_max_position_embeddings is 16 and 8"),
        ("llama", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "original_max_position_embeddings": 16}}, "original_max_position_embeddings=16 is not"),
        ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 0}}, "original_max_position_embeddings must be 1 or more, got 0"),
        ("llama", {"rope_parameters": YARN | {"original_max_position_embeddings": 0}}, "original_max_position_embeddings must be 1 or more, got 0"),
        ("llama", {"rope_parameters": LLAMA3, "original_max_position_embeddings": 0}, "original_max_position_embeddings must be 1 or more, got 0"),
        ("llama", {"rope_parameters": LLAMA3 | {"original_max_position_embeddings": 2**31}}, "original_length must be less than 2147483648"),
        ("llama", {"rope_parameters": LLAMA3 | {"low_freq_factor": 5.0}}, "low between 0 and high; got 32, 5.0 and 4.0"),
        ("llama", {"rope_parameters": {"rope_theta": NAN}}, "rope_theta must be a number, got nan"),
        ("llama", {"rope_parameters": None, "rope_theta": INF}, "rope_theta must be a number, got inf"),
        ("bert", {"layer_norm_eps": NAN}, "layer_norm_eps must be a number, got nan"),
        ("modernbert", {"rope_parameters": None, "global_rope_theta": NAN}, "global_rope_theta must be a number, got nan"),
        ("modernbert", {"rope_parameters": None, "local_rope_theta": 0.5}, "local_rope_base must be a number above 1; got 0.5"),
        ("modernbert", {"rope_scaling": {"rope_type": "default", "rope_theta": 7.0}}, "rope_scaling=.* is not supported"),
        ("modernbert", {"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported, 1.0 is"),
        ("qwen3", {"attention_bias": True}, "attention_bias=True is not supported, False is"),
    ],
)  # fmt: skip
def test_settings_that_contradict_or_are_not_implemented_are_a_line(name, changes, says):
    if says is None:
        assert read(name, **changes).num_classes == 3
        return
    with pytest.raises(PretrainedError, match=says) as told:
        read(name, **changes)
    assert "\n" not in str(told.value) and len(str(told.value)) < 500


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("gpt2", {"n_ctx": 32, "hidden_size": 24, "n_positions": None, "max_position_embeddings": 32}),
        ("gpt2", {"n_inner": 96, "activation_function": None, "reorder_and_upcast_attn": True}),
        ("distilbert", {"hidden_size": 24, "dim": None}),
        ("bert", {"classifier_dropout": None, "position_embedding_type": "absolute", "num_labels": 5}),
        ("modernbert", {"global_rope_theta": 500.0, "local_rope_theta": 20, "sliding_window": 3}),
        ("modernbert", {"layer_types": None}),
        ("modernbert", {"rope_scaling": {}, "partial_rotary_factor": 1.0}),
        ("modernbert", {"rope_scaling": {"rope_type": "default", "type": "default"}}),
        ("modernbert", {"global_attn_every_n_layers": None}),
        ("llama", {"rope_theta": 500}),
        ("llama", {"rope_theta": 500.0, "rope_parameters": None, "rope_scaling": {}}),
        ("llama", {"rope_scaling": {"rope_theta": 500.0, "type": "default"}}),
        ("llama", {"head_dim": None, "pretraining_tp": 2, "partial_rotary_factor": 1}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "layer_types": None}),
        ("qwen3", {"sliding_window": 8, "max_window_layers": 0, "layer_types": None}),
        ("qwen2", {"attention_bias": True, "mlp_bias": True}),  # not among its settings
        ("qwen3", {"mlp_bias": True}),
    ],
)  # fmt: skip
def test_another_spelling_of_the_same_gives_the_same_model(name, changes):
    assert read(name, **changes) == read(name)


def test_a_scaling_beside_the_base_is_read_with_the_base():
    """The settings that the page of Qwen3 recommends, in the file as it was published."""
    given = {"rope_parameters": None, "rope_theta": 1e6, "rope_scaling": YARN}
    found = read("qwen3", **given)
    assert (found.rope_base, found.rope_scaling.scaling, found.max_length) == (1e6, "yarn", 64)


def test_a_scaling_replaces_none_where_the_bases_are_equal():
    settings = Settings.of(
        FOLDER, {"rope_parameters": {"rope_theta": 10_000.0}, "rope_scaling": YARN}
    )
    base, scaling = read_rope(settings, 32)
    assert base == 10_000.0 and scaling is not None and scaling.factor == 4.0


@pytest.mark.parametrize("name", ["quantization_config", "per_layer_config", "pruned_heads"])
def test_changes_of_single_layers_or_of_precision_are_refused(name, tmp_path):
    folder = copy("bert", tmp_path)
    write_config(folder, config(folder) | {name: {"0": [1]}})
    with pytest.raises(PretrainedError, match=f"{name} is not supported"):
        from_pretrained(folder)
