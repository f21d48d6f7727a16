"""The mask contract (docstring of attention/dot_product.py), for every function and module that
takes one, and for every implementation.

Each path is compiled once, with the mask as an array, and asked many questions.
"""

from dataclasses import replace
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays
from jax import lax

from tests.helpers.arrays import normal
from tests.helpers.implementations import IMPLEMENTATIONS, forced
from tests.helpers.implementations import attend as attend_by
from transformer_jax.attention.additive import additive_attention
from transformer_jax.attention.biases import alibi, relative_bias
from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.cpu.library import is_built
from transformer_jax.models.config import ClassifierConfig
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.context import LayerContext
from transformer_jax.nn.encoder import Encoder
from transformer_jax.nn.layers import MultiHeadAttention

pytestmark = pytest.mark.usefixtures("strict")

B, T, S, N, K, H, O, D = 2, 5, 7, 6, 2, 3, 11, 30  # noqa: E741
SIZES = H, O
# Attention itself is computed in blocks of queries and of keys. A loop takes most of the time to
# compile: biases, positions and a mapped batch meet blocks of keys alone; other dtypes and what is
# built from attention have one block.
blocks_of_keys = partial(forced, 99, 3, at_once=True)
one_block = partial(forced, 99, 99, at_once=True)
RATE = 0.3
BOUND = {"rtol": 0, "atol": 1e-5}


def drawn(seed, *shape, dtype=jnp.float32):
    """Arrays of NumPy, in which rows are planted without a program for each."""
    return normal(seed, *shape).astype(dtype)


def planted(array, *rows):
    """A copy with other numbers at (index, number)s."""
    array = np.array(array)
    for index, number in rows:
        array[index] = number
    return array


def encoder(norm):
    config = StackConfig(
        num_layers=1,
        embed_dim=D,
        num_heads=N,
        num_kv_heads=K,
        hidden_dim=17,
        norm=norm,
        final_norm=norm == "pre",
        activation="gelu",
        dropout_rate=RATE,
        attention_dropout_rate=RATE,
    )
    return Encoder(config, rngs=nnx.Rngs(0))


def drawn_module(make):
    """(structure, parameters) of a module, drawn by NumPy: initialising it would compile every
    shape.

    Biases are not zero, scales not one; W^O's bias is zero, since it is added whatever the
    attention says.
    """
    graph, abstract = nnx.split(nnx.eval_shape(make))

    def draw(path, leaf):
        name = jax.tree_util.keystr(path)
        values = normal(len(name), *leaf.shape)
        if "kernel" in name:
            values = values / np.sqrt(leaf.size / leaf.shape[-1])
        if "bias" in name:
            values = values * ("out_bias" not in name or "feed_forward" in name) / 4
        values = 1 + values / 4 if "scale" in name else values
        return jax.device_put(values.astype(np.float32))

    return graph, jax.tree_util.tree_map_with_path(draw, abstract)


def run_module(make, implementation="reference"):
    """A module as a function of (inputs, parameters, mask, dropout key); only the reference has
    weights to show.
    """
    graph, parameters = drawn_module(make)

    def run(inputs, parameters, mask, key):
        rngs = None if key is None else nnx.Rngs(dropout=key)
        shows = implementation == "reference"
        context = LayerContext(mask=mask, return_weights=shows, implementation=implementation)
        with one_block():
            returned = nnx.merge(graph, parameters)(*inputs, context, rngs=rngs)
        return returned if shows else (returned, ())

    return run, parameters


ATTEND = {
    name: partial(attend_by, implementation=name, blocks=(99, 3), at_once=True)
    for name in IMPLEMENTATIONS
}


def without_weights(attend, inputs):
    return attend(*inputs), ()


def run_function(
    function, implementation="reference", returned=without_weights, blocks=blocks_of_keys
):
    def run(inputs, parameters, mask, key):
        options = {"mask": mask, "dropout_rate": RATE, "dropout_rng": key}
        options["implementation"] = implementation
        if implementation == "reference":
            return function(*inputs, *parameters, **options, return_weights=True)
        with blocks():
            return returned(lambda *inputs: function(*inputs, *parameters, **options), inputs)

    return run


def with_weights(attend, inputs):
    """The output and the weights of an implementation that stores none: its output for unit vectors
    as values, which lie beside the values in one call.
    """
    query, key, value = inputs
    unit = jnp.broadcast_to(jnp.eye(S, dtype=value.dtype)[:, None], (B, S, K, S))
    both = attend(query, key, jnp.concatenate([value, unit], axis=3))
    return both[..., :-S], both[..., -S:].swapaxes(1, 2).astype(jnp.float32)


