"""Models in the layout of Hugging Face give what PyTorch gave, go back into it, and are refused in
one line.
"""

import json
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from tests.helpers.checkpoint_files import ENCODERS, FOLDER, LANGUAGE, NAMES, expected
from tests.helpers.compiled import compiled
from transformer_jax import pretrained
from transformer_jax.inference.embed import SentenceEncoder
from transformer_jax.models.config import (
    EncoderClassifierConfig,
    LanguageModelConfig,
    TextEncoderConfig,
)
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.models.text_encoder import EncoderClassifier, TextEncoder
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.pretrained import PretrainedError, from_pretrained, save_pretrained
from transformer_jax.pretrained import hub as hub_file
from transformer_jax.pretrained.family import FAMILIES, family_of, family_of_config
from transformer_jax.pretrained.files import Settings

TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
KINDS = {
    "bert": MaskedLanguageModel,
    "bert-old": TextEncoder,
    "roberta": MaskedLanguageModel,
    "xlm-roberta": TextEncoder,
    "distilbert": MaskedLanguageModel,
    "modernbert": MaskedLanguageModel,
    "bert-classifier": EncoderClassifier,
    "distilbert-classifier": EncoderClassifier,
} | dict.fromkeys(LANGUAGE, LanguageModel)


def arguments(name, side="right", rows=slice(None)):
    """Tokens, which are real, and the segments where the model has them; padded on a side."""
    stored = expected(name)
    tokens, is_token = stored["tokens"][rows], stored["is_token"][rows]
    segments = stored.get("segment_ids", np.zeros_like(stored["tokens"]))[rows]
    if side == "left":
        tokens, segments, is_token = (
            np.stack(
                [np.roll(row, -int(seen.sum())) for row, seen in zip(array, is_token, strict=True)]
            )
            for array in (tokens, segments, is_token)
        )
    options = {"segments": jnp.asarray(segments)} if "segment_ids" in stored else {}
    return jnp.asarray(tokens), jnp.asarray(is_token), options


def outputs(name, model, side="right", rows=slice(None), call=None):
    """{what: values of the real tokens, or of the texts}, as they are stored.

    Computed eagerly without a `call`: models of all families share most operations, which are
    compiled once.
    """
    call = call or model
    tokens, is_token, options = arguments(name, side, rows)
    if isinstance(model, EncoderClassifier):
        return {"logits": np.asarray(call(tokens, is_token, **options))}
    x, states = call(tokens, is_token, return_states=True, **options)
    seen = np.asarray(is_token)
    found = {"hidden_states": np.stack(states)[:, seen]}
    if not isinstance(model, TextEncoder):
        found["logits"] = np.asarray(x)[seen]
    elif model.pooler is not None:
        found["pooled"] = np.asarray(model.pooled(x, is_token))
    return found


def stored_outputs(name, model, rows=slice(None)):
    stored, is_token = expected(name), expected(name)["is_token"][rows]
    if isinstance(model, EncoderClassifier):
        return {"logits": stored["logits"][rows]}
    found = {"hidden_states": stored["hidden_states"][:, rows][:, is_token]}
    if not isinstance(model, TextEncoder):
        found["logits"] = stored["logits"][rows][is_token]
    elif "pooled" in stored:
        found["pooled"] = stored["pooled"][rows]
    return found


def assert_as_stored(name, model, side="right", rows=slice(None), call=None):
    found, right = outputs(name, model, side, rows, call), stored_outputs(name, model, rows)
    assert set(found) == set(right)
    for what, values in right.items():
        np.testing.assert_allclose(found[what], values, **TOLERANCE, err_msg=what)


# The same outputs
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_states_of_all_layers_logits_and_pooled_are_those_of_pytorch(name):
    model = from_pretrained(FOLDER / name)
    assert type(model) is KINDS[name]
    assert_as_stored(name, model)


