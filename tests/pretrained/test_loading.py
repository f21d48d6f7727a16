"""Published files with unusual contents are read rightly, or refused in a line, and never
written wrongly.
"""

import json

import jax
import numpy as np
import pytest
from flax import nnx

from tests.data.checkpoints.variants import VARIANTS, write
from tests.helpers.checkpoint_files import FOLDER
from tests.pretrained.test_families import change, config, copy, index, write_config
from transformer_jax.models.config import (
    EncoderClassifierConfig,
    LanguageModelConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.pretrained import PretrainedError, from_pretrained, hub, save_pretrained

# Saved is what a family computes
# ---------------------------------------------------------------------------


def encoder(**changes):
    stack = {"norm_epsilon": 1e-12, "activation": "gelu"} | changes.pop("stack", {})
    settings = TextEncoderConfig(13, 10, StackConfig(1, 8, 2, 12, **stack), **changes)
    return TextEncoder(settings, rngs=nnx.Rngs(0))


def classifier(pooling, activation, **changes):
    settings = EncoderClassifierConfig(encoder(**changes).config, 2, pooling, activation)
    return EncoderClassifier(settings, rngs=nnx.Rngs(0))


def writer(positions, window=None, **stack):
    usual = {"norm": "pre", "final_norm": True}
    if positions == "rotary":
        usual |= {"norm_kind": "rms", "biases": False, "activation": "swiglu"}
    else:
        usual |= {"activation": "gelu_tanh"}
    stack = StackConfig(1, 8, 2, 12, **(usual | stack))
    settings = LanguageModelConfig(13, 10, stack, positions=positions, window=window)
    return LanguageModel(settings, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
    "make",
    [
        lambda: encoder(stack={"norm": "pre"}),
        lambda: encoder(stack={"head_norm": True}),
        lambda: encoder(stack={"biases": False}),
        lambda: encoder(stack={"norm_kind": "rms"}),
        lambda: encoder(stack={"num_kv_heads": 1}),
        lambda: encoder(window=2),
        lambda: encoder(num_segments=0, stack={"norm_epsilon": 1e-5}),
        lambda: classifier("mean", None),
        lambda: classifier("mean", "tanh"),
        lambda: classifier("cls", "relu"),
        lambda: classifier("cls", "tanh", num_segments=0),
        lambda: writer("learned", window=2),
        lambda: writer("rotary", window=2),
        lambda: writer("learned", norm="post"),
        lambda: writer("learned", num_kv_heads=1),
        lambda: writer("rotary", activation="geglu"),
        lambda: writer("rotary", qkv_biases=True, head_norm=True),
        lambda: writer("rotary", value_dim=3),
    ],
)
def test_what_a_family_would_compute_otherwise_is_not_saved(make, tmp_path):
    with pytest.raises(ValueError, match="does not hold this"):
        save_pretrained(make(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [encoder, lambda: writer("learned"), lambda: writer("rotary")])
def test_what_a_family_holds_is_saved(make, tmp_path):
    model = make()
    save_pretrained(model, tmp_path)
    found, right = (nnx.state(m, nnx.Param) for m in (from_pretrained(tmp_path), model))
    assert jax.tree.structure(found) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, found, right)


@pytest.mark.parametrize("classes", [("one",), ("one", "one")])
def test_classes_that_do_not_fit_are_an_error(classes, tmp_path):
    model = from_pretrained(FOLDER / "bert-classifier")
    with pytest.raises(ValueError, match="classes must be as many different names"):
        save_pretrained(model, tmp_path, classes=classes)


# Read
# --------------------------------------------------------------------------------------------------


def test_a_tied_head_that_is_stored_is_not_unknown(tmp_path):
    folder = copy("qwen2", tmp_path)
    change(folder, lambda t: t | {"lm_head.weight": t["model.embed_tokens.weight"]})
    assert from_pretrained(folder).head is None


def test_the_encoder_of_a_model_with_its_own_output_matrix_is_saved(tmp_path):
    folder = write(VARIANTS["bert-own_head-tied-true"], tmp_path / "given")
    save_pretrained(from_pretrained(folder).text, tmp_path / "saved")
    assert type(from_pretrained(tmp_path / "saved")) is TextEncoder


def test_the_encoder_of_any_task_is_read(tmp_path):
    folder = copy("bert-classifier", tmp_path)
    change(folder, lambda t: t | {"qa_outputs.weight": np.zeros((2, 24), np.float32)})
    write_config(folder, config(folder) | {"architectures": ["BertForQuestionAnswering"]})
    with pytest.raises(PretrainedError, match='pass kind="encoder"'):
        from_pretrained(folder)
    assert type(from_pretrained(folder, kind="encoder")) is TextEncoder
    write_config(folder, {k: v for k, v in config(folder).items() if k != "architectures"})
    assert type(from_pretrained(folder)) is TextEncoder


def test_where_the_hub_answers_it_is_asked_for_what_the_cache_lacks(monkeypatch):
    """Another program may have cached the weights without the files that say how to pool."""
    import huggingface_hub

    asked = []

    def snapshot_download(name, *, local_files_only=False, **options):
        asked.append("cache" if local_files_only else "hub")
        return str(FOLDER / "distilbert")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    monkeypatch.setattr(hub, "_silence", lambda name: None)
    assert hub.folder_of("someone/tiny") == FOLDER / "distilbert"
    assert asked == ["cache", "hub"]


# Refused
# --------------------------------------------------------------------------------------------------


def settings_of(**changes):
    return lambda folder: write_config(folder, config(folder) | changes)


def with_tensor(name):
    return lambda folder: change(folder, lambda t: t | {name: np.zeros(24, np.float32)})


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        (
            "bert",
            settings_of(tie_word_embeddings=False),
            r"lacks cls\.predictions\.decoder\.bias, cls\.predictions\.decoder\.weight",
        ),
        ("bert", settings_of(tie_word_embeddings="no"), "tie_word_embeddings must be true or"),
        ("gpt2", settings_of(tie_word_embeddings=False), r"lacks lm_head\.weight"),
        ("bert", settings_of(layer_norm_eps=10**400), "layer_norm_eps must be a number"),
        ("bert", settings_of(architectures=[["x"]]), r"architecture \['x'\] is not among"),
        ("bert", settings_of(type_vocab_size=0), "type_vocab_size must be 1 or more, got 0"),
        ("bert", with_tensor(f"bert.encoder.layer.{'9' * 5000}.x"), "has encoder.layer.999"),
        ("bert", with_tensor("bert.a\n\x1b[31m"), r"has a\\n\\x1b\[31m, which"),
        (
            "bert",
            with_tensor("embeddings.LayerNorm.gamma"),
            "has embeddings.LayerNorm.weight twice",
        ),
        (
            "llama",
            settings_of(num_attention_heads=0),
            "num_attention_heads must be 1 or more, got 0",
        ),
        ("llama", lambda f: index(f, {"lm_head.weight": "x" * 5000}), "is not the name of a file"),
        (
            "modernbert",
            settings_of(global_attn_every_n_layers=0, layer_types=None),
            "must be 1 or more, got 0",
        ),
        (
            "modernbert",
            settings_of(num_hidden_layers=2**31 - 1),
            "layer_types must be a global layer",
        ),
        (
            "modernbert",
            settings_of(layer_types=["full_attention"] * 4),
            "layer_types must be a global",
        ),
    ],
)
def test_what_is_unusual_is_one_short_line(name, spoil, says, tmp_path):
    folder = copy(name, tmp_path)
    spoil(folder)
    with pytest.raises(PretrainedError, match=says) as told:
        from_pretrained(folder)
    line = str(told.value)
    assert line.isprintable() and len(line) < 500 + len(str(folder))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bert", "cls.predictions.transform.dense.scale"),
        ("bert", "bert.embeddings.position_ids_of_more"),
        ("roberta", "lm_head.dense.scale"),
        ("distilbert", "vocab_projector.scale"),
        ("modernbert", "head.dense.bias"),
        ("gpt2", "lm_head.bias"),
        ("bert-classifier", "classifier.scale"),
        ("distilbert-classifier", "pre_classifier.scale"),
    ],
)
def test_a_tensor_that_its_head_does_not_have_is_refused(name, tensor, tmp_path):
    folder = copy(name, tmp_path)
    with_tensor(tensor)(folder)
    with pytest.raises(PretrainedError, match="which a model of this kind does not have"):
        from_pretrained(folder)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bert", "bert.embeddings.position_ids"),
        ("bert", "classifier.weight"),
        ("roberta", "roberta.pooler.dense.weight"),
        ("distilbert", "pre_classifier.weight"),
        ("bert-classifier", "cls.predictions.bias"),
        ("gpt2", "transformer.h.0.attn.bias"),
        ("qwen2", "model.layers.0.self_attn.rotary_emb.inv_freq"),
    ],
)
def test_heads_of_other_kinds_and_constants_are_not_read(name, tensor, tmp_path):
    """Transformers 5.24 does not read them either."""
    folder = copy(name, tmp_path)
    with_tensor(tensor)(folder)
    assert from_pretrained(folder).config == from_pretrained(FOLDER / name).config


def test_a_run_folder_is_of_one_kind(tmp_path):
    from transformer_jax.serialization.run_folder import KINDS, save_weights
    from transformer_jax.serialization.specification import EncoderClassifierSpec

    model = classifier("mean", None)
    spec = EncoderClassifierSpec(model.config, ("a", "b"), "head", "sample", 10)
    from dataclasses import asdict

    (tmp_path / "config.json").write_text(json.dumps(asdict(spec)))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer

    load_pretrained_tokenizer(tmp_path, "bert").save(tmp_path)
    save_weights(tmp_path / "model.safetensors", nnx.state(model, nnx.Param))
    assert spec.model in KINDS
    assert type(from_pretrained(tmp_path)) is EncoderClassifier
    assert type(from_pretrained(tmp_path, kind="encoder")) is TextEncoder
    with pytest.raises(
        PretrainedError, match="folder of a EncoderClassifier, which is not of the kind 'masked'"
    ):
        from_pretrained(tmp_path, kind="masked")
