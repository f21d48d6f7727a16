"""Attention, layer norm and feed-forward as nested loops: the definition, executable.

Every number is a Python float (float64) and every sum is a loop, so that what the library computes
in one einsum can be read here step by step, and the library is tested against it. Slow on purpose.
Axes: B batch, T queries, S keys, N query heads, K key/value heads, H features per head,
D embedding, F feed-forward, M output; values may have other features than keys.

The one function without loops, `numpy_attention`, is what a good NumPy program would do.
"""

import math

import numpy as np


def attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """softmax(scale Q K^T + bias) V, one query at a time; scale is 1/sqrt(H) by default.

    query [B, T, N, H], key [B, S, K, H], value [B, S, K, H'] -> [B, T, N, H']; mask (True = attend)
    and bias broadcast to [B, N, T, S]. A query that sees no key gets zeros. Query heads share the
    key heads in consecutive groups of N/K.
    """
    B, T, N, H = query.shape
    S, K, features = value.shape[1:]
    scale = 1 / math.sqrt(H) if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, (B, N, T, S)).tolist()
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, N, T, S)).tolist()
    query, key, value = query.tolist(), key.tolist(), value.tolist()

    output = np.zeros((B, T, N, features))
    for b in range(B):
        for n in range(N):
            shared = n // (N // K)
            for t in range(T):
                seen = [s for s in range(S) if mask[b][n][t][s]]
                logits = [
                    scale * _dot(query[b][t][n], key[b][s][shared]) + bias[b][n][t][s] for s in seen
                ]
                total = [0.0] * features
                for weight, s in zip(_softmax(logits), seen, strict=True):
                    for h in range(features):
                        total[h] += weight * value[b][s][shared][h]
                output[b, t, n] = total
    return output


def multi_head_attention(
    inputs_q: np.ndarray,
    inputs_kv: np.ndarray,
    query_kernel: np.ndarray,
    key_kernel: np.ndarray,
    value_kernel: np.ndarray,
    out_kernel: np.ndarray,
    *,
    query_bias: np.ndarray | None = None,
    key_bias: np.ndarray | None = None,
    value_bias: np.ndarray | None = None,
    out_bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """Concat(head_1, ..., head_N) W^O, one head at a time.

    inputs_q [B, T, D], inputs_kv [B, S, D'], query_kernel [D, N, H], key_kernel [D', K, H],
    value_kernel [D', K, H'], out_kernel [N, H', M] -> [B, T, M]. Multiplying a concatenation by
    W^O is adding each head times its own rows of W^O, so the heads are added up instead.
    """
    B, T, _ = inputs_q.shape
    S = inputs_kv.shape[1]
    N, K, M = query_kernel.shape[1], key_kernel.shape[1], out_kernel.shape[2]
    mask = np.broadcast_to(True if mask is None else mask, (B, N, T, S))
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, N, T, S))

    output = np.zeros((B, T, M)) + (0.0 if out_bias is None else out_bias)
    for n in range(N):
        shared = n // (N // K)
        head = attention(
            _linear(inputs_q, query_kernel[:, n], _row(query_bias, n))[:, :, None],
            _linear(inputs_kv, key_kernel[:, shared], _row(key_bias, shared))[:, :, None],
            _linear(inputs_kv, value_kernel[:, shared], _row(value_bias, shared))[:, :, None],
            mask=mask[:, n : n + 1],
            bias=bias[:, n : n + 1],
            scale=scale,
        )
        output += _linear(head[:, :, 0], out_kernel[n], None)
    return output


def layer_norm(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None = None, *, epsilon: float = 1e-5
) -> np.ndarray:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, one row at a time; x [..., D]."""
    D = x.shape[-1]
    output = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].tolist()
        mean = sum(row) / D
        variance = sum((feature - mean) ** 2 for feature in row) / D
        for d in range(D):
            normalized = (row[d] - mean) / math.sqrt(variance + epsilon)
            output[(*index, d)] = scale[d] * normalized + (0.0 if bias is None else bias[d])
    return output


def feed_forward(
    x: np.ndarray,
    in_kernel: np.ndarray,
    in_bias: np.ndarray | None,
    out_kernel: np.ndarray,
    out_bias: np.ndarray | None,
    *,
    activation: str = "gelu",
) -> np.ndarray:
    """f(x W_1 + b_1) W_2 + b_2, one row at a time; x [..., D], kernels [D, F] and [F, M]."""
    hidden = _linear(x, in_kernel, in_bias)
    for index in np.ndindex(hidden.shape):
        hidden[index] = ACTIVATIONS[activation](float(hidden[index]))
    return _linear(hidden, out_kernel, out_bias)


def relu(x: float) -> float:
    """max(x, 0)."""
    return max(x, 0.0)


def gelu(x: float) -> float:
    """x times the probability that a standard normal variable is below x."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    """The approximation of `gelu` that GPT-2 uses."""
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}


def numpy_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    *,
    mask: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """`attention` for finite inputs, as two batched matrix products; float32 stays float32."""
    groups = query.shape[2] // key.shape[2]
    scale = 1 / math.sqrt(query.shape[3]) if scale is None else scale
    query, key, value = (x.transpose(0, 2, 1, 3) for x in (query, key, value))  # heads first
    if groups > 1:
        key, value = key.repeat(groups, axis=1), value.repeat(groups, axis=1)

    weights = (query * query.dtype.type(scale)) @ key.swapaxes(2, 3)
    if bias is not None:
        weights += bias
    if mask is not None:
        weights = np.where(mask, weights, -np.inf)
    peak = weights.max(axis=-1, keepdims=True)
    weights -= np.where(np.isfinite(peak), peak, 0)  # no peak where a query sees no key
    np.exp(weights, out=weights)
    total = weights.sum(axis=-1, keepdims=True)
    output = weights @ value / np.where(total > 0, total, 1)
    return output.transpose(0, 2, 1, 3)


def _dot(a: list[float], b: list[float]) -> float:
    total = 0.0
    for i in range(len(a)):
        total += a[i] * b[i]
    return total


def _softmax(logits: list[float]) -> list[float]:
    """exp(x) / sum of exp(x); taking the largest off first changes nothing but overflow."""
    if not logits:
        return []
    peak = max(logits)
    exponentials = [math.exp(logit - peak) for logit in logits]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def _linear(x: np.ndarray, kernel: np.ndarray, bias: np.ndarray | None) -> np.ndarray:
    """x W + b; x [..., D], kernel [D, F] -> [..., F]."""
    columns = kernel.T.tolist()
    output = np.zeros((*x.shape[:-1], len(columns)))
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].tolist()
        for f in range(len(columns)):
            output[(*index, f)] = _dot(row, columns[f]) + (0.0 if bias is None else bias[f])
    return output


def _row(bias: np.ndarray | None, n: int) -> np.ndarray | None:
    return None if bias is None else bias[n]
