"""The cache: what it holds answers as the whole text does, in chunks of any size, with any padding,
for every rule.
"""

import math
import re
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from tests.helpers.modules import drawn
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.cpu.library import is_built
from transformer_jax.models.config import LanguageModelConfig, SequenceToSequenceConfig
from transformer_jax.models.language_model import LanguageModel
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.decoder import Decoder
from transformer_jax.nn.kv_cache import cache_dtype, empty_cache
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.nn.position_schemes import RopeScaling

pytestmark = pytest.mark.usefixtures("strict")

B, T, N, K, D, F, V = 2, 11, 6, 2, 12, 17, 13
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
TOKENS = np.random.default_rng(0).integers(0, V, (B, T))
# The sizes of chunks; of models that differ from others in what a size does not touch, one.
ONE_SIZE = ("post-norm, sinusoidal", "yarn", "no positions", "window, rotary")
CHUNKS = {"prompt first": [5] + [1] * 6, "chunks": [5, 1, 5], "one by one": [1] * T}


def stack(norm="pre", **changes):
    return StackConfig(
        **{
            "num_layers": 2,
            "embed_dim": D,
            "num_heads": N,
            "num_kv_heads": K,
            "hidden_dim": F,
            "norm": norm,
            "final_norm": norm == "pre",
            "activation": "gelu",
        }
        | changes
    )


LLAMA = {"num_layers": 1, "norm_kind": "rms", "activation": "swiglu", "biases": False}
DEEP = {"decoder": stack()}  # of the others one layer says as much
MODELS = {
    "learned": DEEP,
    "post-norm, sinusoidal": {"decoder": stack("post", num_layers=1), "positions": "sinusoidal"},
    "llama": {"decoder": stack(**LLAMA), "positions": "rotary", "tied_head": False},
    "yarn": {"positions": "rotary", "rope_scaling": RopeScaling("yarn", 4.0, 8)},
    "alibi": {"positions": "alibi"},
    "no positions": {"positions": "none"},
    "window": DEEP | {"window": 3},
    "window, rotary": {"window": 4, "positions": "rotary", "decoder": stack("post", num_layers=1)},
    "window, alibi": {"window": 2, "positions": "alibi"},
}


@cache
def model_of(name):
    config = LanguageModelConfig(V, T, **{"decoder": stack(num_layers=1)} | MODELS[name])
    return drawn(lambda rngs: LanguageModel(config, rngs=rngs))


def cut(sizes):
    ends = np.cumsum(sizes)
    return [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]


@cache
def compiled(name):
    """The logits of whole texts of T tokens, and those of a chunk through a cache."""
    graph, params = nnx.split(model_of(name), nnx.Param)
    whole = jax.jit(lambda params, tokens: nnx.merge(graph, params)(tokens))
    chunk = jax.jit(
        lambda params, tokens, is_token, cache: nnx.merge(graph, params)(
            tokens, is_token, cache=cache
        )
    )
    return partial(whole, params), partial(chunk, params)


def in_chunks(name, tokens, is_token, sizes):
    """The logits of each chunk, joined."""
    cache, found = model_of(name).start(len(tokens), T), []
    for part in cut(sizes):
        logits, cache = compiled(name)[1](
            jnp.array(tokens[:, part]), jnp.array(is_token[:, part]), cache
        )
        found.append(logits)
    return np.concatenate(found, axis=1), cache


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        pytest.param(name, sizes, id=f"{name}-{how}")
        for name in MODELS
        for how, sizes in CHUNKS.items()
        if how == "one by one" or name not in ONE_SIZE
    ],
)
def test_chunks_through_the_cache_are_the_whole_text(name, sizes):
    whole = compiled(name)[0](jnp.array(TOKENS))
    found, cache = in_chunks(name, TOKENS, np.ones((B, T), bool), sizes)
    np.testing.assert_allclose(found, whole, **TOLERANCE)
    assert cache.lengths.tolist() == [T, T]


@pytest.mark.parametrize("side", ["left", "right", "both"])
@pytest.mark.parametrize("name", ["learned", "llama", "window", "window, alibi"])
def test_padding_takes_no_slot(name, side):
    """A chunk with padding, then tokens one by one: each example as it is alone."""
    lengths, prompt = (2, 4), 5
    is_token = np.ones((B, prompt + 4), bool)
    for row, length in zip(is_token, lengths, strict=True):
        empty = prompt - length
        row[: {"left": empty, "right": 0, "both": 1}[side]] = False
        row[prompt - {"left": 0, "right": empty, "both": empty - 1}[side] : prompt] = False
    assert is_token[:, :prompt].sum(axis=1).tolist() == [*lengths]
    tokens = np.zeros(is_token.shape, np.int64)
    for b in range(B):
        tokens[b, is_token[b]] = TOKENS[b, : lengths[b] + 4]
    found, cache = in_chunks(name, tokens, is_token, [prompt, 1, 1, 1, 1])
    alone = compiled(name)[0](jnp.array(TOKENS))  # what comes later changes nothing
    for b in range(B):
        np.testing.assert_allclose(found[b, is_token[b]], alone[b, : lengths[b] + 4], **TOLERANCE)
    assert cache.lengths.tolist() == [length + 4 for length in lengths]