class Path:
    """A way through the library: what goes in, and its outputs, weights and gradients, compiled."""

    def __init__(self, run, inputs, parameters=(), *, keys=S, heads=N):
        self.inputs, self.parameters, self.keys = inputs, parameters, keys
        self.mask_shape = (B, heads, T, keys)

        def value_and_grads(inputs, parameters, mask, cotangent, key=None):
            def loss(inputs, parameters):
                output, weights = run(inputs, parameters, mask, key)
                # Only the rows with a cotangent take part: a NaN in another row is not the loss's.
                kept = jnp.where(cotangent != 0, output * cotangent, 0)
                return kept.sum(dtype=jnp.float32), (output, weights)

            grads, (output, weights) = jax.grad(loss, argnums=(0, 1), has_aux=True)(
                inputs, parameters
            )
            return output, weights, *grads

        output, _ = jax.eval_shape(run, inputs, parameters, np.ones(self.mask_shape, bool), None)
        self.shape = output.shape
        self.forward = jax.jit(run)
        self.eager = value_and_grads
        self.jitted = jax.jit(value_and_grads)

    def __call__(self, mask, inputs=None, cotangent=None, key=None, eager=False):
        inputs = self.inputs if inputs is None else inputs
        cotangent = np.ones(()) if cotangent is None else cotangent
        cotangent = np.broadcast_to(cotangent, self.shape).astype(inputs[0].dtype)
        given = inputs, self.parameters, np.asarray(mask), cotangent
        given = jax.device_put(given) if eager else given
        call = self.eager if eager else self.jitted
        return jax.device_get(call(*given, key))


def attention_path(dtype, implementation="reference"):
    # NVIDIA's kernel takes keys and values of one width; the unit vectors are S wide.
    H, O = (SIZES[1] + S, SIZES[1]) if implementation == "cudnn" else SIZES  # noqa: E741
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, O))
    inputs = tuple(drawn(i, *shape, dtype=dtype) for i, shape in enumerate(shapes))
    blocks = forced if dtype == jnp.float32 else one_block
    return Path(run_function(dot_product_attention, implementation, with_weights, blocks), inputs)


def of_one_example(query, key, value, *, mask, implementation, **options):
    """Attention of one example at a time, without a batch axis."""

    def attend(query, key, value, mask):
        return dot_product_attention(
            query, key, value, mask=mask, implementation=implementation, **options
        )

    mask = jnp.broadcast_to(mask, (B, *mask.shape[1:]))
    return jax.vmap(attend)(query, key, value, mask)


def unbatched_path(implementation="reference"):
    inputs = drawn(1, B, T, N, H), drawn(2, B, S, K, H), drawn(3, B, S, K, O)
    return Path(run_function(of_one_example, implementation, with_weights), inputs)