@pytest.mark.parametrize("name", ["bert", "roberta", "modernbert", "gpt2", "llama"])
def test_padding_on_the_left_changes_nothing(name):
    assert_as_stored(name, from_pretrained(FOLDER / name), side="left")


@pytest.mark.parametrize("name", ["bert-classifier", "qwen2"])
def test_one_text_alone_gives_what_it_gives_in_a_batch(name):
    model = from_pretrained(FOLDER / name)
    call = jax.jit(
        lambda *args, **options: model(*args, **options), static_argnames="return_states"
    )
    assert_as_stored(name, model, rows=slice(0, 1), call=call)


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_every_implementation_of_attention_gives_the_same(implementation):
    tokens, is_token, _ = arguments("modernbert")
    model = from_pretrained(FOLDER / "modernbert", kind="encoder")
    run = compiled(model, return_states=True, implementation=implementation)
    _, states = run(tokens, is_token)
    is_token = np.asarray(is_token)
    right = expected("modernbert")["hidden_states"][:, is_token]
    np.testing.assert_allclose(np.stack(states)[:, is_token], right, **TOLERANCE)


def test_bfloat16_parameters_stay_close():
    tokens, is_token, _ = arguments("roberta")
    model = from_pretrained(FOLDER / "roberta", dtype=jnp.bfloat16)
    leaves = jax.tree.leaves(nnx.state(model, nnx.Param))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}
    found = np.asarray(compiled(model)(tokens, is_token), np.float32)[np.asarray(is_token)]
    right = expected("roberta")["logits"][np.asarray(is_token)]
    assert 1e-4 < np.abs(found - right).max() < 0.1 * np.abs(right).max()


def test_stored_bfloat16_comes_as_float32():
    leaves = jax.tree.leaves(nnx.state(from_pretrained(FOLDER / "xlm-roberta"), nnx.Param))
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.float32)}


def test_stored_float16_is_read(tmp_path):
    folder = copy("gpt2", tmp_path)
    change(folder, lambda tensors: {k: v.astype(np.float16) for k, v in tensors.items()})
    found = outputs("gpt2", from_pretrained(folder))["logits"]
    right = expected("gpt2")["logits"][expected("gpt2")["is_token"]]
    assert 1e-4 < np.abs(found - right).max() < 1e-2 * np.abs(right).max()


# What is easily got wrong: without its handling the outputs above are others
# -------------------------------


def test_the_key_biases_are_read_though_softmax_does_not_see_them():
    for name, layer in (("bert", "bert.encoder.layer.1.attention.self.key"), ("distilbert", None)):
        layer = layer or "distilbert.transformer.layer.1.attention.k_lin"
        right = load_file(FOLDER / name / "model.safetensors")[f"{layer}.bias"]
        found = from_pretrained(FOLDER / name).text.encoder.layers[1].attention.key_bias[...]
        np.testing.assert_array_equal(np.asarray(found).ravel(), right)


def test_names_of_old_files_and_their_buffers_are_known():
    assert "embeddings.LayerNorm.gamma" in load_file(FOLDER / "bert-old" / "model.safetensors")
    assert "embeddings.position_ids" in load_file(FOLDER / "bert-old" / "model.safetensors")
    assert_as_stored("bert-old", from_pretrained(FOLDER / "bert-old"))


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert"])
def test_buffers_and_old_names_of_norms_change_nothing(name, tmp_path):
    folder = copy(name, tmp_path)

    def as_it_was(tensors):
        for new, old in (("weight", "gamma"), ("bias", "beta")):
            new, old = f"LayerNorm.{new}", f"LayerNorm.{old}"
            tensors = {at.replace(new, old): tensor for at, tensor in tensors.items()}
        kinds = ("position",) if name == "distilbert" else ("position", "token_type")
        ids = np.zeros((1, 32), np.int64)
        return tensors | {f"{name}.embeddings.{kind}_ids": ids for kind in kinds}

    change(folder, as_it_was)
    assert_as_stored(name, from_pretrained(folder))