def rules():
    """Each rule over positions: of the whole text, and of a step of the cache."""
    ids = jnp.array([[0] * 4 + [1] * 7, [0] * 7 + [1] * 4])
    lengths = jnp.array([3, 5])

    def at(step):
        if step is None:
            return {}, {}
        keys = {"key_positions": step.key_positions}
        return {"query_positions": step.positions} | keys, keys

    def packed(step):
        both, _ = at(step)
        if step is None:
            return causal() & segments(ids)
        of = [jnp.take_along_axis(ids, p, axis=1) for p in (step.positions, step.key_positions)]
        return causal(**both) & segments(*of)

    return {
        "causal": lambda step: causal(**at(step)[0]),
        "window": lambda step: sliding_window(2, 0, **at(step)[0]),
        "prefix": lambda step: causal(**at(step)[0]) | prefix(lengths, **at(step)[1]),
        "both": lambda step: causal(**at(step)[0]) & sliding_window(4, None, **at(step)[0]),
        "packed": packed,
    }


with_mask = nnx.jit(lambda decoder, x, mask: decoder(x, LayerContext(mask=mask)))


@pytest.mark.parametrize("norm", ["pre", pytest.param("post", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", rules())
def test_every_rule_agrees_with_the_whole_text(name, norm):
    """A prefix is seen whole by its first token, so it comes in one chunk."""
    rule = rules()[name]
    decoder = drawn(lambda rngs: Decoder(stack(norm, num_layers=1), rngs=rngs))
    x = jnp.asarray(np.random.default_rng(2).normal(size=(B, T, D)), jnp.float32)
    whole = with_mask(decoder, x, jax.jit(lambda: rule(None).to_array(T, T))())

    @nnx.jit
    def chunk(decoder, x, cache):
        is_token = jnp.ones(x.shape[:2], bool)
        step = cache.step(is_token)
        mask = rule(step) & padding(step.is_key)
        return decoder(x, LayerContext(mask=mask), cache=cache, step=step)

    cache, found = empty_cache(1, B, T, K, D // N), []
    for part in cut([5, 1, 5]):
        y, cache = chunk(decoder, x[:, part], cache)
        found.append(y)
    np.testing.assert_allclose(np.concatenate(found, axis=1), whole, **TOLERANCE)


@pytest.mark.parametrize(
    ("positions", "norm"),
    [
        ("sinusoidal", "post"),
        ("alibi", "pre"),
        *(
            pytest.param(positions, norm, marks=pytest.mark.slow)
            for positions in ("sinusoidal", "learned", "rotary", "alibi")
            for norm in ("pre", "post")
            if (positions, norm) not in (("sinusoidal", "post"), ("alibi", "pre"))
        ),
    ],
)
def test_an_encoder_decoder_writes_what_it_was_taught(positions, norm):
    """`next_logits` after t tokens are the logits at t of the whole target, of a padded source."""
    decoder = stack(norm, num_layers=2 if norm == "post" else 1)
    config = SequenceToSequenceConfig(
        V, T, encoder=stack(norm, num_layers=1), decoder=decoder, positions=positions
    )
    model = drawn(lambda rngs: SequenceToSequence(config, rngs=rngs))
    source, is_source = jnp.array(TOKENS[:, :7]), jnp.array([[True] * 7, [False] * 3 + [True] * 4])
    target, every = jnp.array(TOKENS[:, 4:10]), jnp.ones((B, 6), bool)

    @nnx.jit
    def whole_and_start(model, *texts):  # together, because both encode the source
        return model(*texts), model.start(*texts[:2], 6)

    whole, cache = whole_and_start(model, source, is_source, target, every)
    step = nnx.jit(lambda model, *args: model.next_logits(*args))
    for part in cut([2] * 3 if norm == "post" else [1] * 6):
        logits, cache = step(model, target[:, part], every[:, part], cache)
        np.testing.assert_allclose(logits, whole[:, part.stop - 1], **TOLERANCE)


@pytest.mark.skipif(not is_built(), reason="python -m transformer_jax build")
@pytest.mark.parametrize("window", [None, 300])
def test_a_step_writes_its_token_into_the_cache_and_copies_nothing_of_it(window):
    """No operation but the two writes makes an array as large as the keys of the cache."""
    decoder = StackConfig(1, 64, 2, 64, norm="pre", final_norm=True)
    config = LanguageModelConfig(V, 400, decoder=decoder, positions="rotary", window=window)
    shapes = nnx.eval_shape(lambda: LanguageModel(config, rngs=AbstractRngs()))
    graph, params = nnx.split(shapes, nnx.Param)
    cache = jax.eval_shape(lambda params: nnx.merge(graph, params).start(1, 400), params)

    def step(cache, params, tokens):
        return nnx.merge(graph, params)(tokens, jnp.ones((1, 1), bool), cache=cache)

    compiled = jax.jit(step, donate_argnums=0).lower(cache, params, TOKENS[:1, :1]).compile()
    entry = compiled.as_text().partition("ENTRY")[2]
    made = re.findall(r"%(\S+) = f32\[([\d,]+)\]\S* (?:fusion|copy|transpose)\(", entry)
    sizes = {name: math.prod(map(int, shape.split(","))) for name, shape in made}
    large = [name for name, size in sizes.items() if size >= 2 * 32 * cache.capacity]
    assert len(large) == 2 and all("dynamic-update-slice" in name for name in large)


def test_a_slot_that_was_never_written_is_not_read():
    chunk = compiled("learned")[1]
    cache = model_of("learned").start(B, T)
    spoiled = jax.tree.map(
        lambda x: jnp.full_like(x, jnp.nan) if x.dtype == jnp.float32 else x, cache
    )
    for part in cut([5, 1]):
        tokens, every = jnp.array(TOKENS[:, part]), jnp.ones((B, part.stop - part.start), bool)
        expected, cache = chunk(tokens, every, cache)
        found, spoiled = chunk(tokens, every, spoiled)
        np.testing.assert_array_equal(found, expected)


def test_a_window_makes_it_a_ring_of_one_more_slot():
    assert model_of("window").start(B, T).capacity == 4
    assert model_of("window").start(B, 3).capacity == 3
    assert model_of("learned").start(B, T).capacity == T
    keys = model_of("llama").start(B, T).layers[0].keys
    assert keys.shape == (B, K, T, D // N)


def test_a_full_cache_answers_with_nan():
    """Only the example that is full gets NaN; a ring is never full."""
    is_token = jnp.array([[True] * 5, [True] + [False] * 4])
    for name, expected in (("alibi", [True, False]), ("window, alibi", [False, False])):
        cache = model_of(name).start(B, T)
        for full in ([False, False], [False, False], expected):  # after 5, 10 and 15 tokens
            logits, cache = compiled(name)[1](jnp.array(TOKENS[:, :5]), is_token, cache)
            np.testing.assert_array_equal(np.isnan(logits).all(axis=(1, 2)), full)


@jax.numpy_dtype_promotion("standard")
@pytest.mark.parametrize(("name", "sizes"), [("learned", [1] * T), ("llama", [5, 5])])
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16], ids=["default", "bfloat16"])
def test_a_model_of_bfloat16_with_caches_of_either_dtype(name, sizes, dtype):
    """The default on a CPU is float32.

    Logits of either head are float32; chunks through the cache give those of the whole text.
    """
    graph, params = nnx.split(model_of(name), nnx.Param)
    params = jax.tree.map(lambda x: jax.device_put(np.asarray(x).astype(jnp.bfloat16)), params)
    model = nnx.merge(graph, params)
    whole = nnx.jit(lambda model, tokens: model(tokens))(model, jnp.array(TOKENS))
    chunk = nnx.jit(lambda model, tokens, cache: model(tokens, cache=cache))
    cache, found = model.start(B, T, dtype=dtype), []
    assert cache.layers[0].keys.dtype == (dtype or cache_dtype(jnp.bfloat16))
    assert cache_dtype(jnp.bfloat16) == (
        jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16
    )
    assert whole.dtype == jnp.float32
    states = model(jnp.array(TOKENS[:, :2]), cache=cache, return_states=True)[1]
    assert all(state.dtype == jnp.bfloat16 for state in states)
    for part in cut(sizes):
        logits, cache = chunk(model, jnp.array(TOKENS[:, part]), cache)
        found.append(logits)
    scale = float(jnp.abs(whole).max())
    found = np.concatenate(found, axis=1)
    np.testing.assert_allclose(found, whole[:, : sum(sizes)], atol=0.02 * scale)


def test_what_a_cache_cannot_do_is_said():
    model = model_of("learned")
    with pytest.raises(ValueError, match="capacity must be 1 to max_length=11; got 12"):
        model.start(B, T + 1)
    with pytest.raises(ValueError, match="11 tokens do not fit into a cache of 5"):
        model(jnp.array(TOKENS), cache=model.start(B, 5))
    with pytest.raises(ValueError, match="segment_ids must be None"):
        model(jnp.array(TOKENS), segment_ids=jnp.zeros((B, T), jnp.int32), cache=model.start(B, T))
    with pytest.raises(ValueError, match="12 tokens are more than max_length=11"):
        model(jnp.zeros((B, T + 1), jnp.int32))
