"""The kernel in C++ against attention in NumPy, on drawn shapes, masks and padding."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from transformer_jax.attention.dot_product import dot_product_attention
from transformer_jax.attention.masks import padding, sliding_window


@dataclass(frozen=True)
class Drawn:
    """Arrays [B, T, N, H] and [B, S, K, H or O], the cotangent of the output, and the mask."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    cotangent: np.ndarray
    left: int | None
    right: int | None
    is_token: np.ndarray | None

    @property
    def mask(self):
        """The mask as a rule."""
        rule = sliding_window(self.left, self.right)
        return rule if self.is_token is None else rule & padding(jnp.asarray(self.is_token))

    def visible(self) -> np.ndarray:
        """Return the mask as an array [B, 1, T, S]."""
        T, S = self.query.shape[1], self.key.shape[1]
        distance = np.arange(S) - (np.arange(T) + S - T)[:, None]
        seen = np.ones((T, S), bool)
        if self.left is not None:
            seen &= distance >= -self.left
        if self.right is not None:
            seen &= distance <= self.right
        seen = np.broadcast_to(seen, (len(self.query), 1, T, S))
        return seen if self.is_token is None else seen & self.is_token[:, None, None]


def draw(rng: np.random.Generator) -> Drawn:
    """Draw shapes around the edges of tiles and vectors, a mask, and numbers."""
    B, K, share = rng.integers(1, 4, 3)
    lengths = [rng.integers(1, 5), rng.integers(1, 70), rng.integers(60, 300)]
    T, S = rng.choice(lengths, 2)
    H, O = rng.choice([1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 64, 65, 80], 2)  # noqa: E741
    left, right = (None if rng.random() < 0.4 else int(rng.integers(0, 90)) for _ in "lr")
    if rng.random() < 0.3:
        left, right = None, 0  # causal
    is_token = None
    if rng.random() < 0.6:
        is_token = rng.random((B, S)) < rng.choice([0, 0.1, 0.5, 0.9, 1])
    shapes = (B, T, K * share, H), (B, S, K, H), (B, S, K, O), (B, T, K * share, O)
    return Drawn(*(rng.normal(size=s).astype(np.float32) for s in shapes), left, right, is_token)


def expected(drawn: Drawn) -> tuple[np.ndarray, ...]:
    """Return the output and the gradients of query, key and value, in float64."""
    query, key, value, cotangent = (
        np.float64(x) for x in (drawn.query, drawn.key, drawn.value, drawn.cotangent)
    )
    share, scale = query.shape[2] // key.shape[2], query.shape[3] ** -0.5
    k, v = (x.repeat(share, axis=2) for x in (key, value))
    logits = np.where(drawn.visible(), scale * np.einsum("btnh,bsnh->bnts", query, k), -np.inf)
    highest = logits.max(axis=-1, keepdims=True)
    weights = np.exp(logits - np.where(np.isfinite(highest), highest, 0))
    total = weights.sum(axis=-1, keepdims=True)
    weights /= np.where(total == 0, 1, total)
    output = np.einsum("bnts,bsno->btno", weights, v)
    d_weights = np.einsum("btno,bsno->bnts", cotangent, v)
    d_logits = weights * (d_weights - (d_weights * weights).sum(axis=-1, keepdims=True))

    def of_groups(x):
        return x.reshape(*x.shape[:2], -1, share, x.shape[3]).sum(axis=3)

    return (
        output,
        scale * np.einsum("bnts,bsnh->btnh", d_logits, k),
        of_groups(scale * np.einsum("bnts,btnh->bsnh", d_logits, query)),
        of_groups(np.einsum("bnts,btno->bsno", weights, cotangent)),
    )


def found(drawn: Drawn) -> tuple[np.ndarray, ...]:
    """Return the same, computed by the kernel. Numbers that padding hides are NaN."""
    key, value = drawn.key, drawn.value
    if drawn.is_token is not None:
        key, value = (np.where(drawn.is_token[..., None, None], x, np.nan) for x in (key, value))

    def attend(*arrays):
        return dot_product_attention(*arrays, mask=drawn.mask, implementation="cpu")

    arrays = map(jnp.asarray, (drawn.query, key, value))
    output, pullback = jax.vjp(attend, *arrays)
    return tuple(map(np.asarray, (output, *pullback(jnp.asarray(drawn.cotangent)))))


def compare(number: int, seed: int) -> None:
    """Compare both on so many drawn problems. Raises AssertionError at the first difference."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        drawn = draw(rng)
        for ours, right in zip(found(drawn), expected(drawn), strict=True):
            assert ours.shape == right.shape
            np.testing.assert_allclose(ours, right, rtol=1e-4, atol=2e-5)