def one_query_at_a_time(query, key, value, *, mask, dropout_rate, dropout_rng, **options):
    """Attention of each query and head alone, whose mask is one of keys, as the kernel takes it."""

    def attend(query, key, value, is_token):  # [H], [S, H], [S, O], [S]
        heads = query[None, None], key[:, None], value[:, None]
        return dot_product_attention(*heads, mask=padding(is_token), **options)[0, 0]

    of_queries = jax.vmap(attend, (0, None, None, 0))
    of_heads = jax.vmap(of_queries, (1, 1, 1, 0), out_axes=1)
    key, value = (jnp.repeat(x, N // K, axis=2) for x in (key, value))
    return jax.vmap(of_heads)(query, key, value, jnp.broadcast_to(mask, (B, N, T, S)))


def cpu_path():
    inputs = drawn(1, B, T, N, H), drawn(2, B, S, K, H), drawn(3, B, S, K, O)
    return Path(run_function(one_query_at_a_time, "cpu", with_weights), inputs)


def multi_head_path(implementation="reference"):
    shapes = ((D, N, H), (D, K, H), (D, K, O), (N, O, 13))
    inputs = drawn(1, B, T, D), drawn(2, B, S, D)
    parameters = tuple(drawn(i, *shape) / 8 for i, shape in enumerate(shapes))
    run = run_function(multi_head_attention, implementation, blocks=one_block)
    return Path(run, inputs, parameters)


def additive_path():
    def run(inputs, parameters, mask, key):
        output, weights = additive_attention(*inputs, *parameters, mask=mask, return_weights=True)
        return output, weights[:, None]

    inputs = drawn(1, B, T, D), drawn(2, B, S, 13), drawn(3, B, S, O)
    parameters = drawn(4, D, 17) / 4, drawn(5, 13, 17) / 4, drawn(6, 17)
    return Path(run, inputs, parameters, heads=1)


def biased(query, key, value, slopes, table, *, query_positions=None, **options):
    """Attention with a soft cap and both bias rules."""
    bias = alibi(slopes, query_positions=query_positions)
    bias += relative_bias(table, max_distance=6, query_positions=query_positions)
    return dot_product_attention(query, key, value, bias=bias, soft_cap=1.5, **options)


def biased_path(implementation="reference"):
    inputs = drawn(1, B, T, N, H), drawn(2, B, S, K, H), drawn(3, B, S, K, O)
    run = run_function(biased, implementation, with_weights)
    return Path(run, inputs, (drawn(4, N), drawn(5, 8, N)))


def module_path(implementation="reference"):
    run, parameters = run_module(
        lambda: MultiHeadAttention(D, N, num_kv_heads=K, dropout_rate=RATE, rngs=nnx.Rngs(0)),
        implementation,
    )
    return Path(run, (drawn(1, B, T, D), drawn(2, B, S, D)), parameters)


def encoder_path(norm, implementation="reference"):
    run, parameters = run_module(lambda: encoder(norm), implementation)
    return Path(run, (drawn(1, B, T, D),), parameters, keys=T)


PATHS = {
    "dot_product_attention": partial(attention_path, jnp.float32),
    "dot_product_attention bfloat16": partial(attention_path, jnp.bfloat16),
    "dot_product_attention of one example": unbatched_path,
    "soft cap and bias rules": biased_path,
    "additive_attention": additive_path,
    "multi_head_attention": multi_head_path,
    "MultiHeadAttention": module_path,
    "Encoder post": partial(encoder_path, "post"),
    "Encoder pre": partial(encoder_path, "pre"),
}
PATHS |= {
    f"{name} blockwise": partial(make, implementation="blockwise")
    for name, make in PATHS.items()
    if name not in ("additive_attention", "MultiHeadAttention", "Encoder post")  # same lines
}
PATHS["dot_product_attention cudnn"] = partial(attention_path, jnp.float32, implementation="cudnn")
ATTENTION = ["dot_product_attention", *(f"dot_product_attention {i}" for i in IMPLEMENTATIONS[1:])]
if is_built():
    PATHS["dot_product_attention cpu"] = cpu_path
    ATTENTION.append("dot_product_attention cpu")
CROSS = [name for name in PATHS if "Encoder" not in name]
SELF = [name for name in PATHS if "Encoder" in name]


@pytest.fixture(scope="module")
def paths():
    return _cached


@pytest.fixture(autouse=True)
def promotion(request):
    name = request.node.callspec.params.get("name", "") if hasattr(request.node, "callspec") else ""
    with jax.numpy_dtype_promotion("standard" if "bfloat16" in name else "strict"):
        yield


def random_mask(seed, shape, density=0.5):
    """Per head; in example 0 query 2 sees nothing, in example 1 nobody sees keys 1 and 4."""
    mask = np.random.default_rng(seed).random(shape) < density
    mask[..., 0] = True
    mask[0, :, 2] = False
    mask[1, ..., [1, 4]] = False
    return mask


def is_finite(tree):
    return all(np.isfinite(np.asarray(x, np.float32)).all() for x in jax.tree.leaves(tree))


def assert_same(one, other, **tolerance):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_allclose(
            np.asarray(x, np.float32), np.asarray(y, np.float32), **(tolerance or BOUND)
        )


# 1. A query that sees no key
# -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", CROSS)
def test_query_without_keys_gets_zeros(paths, name):
    path = paths(name)
    for seed in range(3):
        mask = random_mask(seed, path.mask_shape, density=0.2 * seed)
        output, weights, (d_query, *_), _ = result = path(mask)
        assert is_finite(result)
        assert not output[0, 2].any()
        assert not d_query[0, 2].any()
        for shown in jax.tree.leaves(weights):
            assert not shown[0, :, 2].any()
            bound = 1e-5 if "bfloat16 " not in name else 1e-2  # read off an output in bfloat16
            np.testing.assert_allclose(shown.sum(-1), mask.any(-1), rtol=0, atol=bound)


@pytest.mark.parametrize("name", CROSS)
def test_examples_without_keys_get_zeros_and_pass_no_gradient(paths, name):
    path = paths(name)
    output, weights, inputs, parameters = path(np.zeros(path.mask_shape, bool))
    assert not output.any()
    assert not any(x.any() for x in (*jax.tree.leaves(weights), *inputs))
    # What is added after the attention, W^O's own bias, does not depend on the mask.
    leaves = jax.tree_util.tree_leaves_with_path(parameters)
    assert not any(x.any() for path, x in leaves if "out_bias" not in str(path))


@pytest.mark.parametrize("name", SELF)
def test_an_encoder_without_keys_stays_finite_and_keeps_its_rows_apart(paths, name):
    path = paths(name)
    nothing = np.zeros((B, N, T, T), bool)
    output, weights, *grads = path(nothing, cotangent=drawn(5, B, T, D))
    assert is_finite((output, grads))
    assert not any(layer.any() for layer in weights)
    (x,) = path.inputs
    changed, *_ = path(nothing, (planted(x, (np.s_[:, 1], x[:, 1] + 3)),))
    np.testing.assert_array_equal(np.delete(changed, 1, axis=1), np.delete(output, 1, axis=1))


@pytest.mark.parametrize(
    "name",
    [
        "soft cap and bias rules",
        *(
            pytest.param(name, marks=pytest.mark.slow)
            for name in ("multi_head_attention", "additive_attention", *ATTENTION[1:])
        ),
    ],
)
def test_without_jit_the_same(paths, name):
    path = paths(name)
    mask = random_mask(0, path.mask_shape)
    cotangent = drawn(3, 1, 1, 1)
    query, *rest = path.inputs
    inputs = (planted(query, ((0, 2), np.nan)), *(planted(x, ((1, 4), np.inf)) for x in rest))
    result = path(mask, inputs, cotangent, eager=True)
    assert is_finite(result)
    assert not result[0][0, 2].any()
    assert_same(result, path(mask, cotangent=cotangent))


# 2. What nobody sees
# -------------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", CROSS)
def test_what_nobody_sees_reaches_no_output_and_no_gradient(paths, name, poison):
    path = paths(name)
    mask = random_mask(1, path.mask_shape)
    query, *rest = path.inputs
    query = planted(query, ((0, 2), poison))
    dirty = path(mask, (query, *(planted(x, ((1, [1, 4]), poison)) for x in rest)))
    assert is_finite(dirty)
    assert_same(dirty, path(mask), rtol=0, atol=0)
    for gradient in dirty[2][1:]:
        assert not gradient[1, [1, 4]].any()


@pytest.mark.parametrize("name", ATTENTION)
def test_a_head_that_sees_nothing_is_clean_where_other_heads_see(paths, name):
    """Keys and queries are hidden by head: only a group whose heads all look away is blind."""
    path = paths(name)
    mask = np.ones((B, N, T, S), bool)
    mask[0, :3, :, 2] = False  # the whole first group: key head 0
    mask[1, 3, 4] = False
    query, key, value = path.inputs
    query = planted(query, ((1, 4, 3), np.nan))
    key, value = planted(key, ((0, 2, 0), np.inf)), planted(value, ((0, 2, 0), np.nan))
    dirty = path(mask, (query, key, value))
    assert is_finite(dirty)
    assert_same(dirty, path(mask), rtol=0, atol=0)
    mask = mask.copy()  # JAX shares the memory of what it was given
    mask[0, 2, 1, 2] = True  # one head of the group looks: now the NaN is its own
    assert not is_finite(path(mask, (query, key, value))[0])


@pytest.mark.parametrize("name", SELF)
def test_rows_apart_from_all_others_reach_no_other_row(paths, name):
    path = paths(name)
    mask = random_mask(2, path.mask_shape, density=0.9)
    mask[0, :, :, 2] = False  # row 2 of example 0: sees nothing and is not seen
    cotangent = np.ones((B, T, 1))
    cotangent[0, 2] = 0
    (x,) = path.inputs
    clean = path(mask, cotangent=cotangent)
    dirty = path(mask, (planted(x, ((0, 2), np.nan)),), cotangent)
    others = np.delete(np.arange(T), 2)
    np.testing.assert_array_equal(dirty[0][0, others], clean[0][0, others])
    np.testing.assert_array_equal(dirty[0][1], clean[0][1])
    assert is_finite(dirty[1])


@pytest.mark.parametrize("name", SELF)
def test_rows_apart_from_all_others_reach_no_gradient(paths, name):
    path = paths(name)
    mask = random_mask(2, path.mask_shape, density=0.9)
    mask[0, :, :, 2] = False
    cotangent = np.ones((B, T, 1))
    cotangent[0, 2] = 0
    (x,) = path.inputs
    clean = path(mask, cotangent=cotangent)
    dirty = path(mask, (planted(x, ((0, 2), np.nan)),), cotangent)
    assert is_finite(dirty[2:])
    assert_same(dirty[2:], clean[2:])


@pytest.mark.parametrize("name", PATHS)
def test_a_key_has_no_influence_on_the_queries_that_it_is_hidden_from(paths, name):
    path = paths(name)
    mask = np.ones(path.mask_shape, bool)
    blind = [0, 3] if path.keys == S else [0, 2, 3, 4]  # in an encoder, key 1 is also query 1
    mask[:, :, blind, 1] = False
    far = tuple(planted(x, (np.s_[:, 1], 100 * x[:, 1])) for x in path.inputs)
    inputs = far if path.keys == T else (path.inputs[0], *far[1:])
    cotangent = np.zeros((1, T) + (1,) * (path.inputs[0].ndim - 2))
    cotangent[:, blind] = 1
    near, far = path(mask, cotangent=cotangent), path(mask, inputs, cotangent)
    np.testing.assert_array_equal(near[0][:, blind], far[0][:, blind])
    for gradient in near[2][1:] if path.keys == S else near[2]:
        assert not gradient[:, 1].any()
        assert gradient[:, 2].any()


@pytest.mark.parametrize("name", ATTENTION)
@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(mask=arrays(bool, (B, N, T, S)))
def test_any_mask_keeps_the_promises(name, mask):
    path = _cached(name)
    seeing, seen = mask.any(-1), mask.any(-2).reshape(B, K, N // K, S).any(2)
    query, key, value = path.inputs
    query = planted(query, (~seeing.swapaxes(1, 2), np.nan))
    key = planted(key, (~seen.swapaxes(1, 2), np.inf))
    value = planted(value, (~seen.swapaxes(1, 2), np.nan))
    output, weights, grads, _ = result = path(mask, (query, key, value))
    assert is_finite(result)
    assert not weights[~mask].any()
    np.testing.assert_allclose(weights.sum(-1), seeing, rtol=0, atol=1e-5)
    assert not output.swapaxes(1, 2)[~seeing].any()
    assert not grads[0].swapaxes(1, 2)[~seeing].any()
    assert not grads[2].swapaxes(1, 2)[~seen].any()


@cache
def _cached(name):  # hypothesis draws outside fixtures
    return PATHS[name]()


def test_weights_alone_keep_the_promises():
    query, key, _ = attention_path(jnp.float32).inputs
    mask = random_mask(4, (B, N, T, S))
    query, key = planted(query, ((0, 2), np.nan)), planted(key, ((1, 4), np.inf))

    @jax.jit
    def run(query, key, mask):
        def loss(query, key):
            weights = attention_weights(query, key, mask=mask)
            return jnp.sum(weights**2), weights

        return jax.grad(loss, argnums=(0, 1), has_aux=True)(query, key)

    grads, weights = jax.device_get(run(query, key, mask))
    assert is_finite((grads, weights))
    assert not weights[~mask].any()
    np.testing.assert_allclose(weights.sum(-1), mask.any(-1), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "jitted", "implementation"),
    [
        ("float32", True, "reference"),
        ("float32", False, "reference"),
        ("bfloat16", True, "reference"),
        ("float32", True, "blockwise"),
        ("bfloat16", True, "blockwise"),
    ],
)
def test_the_logsumexp_of_a_query_without_keys_is_minus_infinity_and_passes_no_gradient(
    name, jitted, implementation
):
    shapes = ((B, T, N, H), (B, S, K, H), (B, S, K, O))
    clean = [drawn(i, *shape, dtype=name) for i, shape in enumerate(shapes)]
    mask = random_mask(5, (B, N, T, S))
    query, *rest = clean
    dirty = [planted(query, ((0, 2), np.nan)), *(planted(x, ((1, 4), np.inf)) for x in rest)]

    def run(query, key, value, mask):
        def logsumexp(query, key):
            options = {"implementation": implementation, "return_logsumexp": True}
            with blocks_of_keys() if name == "float32" else one_block():
                return dot_product_attention(query, key, value, mask=mask, **options)[1]

        total, pull = jax.vjp(logsumexp, query, key)
        return total, pull(jnp.ones_like(total))

    run = jax.jit(run) if jitted else run
    arrays = jax.device_put([dirty, clean, mask])
    dirty, clean = (jax.device_get(run(*given, arrays[2])) for given in arrays[:2])
    total, (d_query, d_key) = dirty
    assert total.dtype == jnp.float32
    seeing = mask.any(-1).swapaxes(1, 2)
    assert (total[~seeing] == -jnp.inf).all() and (~seeing).any()
    assert np.isfinite(total[seeing]).all()
    assert not d_query[~seeing].any() and is_finite((d_query, d_key))
    assert not d_key[1, 4].any()
    assert_same(dirty, clean, rtol=0, atol=0)


# 3. Rules are functions of positions
# ---------------------------------------------------------------------


TOKENS = drawn(1, B, 11, N, H), drawn(2, B, 11, K, H), drawn(3, B, 11, K, H)


@pytest.fixture(params=["reference", "blockwise", pytest.param("cudnn", marks=pytest.mark.slow)])
def attend(request):
    return ATTEND[request.param]


@cache
def full_pass(attend, rule):
    """All queries at once, as a compiled function and as what it returns."""
    run = jax.jit(partial(attend, mask=RULES[rule]()))
    return run, jax.device_get(run(*TOKENS))


RULES = {
    "causal": lambda **positions: causal(**positions),
    "window": lambda **positions: sliding_window(3, 0, **positions),
    "prefix": lambda query_positions=None, key_positions=None: (
        causal(query_positions=query_positions, key_positions=key_positions)
        | prefix(np.array([2, 4]), key_positions=key_positions)
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_the_last_queries_alone_see_what_they_saw_in_the_full_pass(rule, attend):
    query, key, value = TOKENS
    run, full = full_pass(attend, rule)
    assert_same(run(query[:, -3:], key, value), full[:, -3:])


@pytest.mark.parametrize("rule", ["causal", "window"])
def test_a_half_filled_cache_agrees_with_the_full_pass(rule, attend):
    # What was never written is NaN; the position of the query is traced.
    empty = (np.full((B, 13, K, H), np.nan, np.float32),) * 2

    @jax.jit
    def decode(tokens, cache):
        def step(cache, t):
            q, *kv = (lax.dynamic_slice_in_dim(x, t, 1, 1) for x in tokens)
            cache = jax.tree.map(
                lambda c, x: lax.dynamic_update_slice_in_dim(c, x, t, 1), cache, tuple(kv)
            )
            mask = RULES[rule](query_positions=t[None])
            return cache, attend(q, *cache, mask=mask)[:, 0]

        return lax.scan(step, cache, jnp.arange(11))[1].swapaxes(0, 1)

    assert_same(decode(TOKENS, empty), full_pass(attend, rule)[1])


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_biases_of_a_half_filled_cache_agree_with_the_full_pass(implementation):
    query, key, value = TOKENS
    parameters = jax.device_put((drawn(4, N), drawn(5, 8, N)))
    full = jax.device_get(jax.jit(partial(biased, mask=causal()))(*TOKENS, *parameters))
    written = jnp.arange(13)[:, None, None]

    @jax.jit
    def step(t):
        """One query, at a traced position, over a cache of 13 of which t + 1 are written."""
        cache = (
            jnp.where(written <= t, jnp.pad(x, ((0, 0), (0, 2), (0, 0), (0, 0))), jnp.nan)
            for x in (key, value)
        )
        now = lax.dynamic_slice_in_dim(jnp.asarray(query), t, 1, 1)
        mask = causal(query_positions=t[None])
        options = {"query_positions": t[None], "mask": mask, "implementation": implementation}
        with forced():
            return biased(now, *cache, *parameters, **options)[:, 0]

    for t in range(11):
        assert_same(step(np.int32(t)), full[:, t])


def test_a_ring_buffer_agrees_with_the_full_pass(attend):
    slots = 5  # of which a window of 4 is read
    empty = (np.full((B, slots, K, H), np.nan, np.float32),) * 2
    nowhere = np.iinfo(np.int32).max // 2

    @jax.jit
    def decode(tokens, cache):
        def step(carry, t):
            cache, positions = carry
            q, *kv = (lax.dynamic_slice_in_dim(x, t, 1, 1) for x in tokens)
            cache = jax.tree.map(
                lambda c, x: lax.dynamic_update_slice_in_dim(c, x, t % slots, 1), cache, tuple(kv)
            )
            positions = positions.at[t % slots].set(t)
            mask = sliding_window(3, 0, query_positions=t[None], key_positions=positions)
            return (cache, positions), attend(q, *cache, mask=mask)[:, 0]

        start = (cache, jnp.full(slots, nowhere))
        return lax.scan(step, start, jnp.arange(11))[1].swapaxes(0, 1)

    assert_same(decode(TOKENS, empty), full_pass(attend, "window")[1])


def test_examples_at_their_own_positions_agree_with_each_alone(attend):
    """Two examples decode one step, the first at position 4, the second at 9."""
    query, key, value = TOKENS
    at = np.array([4, 9])
    _, full = full_pass(attend, "causal")
    step = np.take_along_axis(query, at[:, None, None, None], axis=1)

    @jax.jit
    def decode(query, key, value, positions):
        mask = causal(query_positions=positions[:, None])
        return attend(query, key, value, mask=mask)[:, 0]

    assert_same(decode(step, key, value, at), full[np.arange(B), at])


# 4. No future token
# --------------------------------------------------------------------------------------


def causal_case(path):
    """A causal mask, and the inputs with everything from query 3 on changed."""
    mask = np.broadcast_to(causal().to_array(T, path.keys), path.mask_shape)
    first = [3 + (path.keys - T) * (x.shape[1] == S) for x in path.inputs]
    later = [np.s_[:, i:] for i in first]
    future = [planted(x, (i, -50 * x[i])) for x, i in zip(path.inputs, later, strict=True)]
    return mask, tuple(future), first


def assert_the_past_is_the_same(before, after, mask):
    np.testing.assert_array_equal(before[0][:, :3], after[0][:, :3])
    assert not np.array_equal(before[0][:, 3:], after[0][:, 3:])
    for one, other in zip(jax.tree.leaves(before[1]), jax.tree.leaves(after[1]), strict=True):
        np.testing.assert_array_equal(one[:, :, :3], other[:, :, :3])
        assert not np.asarray(one)[~mask].any()


@pytest.mark.parametrize("name", PATHS)
def test_no_future_token_reaches_an_earlier_output_or_its_gradient(paths, name):
    path = paths(name)
    mask, future, first = causal_case(path)
    cotangent = np.zeros((1, T) + (1,) * (path.inputs[0].ndim - 2))
    cotangent[:, :3] = 1
    before = path(mask, cotangent=cotangent)
    assert_the_past_is_the_same(before, path(mask, future, cotangent), mask)
    for gradient, i in zip(before[2], first, strict=True):
        assert gradient[:, :i].any() and not gradient[:, i:].any()


@pytest.mark.parametrize("name", [*ATTENTION[:2], "Encoder post", "Encoder pre"])
def test_no_future_token_reaches_an_earlier_output_through_dropout(paths, name):
    path = paths(name)
    mask, future, _ = causal_case(path)
    before, after = (
        jax.device_get(path.forward(inputs, path.parameters, mask, jax.random.key(3)))
        for inputs in (path.inputs, future)
    )
    assert_the_past_is_the_same(before, after, mask)
    for weights in jax.tree.leaves(before[1])[:1]:
        assert (weights[mask] == 0).any() and (weights.sum(-1) > 1.1).any()  # dropped, scaled up


# 5. Padding, batches, packing
# ----------------------------------------------------------------------------

LENGTH, ROOM = 5, 11


INPUTS = {
    "tokens": {},
    "regions and n-grams": {
        "region_width": 3,
        "region_features": 7,
        "ngrams": 2,
        "ngram_bits": 5,
    },
    "patches of regions": {"region_width": 3, "region_features": 7, "patch_width": 2},
}


@pytest.fixture(
    scope="module",
    params=[*((name, "reference") for name in INPUTS), ("tokens", "blockwise")],
    ids=" ".join,
)
def classifier(request):
    """Parameters, and two compiled functions of them and of texts: of the logits and of those with
    the gradient.
    """
    inputs, implementation = request.param
    stack = StackConfig(num_layers=1, embed_dim=D, num_heads=N, hidden_dim=17)
    if request.param != ("tokens", "reference"):  # other inputs meet the same layers
        stack = replace(stack, biases=False, norm_kind="rms")
    # Patches are pooled by a mask of their own.
    every = request.param[0] == "patches of regions" or request.param == ("tokens", "reference")
    config = ClassifierConfig(
        vocab_size=23,
        max_length=ROOM,
        num_classes=3,
        encoder=stack,
        pooling=("cls", "mean", "max", "last") if every else ("mean",),
        **INPUTS[inputs],
    )
    shows = implementation == "reference"  # its maps
    graph, parameters = drawn_module(lambda: TextClassifier(config, rngs=nnx.Rngs(0)))

    def classified(parameters, tokens, is_token):
        """Logits and maps."""
        classify = partial(nnx.merge(graph, parameters), implementation=implementation)
        with one_block():
            logits = classify(tokens, is_token, return_weights=shows)
        return logits if shows else (logits, ())

    @jax.jit
    def with_gradient(parameters, tokens, is_token):
        """The gradient of a weighted sum of example 0's logits."""

        def loss(parameters):
            logits, maps = classified(parameters, tokens, is_token)
            return jnp.sum(logits[0] * jnp.array([1.0, -2.0, 3.0])), (logits, maps)

        gradient, (logits, maps) = jax.grad(loss, has_aux=True)(parameters)
        return logits, maps, gradient

    return parameters, jax.jit(classified), with_gradient


def padded_texts(text):
    """The text in a larger row at every offset, among other words, beside another text of another
    length.
    """
    random = np.random.default_rng(0)
    for left in range(ROOM - LENGTH + 1):
        tokens = random.integers(0, 23, (B, ROOM)).astype(np.int32)
        is_token = np.zeros((B, ROOM), bool)
        is_token[0, left : left + LENGTH] = True
        is_token[1, left // 2 :] = True
        tokens[0, is_token[0]] = text[0]
        yield tokens, is_token


TEXT = np.array([[19, 14, 11, 6, 7]], np.int32)


def test_padding_of_any_amount_on_either_side_changes_no_logit(classifier):
    parameters, classified, with_gradient = classifier
    alone, other = (
        np.asarray(classified(parameters, text, np.ones((1, LENGTH), bool))[0])
        for text in (TEXT, TEXT + 1)
    )
    assert np.abs(alone - other).max() > 0.05  # texts do matter
    for tokens, is_token in padded_texts(TEXT):
        padded, maps, _ = jax.device_get(with_gradient(parameters, tokens, is_token))
        assert_same(padded[:1], alone)
        for weights in map(np.asarray, maps):
            is_hidden = ~is_token[0]
            if weights.shape[-1] < ROOM:  # patches, counted from the first token
                is_hidden = np.arange(weights.shape[-1]) >= -(-LENGTH // 2)
            assert is_hidden.any() and not weights[0, ..., is_hidden].any()


def test_padding_of_any_amount_on_either_side_changes_no_gradient(classifier):
    parameters, _, with_gradient = classifier
    first, *others = (with_gradient(parameters, *padded)[2] for padded in padded_texts(TEXT))
    for other in others:
        assert_same(other, first)


def test_the_compiled_gradient_of_the_classifier_is_its_slope(classifier):
    """XLA on a CPU once lost a part of the gradient of jnp.max in the pooling, and only when
    compiled.
    """
    parameters, _, with_gradient = classifier
    padded, step = next(padded_texts(TEXT)), 3e-4
    slopes = jax.tree.leaves(with_gradient(parameters, *padded)[2])
    leaves, structure = jax.tree.flatten(parameters)

    def loss(leaves):
        ours, *_ = with_gradient(jax.tree.unflatten(structure, leaves), *padded)
        return float(np.asarray(ours, np.float64)[0] @ [1, -2, 3])

    for i, leaf in enumerate(leaves):
        direction = np.sign(np.random.default_rng(i).standard_normal(leaf.shape))
        ahead, behind = (np.asarray(leaf) + sign * step * direction for sign in (1, -1))
        ends = [[*leaves[:i], end.astype(np.float32), *leaves[i + 1 :]] for end in (ahead, behind)]
        slope = (loss(ends[0]) - loss(ends[1])) / (2 * step)
        expected = float(np.sum(np.asarray(slopes[i], np.float64) * direction))
        np.testing.assert_allclose(slope, expected, rtol=0.05, atol=0.05)


def test_an_empty_text_is_classified_without_nan(classifier):
    parameters, _, with_gradient = classifier
    tokens, is_token = np.zeros((B, ROOM), np.int32), np.zeros((B, ROOM), bool)
    is_token[1] = True
    assert is_finite(with_gradient(parameters, tokens, is_token))


def self_biased(parameters, x, mask, implementation):
    query, key = x.reshape(*x.shape[:2], N, -1), x.reshape(*x.shape[:2], N, -1)[:, :, :K]
    with blocks_of_keys():
        return biased(query, key, key, *parameters, mask=mask, implementation=implementation)


def self_additive(parameters, x, mask, implementation):
    return additive_attention(x, x, x, *parameters, mask=mask)


BIASES = drawn(1, N), drawn(2, 8, N)
KERNELS = drawn(3, D, 7) / 4, drawn(4, D, 7) / 4, drawn(5, 7)


@pytest.mark.parametrize(
    ("attend", "parameters", "implementation"),
    [
        (self_biased, BIASES, "reference"),
        (self_biased, BIASES, "blockwise"),
        (self_additive, KERNELS, None),
    ],
    ids=["soft cap and bias rules", "soft cap and bias rules blockwise", "additive_attention"],
)
def test_padding_changes_neither_a_text_nor_the_gradient_of_its_parameters(
    attend, parameters, implementation
):
    @partial(jax.jit, static_argnums=4)
    def run(parameters, x, is_token, where, implementation):
        def loss(parameters):
            output = attend(parameters, x, padding(is_token), implementation)[:1]
            text = lax.dynamic_slice_in_dim(output, where, LENGTH, 1)
            return jnp.sum(text**2), text

        return jax.grad(loss, has_aux=True)(parameters)

    text = drawn(1, 1, LENGTH, D)
    alone = run(parameters, text, np.ones((1, LENGTH), bool), 0, "reference")
    assert all(np.abs(gradient).max() > 1e-2 for gradient in jax.tree.leaves(alone[0]))
    for left in range(ROOM - LENGTH + 1):
        is_token = np.zeros((B, ROOM), bool)
        is_token[0, left : left + LENGTH] = is_token[1, left // 2 :] = True
        padded = planted(50 * drawn(left, B, ROOM, D), (np.s_[0, left : left + LENGTH], text[0]))
        assert_same(run(parameters, padded, is_token, left, implementation), alone)


@pytest.fixture(scope="module", params=["reference", "blockwise"])
def causal_encoder(request):
    run, parameters = run_module(lambda: encoder("pre"), request.param)
    return jax.jit(lambda x, mask: run((x,), parameters, mask, None)[0])


def test_texts_packed_into_one_row_do_not_mix(causal_encoder):
    """Two texts of one length, which is compiled once, and one of a single token."""
    texts = [drawn(i, 1, length, D) for i, length in enumerate((LENGTH, LENGTH, 1))]
    ids = np.repeat([0, 1, 2], [LENGTH, LENGTH, 1])[None]
    row = np.concatenate(texts, axis=1)
    packed = np.asarray(causal_encoder(row, causal() & segments(ids)))[:, : 2 * LENGTH]
    apart = np.concatenate([causal_encoder(x, causal()) for x in texts[:2]], axis=1)
    assert_same(packed, apart)
    mixed = np.asarray(causal_encoder(row, causal() & segments(0 * ids)))[:, : 2 * LENGTH]
    assert np.abs(mixed - apart).max() > 0.1


def test_packed_texts_in_another_order_keep_their_outputs(causal_encoder):
    first, second = drawn(1, 1, LENGTH, D), drawn(2, 1, ROOM - LENGTH, D)
    ids = np.repeat([0, 1], [LENGTH, ROOM - LENGTH])[None]
    one = causal_encoder(np.concatenate([first, second], 1), causal() & segments(ids))
    ids = np.repeat([1, 0], [ROOM - LENGTH, LENGTH])[None]
    other = causal_encoder(np.concatenate([second, first], 1), causal() & segments(ids))
    assert_same(np.roll(other, LENGTH, axis=1), one)


def test_causal_with_padding_on_either_side_changes_nothing(causal_encoder):
    text = drawn(1, 1, LENGTH, D)
    alone = causal_encoder(text, causal())
    for left in range(ROOM - LENGTH + 1):
        is_token = (np.arange(ROOM) >= left) & (np.arange(ROOM) < left + LENGTH)
        row = planted(drawn(left, 1, ROOM, D), (np.s_[:, left : left + LENGTH], text))
        padded = np.asarray(causal_encoder(row, causal() & padding(is_token[None])))
        assert_same(padded[:, is_token], alone)
        assert is_finite(padded)


def test_an_example_is_the_same_in_any_batch(causal_encoder):
    x = drawn(1, 1, LENGTH, D)
    batch = np.concatenate([drawn(2, 2, LENGTH, D), x])
    in_a_batch = np.asarray(causal_encoder(batch, causal()))
    assert_same(in_a_batch[2:], causal_encoder(x, causal()))
