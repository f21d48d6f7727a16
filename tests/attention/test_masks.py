"""A rule is the matrix that its docstring shows, whole, in blocks, as a picture and as a pytree."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from transformer_jax.attention import masks
from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.mask_rule import as_mask, dense
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.attention.rule import Block
from transformer_jax.attention.rule import rendered as all_of

pytestmark = pytest.mark.usefixtures("strict")

B, N, T, S = 2, 3, 6, 15  # blocks of 2 x 5 tile it
RANDOM = np.random.default_rng(0)
IS_TOKEN = RANDOM.random((B, S)) < 0.6
QUERY_IDS = RANDOM.integers(0, 3, (B, T))
KEY_IDS = RANDOM.integers(0, 3, (B, S))
QUERY_POSITIONS = RANDOM.integers(0, S, (B, T))
KEY_POSITIONS = RANDOM.permuted(np.tile(np.arange(S), (B, 1)), axis=1)
PER_HEAD = RANDOM.random((B, N, T, S)) < 0.5
LENGTHS = np.array([4, 11])


def loops(rule):
    """[B, N, T, S] from rule(b, n, t, s), one question at a time."""
    return np.array(
        [
            [[[rule(b, n, t, s) for s in range(S)] for t in range(T)] for n in range(N)]
            for b in range(B)
        ]
    )


# Each rule beside the question that it answers. By default query t stands at position t + S - T.
RULES = {
    "causal": (causal(), lambda b, n, t, s: s <= t + S - T),
    "causal at positions": (
        causal(
            query_positions=jax.device_put(QUERY_POSITIONS),
            key_positions=jax.device_put(KEY_POSITIONS),
        ),
        lambda b, n, t, s: KEY_POSITIONS[b, s] <= QUERY_POSITIONS[b, t],
    ),
    "causal at shared query positions": (
        causal(query_positions=jax.device_put(QUERY_POSITIONS[1])),
        lambda b, n, t, s: s <= QUERY_POSITIONS[1, t],
    ),
    "causal at shared key positions": (
        causal(key_positions=jax.device_put(KEY_POSITIONS[1])),
        lambda b, n, t, s: KEY_POSITIONS[1, s] <= t + S - T,
    ),
    "window": (sliding_window(2, 1), lambda b, n, t, s: t + S - T - 2 <= s <= t + S - T + 1),
    "window without left bound": (
        sliding_window(None, 3),
        lambda b, n, t, s: s <= t + S - T + 3,
    ),
    "window without right bound": (
        sliding_window(0, None),
        lambda b, n, t, s: t + S - T <= s,
    ),
    "window without bounds": (sliding_window(None, None), lambda b, n, t, s: True),
    "window at positions": (
        sliding_window(
            1,
            4,
            query_positions=jax.device_put(QUERY_POSITIONS),
            key_positions=jax.device_put(KEY_POSITIONS),
        ),
        lambda b, n, t, s: -1 <= KEY_POSITIONS[b, s] - QUERY_POSITIONS[b, t] <= 4,
    ),
    "prefix": (prefix(5), lambda b, n, t, s: s < 5),
    "prefix per example": (prefix(LENGTHS), lambda b, n, t, s: s < LENGTHS[b]),
    "prefix at positions": (
        prefix(LENGTHS, key_positions=jax.device_put(KEY_POSITIONS)),
        lambda b, n, t, s: KEY_POSITIONS[b, s] < LENGTHS[b],
    ),
    "padding": (padding(IS_TOKEN), lambda b, n, t, s: IS_TOKEN[b, s]),
    "segments": (
        segments(QUERY_IDS, KEY_IDS),
        lambda b, n, t, s: QUERY_IDS[b, t] == KEY_IDS[b, s],
    ),
    "dense per head": (dense(PER_HEAD), lambda b, n, t, s: PER_HEAD[b, n, t, s]),
    "dense per key": (dense(PER_HEAD[0, 0, 0]), lambda b, n, t, s: PER_HEAD[0, 0, 0, s]),
    "dense per query": (
        dense(PER_HEAD[:, :1, :, :1]),
        lambda b, n, t, s: PER_HEAD[b, 0, t, 0],
    ),
    "and": (
        causal() & padding(IS_TOKEN),
        lambda b, n, t, s: s <= t + S - T and IS_TOKEN[b, s],
    ),
    "or": (
        causal() | prefix(LENGTHS),
        lambda b, n, t, s: s <= t + S - T or s < LENGTHS[b],
    ),
    "not": (~causal(), lambda b, n, t, s: s > t + S - T),
    "and not": (
        causal() & ~(padding(IS_TOKEN) | prefix(LENGTHS)),
        lambda b, n, t, s: s <= t + S - T and not (IS_TOKEN[b, s] or s < LENGTHS[b]),
    ),
    "padding of all examples": (padding(IS_TOKEN[0]), lambda b, n, t, s: IS_TOKEN[0, s]),
    "and of ors": (
        (sliding_window(1, 0) | prefix(2)) & (dense(PER_HEAD) | padding(IS_TOKEN)),
        lambda b, n, t, s: (
            (t + S - T - 1 <= s <= t + S - T or s < 2) and (PER_HEAD[b, n, t, s] or IS_TOKEN[b, s])
        ),
    ),
}
MASKS = {name: mask for name, (mask, _) in RULES.items()}


@partial(jax.jit, static_argnums=(1, 2))
def as_array(mask, T, S=None):
    return mask.to_array(T, S)


def full(mask):
    return jnp.broadcast_to(mask.to_array(T, S), (B, N, T, S))


@pytest.fixture(scope="module")
def rendered():
    """Every rule as a whole, and tiled from blocks whose starts are loop indices: one compilation
    for all.
    """
    rows, columns = 2, 5

    def tiled(mask):
        def place(i, array):
            t, s = i // (S // columns) * rows, i % (S // columns) * columns
            block = mask.block(Block(t, rows, s, columns, T, S))
            block = jnp.broadcast_to(block, (B, N, rows, columns))
            return lax.dynamic_update_slice(array, block, (0, 0, t, s))

        tiles = (T // rows) * (S // columns)
        return lax.fori_loop(0, tiles, place, jnp.zeros((B, N, T, S), bool))

    def both(rules):
        return {name: (full(mask), tiled(mask)) for name, mask in rules.items()}

    return jax.tree.map(np.asarray, jax.jit(both)(MASKS))


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_question_asked_of_every_pair(rendered, name):
    np.testing.assert_array_equal(rendered[name][0], loops(RULES[name][1]))


@pytest.mark.parametrize("name", RULES)
def test_blocks_at_traced_starts_tile_to_the_whole(rendered, name):
    whole, tiles = rendered[name]
    np.testing.assert_array_equal(tiles, whole)


@pytest.mark.parametrize("name", ["and of ors", "window at positions", "dense per query"])
def test_blocks_at_plain_starts_tile_to_the_whole(rendered, name):
    @jax.jit
    def blocks(mask):
        return [
            [mask.block(Block(t, 2, s, 5, T, S)) for s in range(0, S, 5)] for t in range(0, T, 2)
        ]

    bands = []
    for band in blocks(MASKS[name]):
        bands.append([np.broadcast_to(block, (B, N, 2, 5)) for block in band])
    np.testing.assert_array_equal(np.block(bands), rendered[name][0])


def test_blocks_tile_inside_scan():
    mask = MASKS["causal at positions"] & MASKS["padding"]

    @jax.jit
    def columns(mask):
        def column(_, s):
            return None, mask.block(Block(0, T, s, 1, T, S))[..., 0]

        return lax.scan(column, None, jnp.arange(S))[1]

    tiles = np.moveaxis(np.asarray(columns(mask)), 0, -1)
    np.testing.assert_array_equal(tiles, as_array(mask, T, S))


@pytest.mark.parametrize(
    ("mask", "queries", "keys", "matrix"),
    [
        (causal(), 3, None, [[1, 0, 0], [1, 1, 0], [1, 1, 1]]),
        (causal(), 2, 3, [[1, 1, 0], [1, 1, 1]]),
        (causal(), 3, 2, [[0, 0], [1, 0], [1, 1]]),
        (sliding_window(1, 0), 3, None, [[1, 0, 0], [1, 1, 0], [0, 1, 1]]),
        (sliding_window(1, 0), 2, 3, [[1, 1, 0], [0, 1, 1]]),
        (prefix(2), 3, None, [[1, 1, 0], [1, 1, 0], [1, 1, 0]]),
        (causal() | prefix(2), 3, None, [[1, 1, 0], [1, 1, 0], [1, 1, 1]]),
        (segments(np.array([[0, 0, 1]])), 3, None, [[1, 1, 0], [1, 1, 0], [0, 0, 1]]),
        (padding(np.array([[False, True, True]])), 2, 3, [[0, 1, 1], [0, 1, 1]]),
        (dense(np.array([True, False])), 2, 2, [[1, 0], [1, 0]]),
    ],
)
def test_matrices_of_the_docstrings(mask, queries, keys, matrix):
    array = np.asarray(as_array(mask, queries, keys))
    assert array.dtype == np.bool_
    np.testing.assert_array_equal(array[0, 0], np.array(matrix, bool))


def test_causal_with_more_keys_lets_the_last_query_see_the_last_key():
    array = np.asarray(as_array(causal(), T, S))
    assert array[0, 0, -1].all()
    assert not array[0, 0, 0, S - T + 1 :].any()


@pytest.mark.parametrize(
    ("mask", "picture"),
    [
        (causal(), "■ · ·\n■ ■ ·\n■ ■ ■"),
        (sliding_window(1, 0) | prefix(1), "■ · ·\n■ ■ ·\n■ ■ ■"),
        (sliding_window(0, 0), "■ · ·\n· ■ ·\n· · ■"),
        (
            prefix(np.array([1, 3])),
            "example 0, head 0\n■ · ·\n■ · ·\n■ · ·\n\nexample 1, head 0\n■ ■ ■\n■ ■ ■\n■ ■ ■",
        ),
    ],
)
def test_show_draws_the_rule(mask, picture):
    assert mask.show(3) == picture


def test_show_of_a_rectangle_has_a_row_for_each_query():
    assert causal().show(2, 3) == "■ ■ ·\n■ ■ ■"


@pytest.mark.parametrize("place", [np.asarray, jax.device_put], ids=["NumPy", "JAX"])
def test_arrays_join_rules_from_either_side(place):
    array = place(np.array([True, False, True]))
    expected = np.array([[1, 0, 0], [1, 0, 0], [1, 0, 1]], bool)
    for joined in (causal() & array, array & causal()):
        assert isinstance(joined, masks.Mask)
        np.testing.assert_array_equal(np.asarray(as_array(joined, 3))[0, 0], expected)
    for joined in (prefix(2) | array, array | prefix(2)):
        assert isinstance(joined, masks.Mask)
        np.testing.assert_array_equal(np.asarray(as_array(joined, 3))[0, 0], np.ones((3, 3)))


def test_and_is_intersection_and_or_is_union(rendered):
    causal_and_padding = rendered["causal"][0] & rendered["padding"][0]
    np.testing.assert_array_equal(rendered["and"][0], causal_and_padding)
    np.testing.assert_array_equal(
        rendered["or"][0], rendered["causal"][0] | rendered["prefix per example"][0]
    )


def test_rules_are_pytrees_of_their_arrays():
    mask = MASKS["and of ors"]
    leaves, structure = jax.tree.flatten(mask)
    again = jax.tree.unflatten(structure, leaves)
    np.testing.assert_array_equal(as_array(again, T, S), as_array(mask, T, S))
    assert jax.tree.leaves(causal()) == []
    assert jax.tree.structure(sliding_window(1, 2)) != jax.tree.structure(sliding_window(2, 1))


def test_vmap_over_a_rule_is_a_loop_over_its_examples():
    def one(is_token, lengths):
        return (causal() & padding(is_token[None]) | prefix(lengths)).to_array(T, S)[0]

    together = jax.jit(jax.vmap(one))(IS_TOKEN, LENGTHS)
    rule = causal() & padding(IS_TOKEN) | prefix(LENGTHS)
    np.testing.assert_array_equal(together, as_array(rule, T, S))


def test_vmap_maps_over_the_arrays_inside_a_rule():
    stacked = jax.tree.map(
        lambda *x: jax.device_put(np.stack(x)), *(segments(QUERY_IDS[b : b + 1]) for b in (0, 1))
    )
    together = jax.jit(jax.vmap(lambda mask: mask.to_array(T)[0]))(stacked)
    np.testing.assert_array_equal(together, as_array(segments(QUERY_IDS), T))


def test_rules_keep_the_axes_that_they_do_not_depend_on_at_size_one():
    def shape(mask):
        return mask.block(Block(0, T, 0, S, T, S)).shape

    assert shape(causal()) == (1, 1, T, S)
    assert shape(padding(IS_TOKEN)) == (B, 1, 1, S)
    assert shape(dense(np.ones(S, bool))) == (1, 1, 1, S)
    assert shape(prefix(3)) == (1, 1, 1, S)


@pytest.mark.usefixtures("as_users_run_it")
class TestMistakes:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: dense(np.zeros((3, 3), np.float32)),
            lambda: dense(np.ones((3, 3), np.int32)),
            lambda: padding(np.ones((2, 3))),
            lambda: causal() & np.zeros((3, 3), np.float32),
            lambda: as_mask(jnp.zeros((3, 3))),
            lambda: dot_product_attention(*[jnp.ones((1, 3, 1, 2))] * 3, mask=jnp.zeros((3, 3))),
        ],
    )
    def test_a_mask_of_numbers_is_pointed_to_bias(self, make):
        with pytest.raises(TypeError, match=r"must be boolean .* got (float|int)\d+.*bias="):
            make()

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: padding(np.ones((3, 1, 1), bool)), r"is_token must have the shape \[B, S\]"),
            (lambda: dense(np.ones((1,) * 5, bool)), r"got the shape \(1, 1, 1, 1, 1\)"),
            (lambda: sliding_window(-1, 0), "left must be 0 or more.* got -1"),
            (lambda: sliding_window(0, -2), "right must be 0 or more.* got -2"),
        ],
    )
    def test_a_rule_that_cannot_be_made_says_why(self, make, message):
        with pytest.raises(ValueError, match=message):
            make()

    @pytest.mark.parametrize("off", [-1, 1])
    @pytest.mark.parametrize(
        "make",
        [
            lambda t, s: np.ones((t, 5), bool),
            lambda t, s: np.ones((3, s), bool),
            lambda t, s: padding(np.ones((2, s), bool)),
            lambda t, s: causal() & padding(np.ones((2, s), bool)),
            lambda t, s: segments(np.zeros((2, t), int), np.zeros((2, 5), int)),
            lambda t, s: causal(query_positions=jnp.arange(t)),
            lambda t, s: sliding_window(1, 0, key_positions=jnp.arange(s)),
        ],
    )
    def test_a_mask_of_another_length_is_rejected_not_cut(self, make, off):
        with pytest.raises(ValueError, match="T=3 and S=5"):
            all_of(as_mask(make(3 + off, 5 + off)), 3, 5)

    def test_a_class_without_block_is_no_rule(self):
        class Empty(masks.Mask):
            pass

        with pytest.raises(TypeError, match=r"Empty .* defines no block"):
            Empty().to_array(3)