def test_old_gpt2_files_have_no_prefix_and_keep_their_masks(tmp_path):
    folder = copy("gpt2", tmp_path)

    def as_it_was(tensors):
        old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
        masks = {f"h.{i}.attn.bias": np.ones((1, 1, 32, 32), np.float32) for i in range(2)}
        return old | masks | {"h.0.attn.masked_bias": np.float32([-1e4])}

    change(folder, as_it_was)
    assert_as_stored("gpt2", from_pretrained(folder))


def test_settings_of_older_versions_say_the_same(tmp_path):
    folder = copy("llama-scaled", tmp_path / "llama")
    settings = config(folder)
    rope = settings.pop("rope_parameters")
    settings["rope_theta"] = rope.pop("rope_theta")
    settings["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    write_config(folder, settings)
    assert_as_stored("llama-scaled", from_pretrained(folder))

    folder = copy("modernbert", tmp_path / "modernbert")
    settings = config(folder)
    rope = settings.pop("rope_parameters")
    settings["global_rope_theta"] = rope["full_attention"]["rope_theta"]
    settings["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]
    del settings["layer_types"]
    write_config(folder, settings)
    assert_as_stored("modernbert", from_pretrained(folder))


@pytest.mark.parametrize(
    ("name", "key", "other"),
    [
        ("bert", "layer_norm_eps", 1e-12),
        ("modernbert", "local_attention", 2),
        pytest.param("bert", "hidden_act", "gelu_new", marks=pytest.mark.slow),
        pytest.param("gpt2", "activation_function", "gelu", marks=pytest.mark.slow),
        pytest.param("gpt2", "layer_norm_epsilon", 1e-5, marks=pytest.mark.slow),
        pytest.param("llama", "rms_norm_eps", 1e-6, marks=pytest.mark.slow),
        pytest.param("llama", "num_attention_heads", 2, marks=pytest.mark.slow),
        pytest.param("qwen3", "rms_norm_eps", 1e-6, marks=pytest.mark.slow),
    ],
)
def test_every_setting_is_read(name, key, other, tmp_path):
    """Another value gives other outputs: what PyTorch gave is not met by chance."""
    folder = copy(name, tmp_path)
    settings = config(folder)
    assert settings[key] != other
    settings |= {key: other}
    if key == "num_attention_heads":
        settings |= {"num_key_value_heads": 1, "head_dim": 12}
    write_config(folder, settings)
    model = from_pretrained(folder)
    found, right = outputs(name, model)["logits"], stored_outputs(name, model)["logits"]
    assert np.abs(found - right).max() > 1e-4


def test_positions_of_roberta_begin_behind_the_padding():
    table = load_file(FOLDER / "roberta" / "model.safetensors")
    table = table["roberta.embeddings.position_embeddings.weight"]
    model = from_pretrained(FOLDER / "roberta")
    found = model.text.embedding.position.embedding[...]
    np.testing.assert_array_equal(found, table[2:])
    assert model.config.max_length == len(table) - 2


def test_a_lesser_model_of_a_file_can_be_asked_for():
    model = from_pretrained(FOLDER / "bert", kind="encoder")
    tokens, is_token, options = arguments("bert")

    x = model(tokens, is_token, **options)
    pooled = model.pooled(x, is_token)
    stored, seen = expected("bert"), np.asarray(is_token)
    states = stored["hidden_states"][-1]
    np.testing.assert_allclose(np.asarray(x)[seen], states[seen], **TOLERANCE)
    np.testing.assert_allclose(pooled, stored["pooled"], **TOLERANCE)
    assert from_pretrained(FOLDER / "distilbert", kind="encoder").pooler is None


def test_generation_through_the_cache_is_the_greedy_text_of_a_full_pass():
    from transformer_jax.generation.generate import generate

    model, stored = from_pretrained(FOLDER / "qwen3"), expected("qwen3")
    tokens, is_token, _ = arguments("qwen3", side="left")
    found = generate(model, tokens, is_token, max_tokens=4, pad_id=0)
    full = jax.jit(lambda tokens, is_token: model(tokens, is_token, last=True))
    for row, seen, written in zip(stored["tokens"], stored["is_token"], found.tokens, strict=True):
        text = list(row[seen])
        for token in np.asarray(written):
            padded = np.array([text + [0] * (15 - len(text))])
            logits = full(jnp.asarray(padded), jnp.arange(15)[None] < len(text))
            assert token == int(logits.argmax())
            text.append(int(token))


# And back
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_what_is_saved_is_what_was_loaded(name, tmp_path):
    model = from_pretrained(FOLDER / name)
    save_pretrained(model, tmp_path)
    found, right = (nnx.state(m, nnx.Param) for m in (from_pretrained(tmp_path), model))
    assert jax.tree.structure(found) == jax.tree.structure(right)
    jax.tree.map(np.testing.assert_array_equal, found, right)
    again, before = load_tensors(tmp_path), load_tensors(FOLDER / name)
    shapes = {name: tensor.shape for name, tensor in again.items()}
    assert shapes.items() <= {new_name(n): tensor.shape for n, tensor in before.items()}.items()


@pytest.mark.parametrize("name", NAMES)
def test_transformers_reads_what_is_saved_and_gives_the_same(name, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = from_pretrained(FOLDER / name)
    save_pretrained(model, tmp_path)
    cls = getattr(transformers, config(tmp_path)["architectures"][0])
    options = {"attn_implementation": "eager", "output_loading_info": True}
    theirs, loading = cls.from_pretrained(tmp_path, **options)
    # A pooler may be Transformers' own addition to an encoder without one.
    assert not {key for key in loading["missing_keys"] if "pooler" not in key}
    assert not loading["unexpected_keys"]
    tokens, is_token, more = arguments(name)
    is_token = np.asarray(is_token)
    given = {"input_ids": tokens, "attention_mask": is_token}
    given = {name: torch.tensor(np.asarray(array)).long() for name, array in given.items()}
    if more:
        given["token_type_ids"] = torch.tensor(np.asarray(more["segments"])).long()
    with torch.no_grad():
        found = theirs.eval()(**given, output_hidden_states=True)
    right = stored_outputs(name, model)
    if "hidden_states" in right:
        states = np.stack([state.numpy() for state in found.hidden_states])[:, is_token]
        np.testing.assert_allclose(states, right["hidden_states"], **TOLERANCE)
    if "logits" in right:
        logits = found.logits.numpy()
        logits = logits if isinstance(model, EncoderClassifier) else logits[is_token]
        np.testing.assert_allclose(logits, right["logits"], **TOLERANCE)


def test_classes_go_into_the_configuration(tmp_path):
    model = from_pretrained(FOLDER / "bert-classifier")
    save_pretrained(model, tmp_path, classes=("bad", "good"))
    assert config(tmp_path)["id2label"] == {"0": "bad", "1": "good"}


def test_a_model_of_no_family_is_not_saved(tmp_path):
    config = LanguageModelConfig(11, 8, StackConfig(1, 4, 2, 8), positions="alibi")
    model = nnx.eval_shape(lambda: LanguageModel(config, rngs=AbstractRngs()))
    with pytest.raises(ValueError, match="no family of pretrained models holds this LanguageModel"):
        save_pretrained(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_fresh_model_is_saved_like_a_loaded_one(tmp_path):
    stack = StackConfig(1, 8, 2, 12, norm_epsilon=1e-12, activation="gelu")
    text = TextEncoderConfig(13, 10, stack)
    config = EncoderClassifierConfig(text, 3)
    model = nnx.jit(lambda: EncoderClassifier(config, rngs=nnx.Rngs(0)))()
    save_pretrained(model, tmp_path)
    again = from_pretrained(tmp_path)
    tokens, is_token = jnp.arange(12).reshape(2, 6), jnp.ones((2, 6), bool)
    found, expected = (compiled(one)(tokens, is_token) for one in (again, model))
    np.testing.assert_array_equal(found, expected)


def test_a_configuration_is_of_one_family():
    """Whichever family is asked first, the same one holds a model."""
    for name in NAMES:
        settings = Settings(FOLDER / name / "config.json")
        model = from_pretrained(FOLDER / name)
        text = getattr(model.config, "text", model.config)
        assert [family for family in FAMILIES if family.holds(text)] == [family_of(settings)]
        assert family_of_config(model.config) is family_of(settings)


def test_the_encoder_of_sentences_can_still_be_imported_from_here():
    assert pretrained.SentenceEncoder is SentenceEncoder
    with pytest.raises(AttributeError, match="has no attribute 'Sentences'"):
        _ = pretrained.Sentences


# What is refused, in a line
# --------------------------------------------------------------------------------


def copy(name, folder) -> Path:
    shutil.copytree(FOLDER / name, folder, dirs_exist_ok=True)
    return folder


def change(folder, by):
    save_file(by(load_file(folder / "model.safetensors")), folder / "model.safetensors")


def config(folder) -> dict:
    return json.loads((folder / "config.json").read_text())


def write_config(folder, settings):
    (folder / "config.json").write_text(json.dumps(settings))


def load_tensors(folder):
    found = {}
    for path in Path(folder).glob("model*.safetensors"):
        found |= load_file(path)
    return found


def new_name(name):
    return name.replace("LayerNorm.gamma", "LayerNorm.weight").replace(
        "LayerNorm.beta", "LayerNorm.bias"
    )


def without(name):
    return lambda tensors: {k: v for k, v in tensors.items() if k != name}


QUERY = "bert.encoder.layer.0.attention.self.query.weight"


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: write_config(f, config(f) | {"model_type": "t5"}), "model_type 't5' is not among those known: bert"),
        (lambda f: write_config(f, config(f) | {"architectures": ["BertForQA"]}), "architecture 'BertForQA' is not among"),
        (lambda f: write_config(f, config(f) | {"hidden_act": "swish"}), "hidden_act is 'swish'; known are gelu"),
        (lambda f: write_config(f, config(f) | {"hidden_size": "24"}), "hidden_size must be a whole number, got '24'"),
        (lambda f: write_config(f, config(f) | {"hidden_size": 0}), "embed_dim must be 1 or more; got 0"),
        (lambda f: write_config(f, config(f) | {"hidden_size": 25}), "config.json: .*25"),
        (lambda f: write_config(f, {k: v for k, v in config(f).items() if k != "vocab_size"}), "vocab_size is missing"),
        (lambda f: write_config(f, config(f) | {"vocab_size": 98}), r"word_embeddings.weight is of the shape \(97, 24\); config.json says \(98, 24\)"),
        (lambda f: write_config(f, config(f) | {"num_hidden_layers": 10**6}), "has tensors of 2 layers; its config.json says 1000000"),
        (lambda f: write_config(f, config(f) | {"num_hidden_layers": 1}), "has encoder.layer.1.attention"),
        (lambda f: write_config(f, config(f) | {"position_embedding_type": "relative_key"}), "position_embedding_type='relative_key' is not supported"),
        (lambda f: (f / "config.json").write_text("{"), "config.json cannot be read"),
        (lambda f: (f / "config.json").write_text("[1]"), "holds no object"),
        (lambda f: (f / "config.json").unlink(), "has no config.json"),
        (lambda f: change(f, without(QUERY)), "lacks encoder.layer.0.attention.self.query.weight"),
        (lambda f: change(f, lambda t: t | {"bert.more": np.zeros(1, np.float32)}), "has more, which a model of this kind does not have"),
        (lambda f: change(f, lambda t: t | {QUERY: np.zeros((24, 23), np.float32)}), r"query.weight is of the shape \(24, 23\)"),
        (lambda f: change(f, lambda t: t | {QUERY: np.zeros((24, 24), np.int8)}), "query.weight is of I8; F64, F32, F16, BF16 can be read"),
        (lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:-9]), "model.safetensors cannot be read as safetensors, it may be cut"),
        (lambda f: (f / "model.safetensors").write_bytes(b"1234"), "cannot be read as safetensors"),
        (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "holds pytorch_model.bin, which is never unpickled"),
        (lambda f: (f / "model.safetensors").unlink(), "has neither model.safetensors nor model.safetensors.index.json"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_line_that_names_it(spoil, says, tmp_path):
    folder = copy("bert", tmp_path)
    spoil(folder)
    with pytest.raises(PretrainedError, match=says) as told:
        from_pretrained(folder)
    assert "\n" not in str(told.value) and str(folder) in str(told.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda f: (f / "model-00002-of-00002.safetensors").unlink(), "has no model-00002-of-00002.safetensors, which its model.safetensors.index.json names"),
        (lambda f: index(f, {"lm_head.weight": "../../etc/passwd"}), "is not the name of a file in its folder"),
        (lambda f: index(f, {"lm_head.weight": 3}), "lm_head.weight must be a string, got 3"),
        (lambda f: index(f, {"lm_head.more": "model-00002-of-00002.safetensors"}), "has no lm_head.more, which model.safetensors.index.json says it has"),
        (lambda f: (f / "model.safetensors.index.json").write_text("{}"), "weight_map is missing"),
    ],
)  # fmt: skip
def test_shards_that_do_not_fit_are_one_line(spoil, says, tmp_path):
    folder = copy("llama", tmp_path)
    spoil(folder)
    with pytest.raises(PretrainedError, match=says):
        from_pretrained(folder)


