"""The masked rows that are found by blocks are those of the rendered mask."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from transformer_jax.attention import masked_rows
from transformer_jax.attention.mask_rule import dense
from transformer_jax.attention.masked_rows import EDGE, MaskedRows, find_masked_rows
from transformer_jax.attention.masks import causal, padding, prefix, segments, sliding_window
from transformer_jax.costs.jaxpr import count

pytestmark = pytest.mark.usefixtures("strict")

B, N = 2, 3


def rng():
    return np.random.default_rng(0)


def few(*shape, share=0.003):
    return rng().random(shape) < share


MASKS = {
    "causal": lambda T, S: causal(),
    "causal, the first keys later": lambda T, S: causal(
        key_positions=jax.device_put(np.arange(S)[::-1] + T // 2)
    ),
    "window": lambda T, S: sliding_window(3, 0),
    "window at positions": lambda T, S: sliding_window(
        1,
        1,
        query_positions=jax.device_put(
            rng().permuted(np.tile(np.arange(T) * 3, (B, 1)), axis=1)
        ),
    ),
    "prefix": lambda T, S: prefix(np.array([0, 17])),
    "padding": lambda T, S: padding(few(B, S)),
    "segments": lambda T, S: segments(
        rng().integers(0, 900, (B, T)), rng().integers(0, 900, (B, S))
    ),
    "segments in order": lambda T, S: segments(
        np.sort(rng().integers(0, 60, (B, T))), np.sort(rng().integers(0, 60, (B, S)))
    ),
    "array of heads": lambda T, S: dense(few(1, N, T, S, share=1e-4)),
    "array of queries": lambda T, S: dense(few(B, 1, T, 1, share=0.5)),
    "array of keys": lambda T, S: dense(few(1, 1, 1, S, share=0.5)),
    "both": lambda T, S: causal() & padding(few(B, S)) & dense(few(N, T, 1, share=0.5)),
    "either": lambda T, S: sliding_window(0, 0) & padding(few(B, S)) | prefix(np.array([3, 0])),
    "nothing": lambda T, S: dense(np.zeros((1, 1), bool)),
    "all": lambda T, S: dense(np.ones((1, 1), bool)),
}  # fmt: skip


def rendered_and_found(mask, T, S):
    """The mask's array and its masked rows, compiled together."""
    return jax.device_get(
        jax.jit(lambda mask: (mask.to_array(T, S), find_masked_rows(mask, T, S)))(mask)
    )


# Above the edge and not a multiple of it: by blocks, of which the last overlap.
@pytest.mark.parametrize(
    ("name", "T", "S"),
    [
        *((name, 700, 1100) for name in MASKS),
        *(
            pytest.param(
                name, 513, 40, marks=() if name in ("causal", "both") else pytest.mark.slow
            )
            for name in MASKS
        ),
    ],
)
def test_it_equals_any_over_the_rendered_mask(name, T, S):
    array, (queries, keys) = rendered_and_found(MASKS[name](T, S), T, S)
    assert queries.shape[2] == T and keys.shape[2] == S
    np.testing.assert_array_equal(queries, np.broadcast_to(array.any(axis=3), queries.shape))
    np.testing.assert_array_equal(keys, np.broadcast_to(array.any(axis=2), keys.shape))


