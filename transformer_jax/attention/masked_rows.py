"""Masked rows, the queries that see no key and the keys that no query sees, and their zeroing.

A weight of 0 does not keep a fully masked key or value out of a product, because 0 * NaN is NaN.
Nor does it keep a query that sees no key out of the gradient of the keys. These rows are therefore
set to zero before the first product.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Shaped

from transformer_jax.attention.coverage import Grid
from transformer_jax.attention.mask_rule import Mask, MaskLike, as_mask
from transformer_jax.attention.rule import Block, rendered, rule_class
from transformer_jax.functional.checks import are_numbers
from transformer_jax.parallel.mesh import vary_like

# Edge of the blocks in which a mask is searched; a mask that fits into one is rendered whole.
EDGE = 512


class MaskedRows(NamedTuple):
    """The queries that see a key and the keys that a query sees; the masked rows are False.

    None instead of an array means that no row is masked, which is known without rendering the mask.
    """

    visible_queries: Bool[Array, "#B #N T"] | None = None
    visible_keys: Bool[Array, "#B #N S"] | None = None

    @property
    def differ_by_head(self) -> bool:
        """Whether the arrays have an entry for each head."""
        return any(visible is not None and visible.shape[1] > 1 for visible in self)

    def zero_queries(self, query: Shaped[Array, "B T N H"]) -> Shaped[Array, "B T N H"]:
        """Return the queries, with those that see no key set to zero."""
        if self.visible_queries is None:
            return query
        return jnp.where(self.visible_queries.swapaxes(1, 2)[..., None], query, 0)

    def zero_keys(self, key: Shaped[Array, "B S K H"]) -> Shaped[Array, "B S K H"]:
        """Return the keys or values, with those that no head of their group sees set to zero."""
        visible, K = self.visible_keys, key.shape[2]
        if visible is None:
            return key
        if visible.shape[1] > 1:
            B, N, S = visible.shape
            visible = visible.reshape(B, K, N // K, S).any(axis=2)
        return jnp.where(visible.swapaxes(1, 2)[..., None], key, 0)

    def zero_inputs_q(self, x: Shaped[Array, "B T D"]) -> Shaped[Array, "B T D"]:
        """Return the inputs of the queries, with rows that see no key in any head set to zero."""
        return _zero(x, self.visible_queries)

    def zero_inputs_kv(self, x: Shaped[Array, "B S E"]) -> Shaped[Array, "B S E"]:
        """Return the inputs of the keys, with rows that no query sees in any head set to zero."""
        return _zero(x, self.visible_keys)

    def zero_isolated_rows(self, x: Shaped[Array, "B T D"]) -> Shaped[Array, "B T D"]:
        """Return the inputs of self-attention, with rows masked as query and as key set to zero.

        Norms and feed-forward networks read every row: a NaN there would reach their gradients as 0
        * NaN.
        """
        if self.visible_queries is None or self.visible_keys is None:
            return x
        return _zero(x, self.visible_queries.any(axis=1) | self.visible_keys.any(axis=1))


@rule_class(static=("T", "S"))
class MaskWithRows(Mask):
    """A mask of T queries and S keys together with its masked rows.

    The rows are found once and used by every layer of a stack.
    """

    rule: Mask
    rows: MaskedRows
    T: int
    S: int

    def block(self, block):
        return self.rule.block(block)

    def coverage(self, grid):
        return self.rule.coverage(grid)

    @property
    def includes_diagonal(self):
        return self.rule.includes_diagonal


def attach_masked_rows(mask: MaskLike, T: int, S: int) -> MaskWithRows | None:
    """Return the mask with its masked rows, so that attention does not search for them again.

    None stays None.
    """
    mask = as_mask(mask)
    if mask is None:
        return None
    rule = mask.rule if isinstance(mask, MaskWithRows) else mask
    return MaskWithRows(rule, find_masked_rows(mask, T, S), T, S)


def find_masked_rows(mask: Mask | None, T: int, S: int) -> MaskedRows:
    """Find the masked rows of a mask without storing the T x S matrix.

    On a CPU only the blocks that are partly visible are rendered. An accelerator renders the whole
    mask inside the reductions, without storing it, because loops cost it more than arithmetic. A
    mask of symbolic sizes (`jax.export`) is rendered whole too.
    """
    if mask is None or (T == S and mask.includes_diagonal):
        return MaskedRows()
    if isinstance(mask, MaskWithRows) and (mask.T, mask.S) == (T, S):
        return mask.rows
    in_blocks = are_numbers(T, S) and (T > EDGE or S > EDGE) and jax.default_backend() == "cpu"
    if not in_blocks:
        array = rendered(mask, T, S)
        return MaskedRows(
            jnp.broadcast_to(array.any(axis=3), (*array.shape[:2], T)),
            jnp.broadcast_to(array.any(axis=2), (*array.shape[:2], S)),
        )
    return _search_blocks(mask, Grid(T, S, min(T, EDGE), min(S, EDGE)))


def _search_blocks(mask, grid):
    T, S = grid.T, grid.S
    some, every = mask.coverage(grid)
    in_part = (some & ~every).any(axis=0)
    columns = jnp.argsort(~in_part, axis=1, stable=True)
    shape = jax.eval_shape(lambda: mask.block(grid.whole)).shape[:2]

    def row(i, found):
        def block(j, found):
            query_start = jnp.minimum(i * grid.queries, T - grid.queries)
            key_start = jnp.minimum(columns[i, j] * grid.keys, S - grid.keys)
            array = mask.block(Block(query_start, grid.queries, key_start, grid.keys, T, S))
            return (
                _mark(found[0], array.any(axis=3), query_start, grid.queries),
                _mark(found[1], array.any(axis=2), key_start, grid.keys),
            )

        return lax.fori_loop(0, in_part[i].sum(), block, found)

    whole = (
        jnp.repeat(every.any(axis=2), grid.queries, axis=1)[:, None, :T],
        jnp.repeat(every.any(axis=1), grid.keys, axis=1)[:, None, :S],
    )
    start = vary_like((jnp.zeros((*shape, T), bool), jnp.zeros((*shape, S), bool)), mask)
    part = lax.fori_loop(0, grid.rows, row, start)
    return MaskedRows(*(a | b for a, b in zip(whole, part, strict=True)))


def _mark(visible, part, start, size):
    part = jnp.broadcast_to(part, (*visible.shape[:2], size))
    old = lax.dynamic_slice_in_dim(visible, start, size, axis=2)
    return lax.dynamic_update_slice_in_dim(visible, old | part, start, axis=2)


def _zero(x, visible):
    """Return x [B, L, D] with zeros where no head's `visible` [#B, #N, L] or [#B, L] is True."""
    if visible is None:
        return x
    visible = visible.any(axis=1) if visible.ndim == 3 else visible
    return jnp.where(visible[..., None], x, 0)
