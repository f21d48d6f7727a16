"""One example without the batch axis gives what it gives as a batch of one, value and gradient."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import transformer_jax as tj
from bench import naive
from tests.helpers.arrays import jax_normal, normal
from tests.helpers.implementations import IMPLEMENTATIONS, attend
from transformer_jax.attention.bias_rule import dense_bias

T, S, N, K, H, D, E, F = 5, 7, 6, 2, 3, 11, 8, 4
QUERY, KEY, VALUE = jax_normal(0, T, N, H), jax_normal(1, S, K, H), jax_normal(2, S, K, H)
IS_TOKEN = np.arange(S) % 3 != 1
QUERY_IDS, KEY_IDS = np.array([0, 0, 1, 1, 9]), np.array([0, 0, 0, 1, 1, 2, 2])
VISIBLE = np.tri(T, S, S - T, dtype=bool)
PER_HEAD = normal(5, N, T, S) > 0
PER_HEAD[:, 2] = PER_HEAD[..., 4] = False  # a query that sees nothing, a key that nobody sees

# The mask of one example, and its array.
MASKS = {
    "none": (None, np.ones((T, S), bool)),
    "causal": (tj.causal(), VISIBLE),
    "padding": (tj.padding(IS_TOKEN), IS_TOKEN[None]),
    "prefix": (tj.prefix(3), np.arange(S)[None] < 3),
    "segments": (tj.segments(QUERY_IDS, KEY_IDS), QUERY_IDS[:, None] == KEY_IDS),
    "joined": (tj.causal() & ~tj.padding(IS_TOKEN), VISIBLE & ~IS_TOKEN),
    "array of keys": (IS_TOKEN, IS_TOKEN[None]),
    "array of heads": (PER_HEAD, PER_HEAD),
}


def compare(found, right):
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5)


def value_and_gradients(function, *arrays):
    """The outputs, and the gradients of a sum of all of them that weighs every number."""

    def loss(*arrays):
        outputs = function(*arrays)
        finite = (jnp.where(jnp.isfinite(y), y, 0) for y in jax.tree.leaves(outputs))
        return sum(
            (y * jnp.cos(jnp.arange(y.size).reshape(y.shape))).sum() for y in finite
        ), outputs

    numbers = tuple(i for i, x in enumerate(arrays) if jnp.issubdtype(x.dtype, jnp.floating))
    return jax.jit(jax.value_and_grad(loss, numbers, has_aux=True))(*arrays)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_every_implementation_gives_the_loops_of_one_example(implementation):
    returned = {"return_logsumexp": implementation in ("reference", "blockwise")}
    returned["return_weights"] = implementation == "reference"
    arrays = [np.asarray(x, np.float64)[None] for x in (QUERY, KEY, VALUE)]

    @jax.jit
    def run(query, key, value):
        return {
            name: attend(query, key, value, mask=mask, implementation=implementation, **returned)
            for name, (mask, _) in MASKS.items()
        }

    for name, found in run(QUERY, KEY, VALUE).items():
        mask = np.broadcast_to(MASKS[name][1], (1, N, T, S))
        right = naive.attention(*arrays, mask=mask, **returned)
        right = right if isinstance(right, tuple) else (right,)
        compare(found, [x[0] for x in right])


@pytest.mark.parametrize(
    ("implementation", "name"),
    [("reference", "segments"), ("blockwise", "array of heads"), ("cudnn", "segments")],
)
def test_one_example_is_a_batch_of_one_for_value_and_gradient(implementation, name):
    def alone(query, key, value):
        return attend(query, key, value, mask=MASKS[name][0], implementation=implementation)

    found = value_and_gradients(alone, QUERY, KEY, value_with_nan(name))
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(found))
    compare(found, of_a_batch(name))


def value_with_nan(name):
    """Values that nobody sees may be NaN, without a batch axis too."""
    hidden = ~np.broadcast_to(MASKS[name][1], (N, T, S)).any((0, 1))
    return jax.device_put(np.where(hidden[:, None, None], np.float32(np.nan), VALUE))


@cache
def of_a_batch(name):
    def as_batch(query, key, value):
        batch = (x[None] for x in (query, key, value))
        return attend(*batch, mask=MASKS[name][1], implementation="reference")[0]

    return value_and_gradients(as_batch, QUERY, KEY, value_with_nan(name))


def heads(inputs_q, inputs_kv, *kernels, **options):
    return tj.multi_head_attention(
        inputs_q, inputs_kv, *kernels, **options, dropout_rate=0.3, dropout_rng=jax.random.key(0)
    )


def rotated(x, *kernels, positions):
    rotary = tj.Rotary(positions, tj.rope_frequencies(H + 1))
    return tj.multi_head_attention(x, x, *kernels, rotary=rotary, return_weights=True)


KERNELS = [(D, N, H), (E, K, H), (E, K, H), (N, H, F)]
TOKENS, REAL = np.array([3, 1, 1, 4, 1]), np.arange(T) % 4 != 0
# The function of arrays of one example and of others: the shapes or arrays of the first, and of the
# others.
FUNCTIONS = {
    "attention_weights": (
        lambda query, key: tj.attention_weights(query, key, bias=tj.alibi(tj.alibi_slopes(N))),
        [QUERY, KEY], [],
    ),
    "multi_head_attention": (
        lambda x, y, is_token, *kernels: heads(x, y, *kernels, mask=tj.padding(is_token)),
        [(T, D), (S, E), IS_TOKEN], KERNELS,
    ),
    "multi_head_attention with rotary": (
        lambda x, positions, *kernels: rotated(x, *kernels, positions=positions),
        [(T, D), np.arange(T)], [(D, N, 4), (D, K, 4), (D, K, 4), (N, 4, F)],
    ),
    "additive_attention": (
        lambda query, key, mask, *kernels: tj.additive_attention(
            query, key, key, *kernels, mask=mask[..., None, :, :], return_weights=True
        ),
        [(T, D), (S, E), VISIBLE], [(D, F), (E, F), (F,)],
    ),
    "rope": (tj.rope, [(T, N, 4), np.arange(T)], []),
    "cls_pool": (tj.cls_pool, [(T, D), REAL], []),
    "last_pool": (tj.last_pool, [(T, D), REAL], []),
    "mean_pool": (tj.mean_pool, [(T, D), REAL], []),
    "max_pool": (tj.max_pool, [(T, D), REAL], []),
    "layer_weighted_pool": (
        lambda one, other, is_token, logits: tj.layer_weighted_pool(
            jnp.stack([one, other]), is_token, logits
        ),
        [(T, D), (T, D), REAL], [(2,)],
    ),
    "count_positions": (tj.count_positions, [REAL], []),
    "count_in_segments": (tj.count_in_segments, [TOKENS], []),
    "region_embedding": (
        lambda tokens, is_token, presence, table: tj.region_embedding(
            table, tokens, is_token, presence
        ),
        [TOKENS, REAL, (T,)], [(3, 5, D)],
    ),
    "to_front": (tj.to_front, [TOKENS, REAL, (T,)], []),
    "max_patches": (lambda x, is_token: tj.max_patches(x, is_token, 2), [(T, D), REAL], []),
    "ngrams": (
        lambda tokens, is_token, presence, weight: tj.ngram_evidence(
            weight, weight**2, rows := tj.ngram_rows(tokens, is_token, 2, 4)[0],
            tj.ngram_shares(rows, rows > 3), presence,
        ),
        [TOKENS, REAL, (T,)], [(16, 2)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_takes_one_example(name):
    function, of_example, others = FUNCTIONS[name]
    arrays = [
        jax_normal(i, *x) if isinstance(x, tuple) else jnp.asarray(x)
        for i, x in enumerate((*of_example, *others))
    ]

    def as_batch(*arrays):
        batch = [x[None] for x in arrays[: len(of_example)]]
        return jax.tree.map(lambda x: x[0], function(*batch, *arrays[len(of_example) :]))

    @jax.jit
    def both(*arrays):
        if any(jnp.issubdtype(x.dtype, jnp.floating) for x in arrays):
            return [value_and_gradients(f, *arrays) for f in (function, as_batch)]
        return function(*arrays), as_batch(*arrays)

    compare(*both(*arrays))


@pytest.mark.parametrize("implementation", ["reference", "blockwise"])
def test_examples_and_their_rules_can_be_mapped(implementation):
    """Inside `jax.vmap` a rule of a batch is a rule of one example."""
    arrays = [np.stack([x, np.asarray(x)[::-1]]) for x in (QUERY, KEY, VALUE)]
    is_token, ids = np.stack([IS_TOKEN, ~IS_TOKEN]), np.stack([KEY_IDS, KEY_IDS])
    mask = tj.padding(is_token) & tj.segments(ids[:, :T], ids) & tj.prefix(np.array([4, 6]))
    mask |= tj.dense(np.stack([VISIBLE, ~VISIBLE])[:, None])
    arrays.append(jax_normal(7, 2, N, T, S))

    def one(query, key, value, bias, mask):
        return attend(query, key, value, bias=bias, mask=mask, implementation=implementation)

    def mapped(*arrays):
        return jax.vmap(one)(*arrays[:3], dense_bias(arrays[3]), mask)

    def together(query, key, value, bias):
        return attend(query, key, value, bias=bias, mask=mask, implementation="reference")

    compare(value_and_gradients(mapped, *arrays), value_and_gradients(together, *arrays))
