"""Blockwise attention: exact, with memory linear in T and S.

This is FlashAttention (Dao et al., 2022, https://arxiv.org/abs/2205.14135). For each block of
queries, the keys are visited one block at a time. With S_j the logits of block j, the running
maximum m, the sum l and the output o become

    m' = max(m, max S_j)
    l' = e^(m - m') l + sum e^(S_j - m')
    o' = e^(m - m') o + e^(S_j - m') V_j

and after the last block o / l is the attention (Milakov and Gimelshein, 2018,
https://arxiv.org/abs/1805.02867). The gradient computes the weights again from the logits and the
saved m and log l (Dao et al., 2022, algorithm 4, where they are one number):

    P = e^(S - m - log l)    dV = P^T dO    dS = P (dO V^T - rowsum(dO O))
    dQ = dS K                dK = dS^T Q

Blocks that the mask hides are not visited. Masks, biases and dropout are rendered for one block at
a time. The kernels of `cpu.py` and `triton.py` may compute the output and the gradient instead.
The gradient of a derivative is that of the reference.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array

from transformer_jax.attention.inputs import AttentionInputs, AttentionResult
from transformer_jax.attention.kernels.cpu import (
    compute_gradient_on_cpu,
    compute_output_on_cpu,
    tiling_for_xla,
)
from transformer_jax.attention.kernels.forward import Statistics, compute_output
from transformer_jax.attention.kernels.gradient import compute_gradient
from transformer_jax.attention.kernels.reference import reference_attention
from transformer_jax.attention.kernels.tangent import compute_tangent
from transformer_jax.attention.kernels.tile_sizes import choose_tiling
from transformer_jax.attention.kernels.tiles import Tiles
from transformer_jax.attention.kernels.triton import (
    compute_gradient_by_triton,
    compute_output_by_triton,
)
from transformer_jax.functional.checks import are_numbers
from transformer_jax.functional.dropout import kept_bits, key_words
from transformer_jax.functional.linear_map import (
    differentiated_as,
    jvp_of_some,
    linear_map,
    perturbed,
    reverse_mode_of,
    vjp_of_some,
)
from transformer_jax.parallel.mesh import vary_like

# A gradient of a derivative is computed by the reference, which stores the logits: at most so many
# of each mapped example.
MOST_STORED = 2**26
ONE_GRADIENT = (
    f"blockwise attention of more than {MOST_STORED:,} logits has no gradient of its derivatives; "
    'pass implementation="reference", or use forward mode for all derivatives but one'
)


def cpu_attention(inputs: AttentionInputs) -> AttentionResult:
    """Return the attention computed by the C++ kernel, for inputs that `why_not_cpu` accepts."""
    return blockwise_attention(inputs, by="cpu")


def triton_attention(inputs: AttentionInputs) -> AttentionResult:
    """Return the attention computed by Triton, for inputs that `why_not_triton` accepts."""
    return blockwise_attention(inputs, by="triton")


def blockwise_attention(
    inputs: AttentionInputs, *, by: Literal["xla", "cpu", "triton"] = "xla"
) -> AttentionResult:
    """Return the attention of validated inputs, computed in blocks.

    The masked rows must be finite. The kernel in C++ ("cpu") or in Pallas ("triton") may compute
    the output and the gradient.
    """
    (B, T, N, H), K = inputs.query.shape, inputs.key.shape[2]
    # The words stand for the key, which the loops would use in every block.
    words, kept = key_words(inputs.dropout_rng) if inputs.has_dropout else None, None
    if by != "xla" and words is not None:
        kept = kept_bits(words, inputs.dropout_rate, inputs.sizes)
    heads_first = replace(
        inputs,
        query=inputs.query.swapaxes(1, 2).reshape(B, K, N // K, T, H),
        key=inputs.key.swapaxes(1, 2),
        value=inputs.value.swapaxes(1, 2),
        masked_rows=None,
        dropout_rng=words,
        kept_bits=kept,
    )
    # Passed as a list of arrays, because JAX rebuilds other pytrees that a custom gradient takes.
    arrays, structure = jax.tree.flatten(heads_first)
    # Any: type checkers do not see the return type of a function with a custom gradient.
    tiling = choose_tiling(inputs) if by == "xla" else by
    attended: Any = _attend((structure, tiling), *vary_like(arrays, arrays))
    output, logsumexp = attended
    output = output.reshape(B, N, T, output.shape[4]).swapaxes(1, 2)
    if logsumexp is not None:
        logsumexp = logsumexp.reshape(B, N, T).swapaxes(1, 2)
    return AttentionResult(output, None, logsumexp)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend(static, *arrays):
    inputs = _inputs(static, arrays)
    asked = inputs.return_logsumexp
    output, found = _output(static, inputs, with_statistics=asked)
    statistics: Any = found
    return output, statistics.logsumexp if asked else None


@partial(_attend.defjvp, symbolic_zeros=True)
def _attend_jvp(static, arrays, tangents):
    results, (d_output, d_logsumexp) = _linearized(static, arrays, tangents)
    output, *rows = results
    if not _inputs(static, arrays).return_logsumexp:
        return (output, None), (d_output, None)
    return (output, Statistics(*rows).logsumexp), (d_output, d_logsumexp)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _attend_with_statistics(static, *arrays):
    output, found = _output(static, _inputs(static, arrays), with_statistics=True)
    statistics: Any = found
    return output, *statistics


@partial(_attend_with_statistics.defjvp, symbolic_zeros=True)
def _attend_with_statistics_jvp(static, arrays, tangents):
    results, (d_output, d_logsumexp) = _linearized(static, arrays, tangents)
    # What is computed from the statistics depends on their sum alone.
    return results, (d_output, jnp.zeros_like(results[1]), d_logsumexp)


def _linearized(static, arrays, tangents):
    """Return output and statistics, and the tangents of output and logsumexp."""
    results = _attend_with_statistics(static, *arrays)
    output, _, log_total = results
    indices = perturbed(tangents)
    given = [tangents[i] for i in indices]
    along, back = (partial(f, static, indices) for f in (_tangents, _gradients))
    # The transpose of the tangents is the gradient.
    found = linear_map(along, back, [*arrays, *results], given, [output, log_total])
    return results, found


def _tangents(static, indices, residuals, tangents):
    """Return the tangents of output and logsumexp for tangents of the arrays at `indices`."""

    def run(*arrays):
        (*arrays, output, highest, log_total), tangents = arrays[:number], arrays[number:]
        full: list[Array | None] = [None] * len(arrays)
        for i, tangent in zip(indices, tangents, strict=True):
            full[i] = tangent
        inputs = _inputs(static, arrays)
        _, by = static
        tiles = Tiles(inputs, tiling_for_xla(inputs) if isinstance(by, str) else by)
        return compute_tangent(tiles, output, Statistics(highest, log_total), full)

    def by_reference(*arrays):
        (*arrays, _, _, _), tangents = arrays[:number], arrays[number:]
        return jvp_of_some(partial(_reference, static), arrays, indices, tangents)

    number = len(residuals)
    return reverse_mode_of(by_reference, run)(*residuals, *tangents)


def _gradients(static, indices, residuals, cotangents):
    """Return the cotangents of the arrays at `indices`."""

    def run(*arrays):
        (*arrays, output, highest, log_total), cotangents = arrays[:number], arrays[number:]
        inputs = _inputs(static, arrays)
        d_output, d_logsumexp = cotangents
        if not inputs.return_logsumexp:
            d_logsumexp = None  # it is 0
        statistics = Statistics(highest, log_total)
        found = _gradient(static, inputs, statistics, d_output, output, d_logsumexp)
        return [found[i] for i in indices]

    def by_reference(*arrays):
        (*arrays, _, _, _), cotangents = arrays[:number], arrays[number:]
        return vjp_of_some(partial(_reference, static), arrays, indices, cotangents)

    number = len(residuals)
    return reverse_mode_of(by_reference, run)(*residuals, *cotangents)


def _reference(static, *arrays):
    """Return the output and the logsumexp, which store the logits. Raises ValueError for many."""
    inputs = _inputs(static, arrays)
    (B, K, G, T, _), S = inputs.query.shape, inputs.key.shape[2]
    if (B if are_numbers(B) else 1) * K * G * T * S > MOST_STORED:
        raise ValueError(ONE_GRADIENT)
    query, key, value = (x.reshape(B, -1, *x.shape[-2:]).swapaxes(1, 2)
                         for x in (inputs.query, inputs.key, inputs.value))  # fmt: skip
    inputs = replace(inputs, query=query, key=key, value=value, return_logsumexp=True)
    output, _, found = reference_attention(inputs)
    logsumexp: Any = found  # not None, since it is asked for
    output, logsumexp = output.swapaxes(1, 2), logsumexp.swapaxes(1, 2)
    return [output.reshape(B, K, G, T, -1), logsumexp.reshape(B, K, G, T)]


def _inputs(static, arrays):
    structure, _ = static
    return jax.tree.unflatten(structure, arrays)


def _output(static, inputs, *, with_statistics):
    """Return the output and the statistics, by XLA or by the named kernel."""
    _, by = static
    if isinstance(by, str):
        return KERNELS[by][0](inputs)
    return compute_output(Tiles(inputs, by), with_statistics=with_statistics)


def _gradient(static, inputs, *arrays):
    """Return the gradients, by XLA or by the named kernel."""
    _, by = static
    if isinstance(by, str):
        return KERNELS[by][1](inputs, *arrays)
    return compute_gradient(Tiles(inputs, by), *arrays)


def _gradient_in_blocks(inputs, *arrays):
    found = compute_gradient(Tiles(inputs, tiling_for_xla(inputs)), *arrays)
    return [x for x in found if x is not None]


# The output and the gradient by each kernel. The output has its derivatives by the rules above, and
# Pallas has none of the gradient for GPUs.
KERNELS = {
    "cpu": (compute_output_on_cpu, compute_gradient_on_cpu),
    "triton": (
        compute_output_by_triton,
        differentiated_as(_gradient_in_blocks, compute_gradient_by_triton),
    ),
}