def test_the_blocks_say_what_the_whole_says(monkeypatch):
    """The same lengths, above the edge and below it."""

    def find(masks):
        return jax.jit(lambda masks: [find_masked_rows(mask, 23, 29) for mask in masks])(masks)

    masks = causal(), sliding_window(2, 1) & padding(few(B, 29, share=0.3)), prefix(5)
    whole = find(masks)
    monkeypatch.setattr(masked_rows, "EDGE", 8)
    for ours, theirs in zip(jax.tree.leaves(find(masks)), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(*np.broadcast_arrays(ours, theirs))


@pytest.mark.parametrize("length", [2048, 4096])
def test_nothing_of_size_T_x_S_is_made(length):
    ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
    found = count(
        lambda ids: find_masked_rows(causal() & segments(ids) & padding(ids > 0), length, length),
        ids,
    )
    assert found.largest_bytes <= 4 * EDGE * EDGE


def test_only_blocks_that_are_seen_in_part_are_rendered():
    """Under a causal mask, the four of 16 blocks on the diagonal."""
    rendered = []

    class Counted(type(causal())):
        def block(self, block):
            jax.debug.callback(lambda: rendered.append(1))
            return super().block(block)

    jax.block_until_ready(jax.jit(lambda: find_masked_rows(Counted(), 4 * EDGE, 4 * EDGE))())
    jax.effects_barrier()
    assert len(rendered) == 4


def test_a_group_of_heads_keeps_a_key_that_any_of_them_sees():
    mask = np.zeros((1, 6, 2, 3), bool)
    mask[0, 1, :, 0] = mask[0, 5, 0, 2] = True

    @jax.jit
    def kept(mask):
        """NaN that was not replaced by zeros."""
        seen = find_masked_rows(dense(mask), 2, 3)
        zeroed = (
            seen.zero_keys(jnp.full((1, 3, 2, 1), jnp.nan)),
            seen.zero_queries(jnp.full((1, 2, 6, 1), jnp.nan)),
            seen.zero_inputs_kv(jnp.full((1, 3, 1), jnp.nan)),
            seen.zero_inputs_q(jnp.full((1, 2, 1), jnp.nan)),
        )
        return [jnp.isnan(x)[0, ..., 0] for x in zeroed]

    keys, queries, inputs_kv, inputs_q = kept(mask)
    np.testing.assert_array_equal(keys, [[True, False], [False, False], [False, True]])
    np.testing.assert_array_equal(queries, mask[0].any(-1).T)
    assert inputs_kv.tolist() == [True, False, True]
    assert inputs_q.all()


SEE_THEMSELVES = {
    "causal": (causal(), True),
    "window": (sliding_window(2, 1), True),
    "both": (causal() & sliding_window(3, 3), True),
    "either": (causal() | dense(np.zeros((1, 1), bool)), True),
    "nothing": (dense(np.zeros((1, 1), bool)), False),
    "causal and padding": (causal() & padding(few(B, 23, share=0.3)), False),
    "neither": (prefix(2) | padding(few(B, 23, share=0.3)), False),
    "causal at positions": (causal(query_positions=jax.device_put(np.arange(23) - 4)), False),
    "window at positions": (
        sliding_window(1, 1, key_positions=jax.device_put(np.arange(23) + 9)),
        False,
    ),
}


def test_a_token_is_known_to_be_in_its_own_segment_unless_the_keys_have_other_ids():
    ids = jax.device_put(np.arange(23) // 4)
    own, equal = causal() & segments(ids), segments(ids, np.asarray(ids))
    assert find_masked_rows(own, 23, 23) == MaskedRows() and not equal.includes_diagonal
    assert equal.show(23) == segments(ids).show(23)
    with pytest.raises(ValueError, match="T=23 and S=29; got 23 keys"):
        find_masked_rows(segments(ids), 23, 29)


ONE_OF_ALL = {
    "query position": causal(query_positions=jax.device_put(np.array([500]))),
    "key position": sliding_window(3, 3, key_positions=jax.device_put(np.array([9]))),
    "id": segments(np.array([7]), np.array([7])),
}


@pytest.mark.parametrize("name", ONE_OF_ALL)
def test_one_position_or_id_is_that_of_all_queries_or_keys_in_every_block(name):
    array, rows = rendered_and_found(ONE_OF_ALL[name], 700, 1100)
    for found, axis in zip(rows, (3, 2), strict=True):
        np.testing.assert_array_equal(*np.broadcast_arrays(found, array.any(axis=axis)))


@pytest.mark.parametrize("name", SEE_THEMSELVES)
def test_a_full_diagonal_is_known_without_the_arrays(name):
    mask, known = SEE_THEMSELVES[name]
    assert mask.includes_diagonal is known
    for T, S in ((23, 23), (23, 23 if not known else 29)):
        array, rows = rendered_and_found(mask, T, S)
        if known and T == S:
            assert rows == MaskedRows() and array.any(axis=3).all() and array.any(axis=2).all()
            continue
        for found, axis in zip(rows, (3, 2), strict=True):
            np.testing.assert_array_equal(*np.broadcast_arrays(found, array.any(axis=axis)))


def test_an_accelerator_looks_at_all_at_once(monkeypatch):
    mask = padding(few(B, 1100)) & sliding_window(3, 0)
    by_blocks = str(jax.make_jaxpr(lambda: find_masked_rows(mask, 700, 1100))())
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    at_once = str(jax.make_jaxpr(lambda: find_masked_rows(mask, 700, 1100))())
    assert "while" in by_blocks and "while" not in at_once