def index(folder, more):
    path = folder / "model.safetensors.index.json"
    content = json.loads(path.read_text())
    content["weight_map"] |= more
    path.write_text(json.dumps(content))


def test_nothing_is_unpickled(tmp_path, monkeypatch):
    import pickle

    folder = copy("bert", tmp_path)
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    for name in ("load", "loads", "Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    assert_as_stored("bert", from_pretrained(folder))


def test_a_kind_that_the_family_has_not_is_an_error():
    with pytest.raises(
        ValueError, match="a bert is of the kind classifier or encoder or masked, not language"
    ):
        from_pretrained(FOLDER / "bert", kind="language")
    with pytest.raises(PretrainedError, match=r"lacks cls\.predictions"):
        from_pretrained(FOLDER / "bert-old", kind="masked")


def test_a_place_that_is_no_folder_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    for source in (tmp_path / "nowhere", tmp_path / "file", "./nowhere", "a/b/c"):
        with pytest.raises(
            PretrainedError, match=r"is not a folder; pass one that holds config\.json"
        ):
            from_pretrained(source)
    with pytest.raises(PretrainedError, match="neither a folder nor a name on the hub"):
        from_pretrained("a model")


def test_without_a_hub_one_line_says_what_to_pass(monkeypatch):
    monkeypatch.setattr(hub_file, "_silence", lambda name: "no answer within 5 seconds")
    with pytest.raises(
        PretrainedError,
        match=r"nobody/nothing is not in the local cache and http.* could not be reached "
        r"\(no answer within 5 seconds\); pass a folder that holds its files",
    ):
        from_pretrained("nobody/nothing")


def test_where_the_hub_is_silent_the_cache_serves(tmp_path, monkeypatch):
    from huggingface_hub import constants

    cached = tmp_path / "models--someone--tiny"
    copy("distilbert", cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(hub_file, "_silence", lambda name: "no answer within 5 seconds")
    assert_as_stored("distilbert", from_pretrained("someone/tiny"))


def test_all_are_encoders_or_write():
    assert {path.parent.name for path in FOLDER.glob("*/config.json")} == {*ENCODERS, *LANGUAGE}
