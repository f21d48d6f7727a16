"""Attention, normalisation and feed-forward as nested loops: the definition, executable.

Every number is a Python float (float64) and every sum is a loop, so that what the library computes
in one einsum can be read here step by step, and the library is tested against it. Slow on purpose.
Axes: B batch, T queries, S keys, N query heads, K key/value heads, H features per head,
D embedding, E embedding of the keys, A alignment, F feed-forward, M output; values may have other
features than keys.

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
    soft_cap: float | None = None,
    kept: np.ndarray | None = None,
    dropout_rate: float = 0.0,
    return_weights: bool = False,
    return_logsumexp: bool = False,
) -> np.ndarray | tuple[np.ndarray, ...]:
    """softmax(scale Q K^T + bias) V, one query at a time; scale is 1/sqrt(H) by default.

    query [B, T, N, H], key [B, S, K, H], value [B, S, K, H'] -> [B, T, N, H']; mask (True = attend)
    and bias broadcast to [B, N, T, S]. A query that sees no key gets zeros. Query heads share the
    key heads in consecutive groups of N/K. A soft cap c makes c tanh(x / c) of a product x. Dropout
    keeps the weights that `kept` [B, N, T, S] says, times 1 / (1 - dropout_rate).

    After the output come, where asked for, the weights [B, N, T, S] as they were used and the log
    of the softmax's denominator [B, T, N], -inf for a query that sees no key.
    """
    B, T, N, H = query.shape
    S, K, features = value.shape[1:]
    scale = 1 / math.sqrt(H) if scale is None else scale
    mask = np.broadcast_to(True if mask is None else mask, (B, N, T, S)).tolist()
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, N, T, S)).tolist()
    query, key, value = query.tolist(), key.tolist(), value.tolist()

    output = np.zeros((B, T, N, features))
    weights = np.zeros((B, N, T, S))
    logsumexp = np.zeros((B, T, N))
    for b in range(B):
        for n in range(N):
            shared = n // (N // K)
            for t in range(T):
                seen = [s for s in range(S) if mask[b][n][t][s]]
                logits = [
                    _capped(scale * _dot(query[b][t][n], key[b][s][shared]), soft_cap)
                    + bias[b][n][t][s]
                    for s in seen
                ]
                logsumexp[b, t, n] = log_sum_exp(logits)
                total = [0.0] * features
                for weight, s in zip(softmax(logits), seen, strict=True):
                    if kept is not None:
                        weight = weight / (1 - dropout_rate) if kept[b, n, t, s] else 0.0
                    weights[b, n, t, s] = weight
                    for h in range(features):
                        total[h] += weight * value[b][s][shared][h]
                output[b, t, n] = total
    returned = (output,) + (weights,) * return_weights + (logsumexp,) * return_logsumexp
    return returned if len(returned) > 1 else output


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
    soft_cap: float | None = None,
    kept: np.ndarray | None = None,
    dropout_rate: float = 0.0,
    return_weights: bool = False,
) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
    """Concat(head_1, ..., head_N) W^O, one head at a time.

    inputs_q [B, T, D], inputs_kv [B, S, E], query_kernel [D, N, H], key_kernel [E, K, H],
    value_kernel [E, K, H'], out_kernel [N, H', M] -> [B, T, M]. Multiplying a concatenation by
    W^O is adding each head times its own rows of W^O, so the heads are added up instead. Options
    as `attention` has them.
    """
    B, T, _ = inputs_q.shape
    S = inputs_kv.shape[1]
    N, K, M = query_kernel.shape[1], key_kernel.shape[1], out_kernel.shape[2]
    mask = np.broadcast_to(True if mask is None else mask, (B, N, T, S))
    bias = np.broadcast_to(0.0 if bias is None else bias, (B, N, T, S))

    output = np.zeros((B, T, M)) + (0.0 if out_bias is None else out_bias)
    weights = np.zeros((B, N, T, S))
    for n in range(N):
        shared = n // (N // K)
        head, weights[:, n : n + 1] = attention(
            _linear(inputs_q, query_kernel[:, n], _row(query_bias, n))[:, :, None],
            _linear(inputs_kv, key_kernel[:, shared], _row(key_bias, shared))[:, :, None],
            _linear(inputs_kv, value_kernel[:, shared], _row(value_bias, shared))[:, :, None],
            mask=mask[:, n : n + 1],
            bias=bias[:, n : n + 1],
            scale=scale,
            soft_cap=soft_cap,
            kept=None if kept is None else kept[:, n : n + 1],
            dropout_rate=dropout_rate,
            return_weights=True,
        )
        output += _linear(head[:, :, 0], out_kernel[n], None)
    return (output, weights) if return_weights else output


def additive_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    query_kernel: np.ndarray,
    key_kernel: np.ndarray,
    score_kernel: np.ndarray,
    *,
    score_bias: np.ndarray | None = None,
    mask: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """softmax_s(w . tanh(W_q q_t + W_k k_s + b)) V and its weights, the alignment matrix [B, T, S].

    query [B, T, D], key [B, S, E], value [B, S, M], kernels [D, A], [E, A] and [A]; mask broadcasts
    to [B, 1, T, S]. Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2.
    """
    (B, T, _), (S, M), A = query.shape, value.shape[1:], len(score_kernel)
    mask = np.broadcast_to(True if mask is None else mask, (B, 1, T, S))
    score_bias = np.zeros(A) if score_bias is None else score_bias
    of_query, of_key = _linear(query, query_kernel, None), _linear(key, key_kernel, None)

    output, alignment = np.zeros((B, T, M)), np.zeros((B, T, S))
    for b in range(B):
        for t in range(T):
            seen = [s for s in range(S) if mask[b, 0, t, s]]
            scores = []
            for s in seen:
                score = 0.0
                for a in range(A):
                    hidden = math.tanh(of_query[b, t, a] + of_key[b, s, a] + score_bias[a])
                    score += float(score_kernel[a]) * hidden
                scores.append(score)
            for weight, s in zip(softmax(scores), seen, strict=True):
                alignment[b, t, s] = weight
                for m in range(M):
                    output[b, t, m] += weight * value[b, s, m]
    return output, alignment


def softmax(logits: list[float]) -> list[float]:
    """exp(x) / sum of exp(x); taking the largest off first changes nothing but overflow."""
    if not logits:
        return []
    peak = max(logits)
    exponentials = [math.exp(logit - peak) for logit in logits]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def log_sum_exp(logits: list[float]) -> float:
    """The log of the softmax's denominator; of nothing, -inf."""
    if not logits:
        return -math.inf
    peak = max(logits)
    return peak + math.log(sum(math.exp(logit - peak) for logit in logits))


def mask_before_softmax(logits: list[float], mask: list[bool]) -> list[float]:
    """A hidden logit becomes -inf, whose exponential is 0. Where all are hidden, zeros."""
    if not any(mask):
        return [0.0] * len(logits)
    hidden = [logit if seen else -math.inf for logit, seen in zip(logits, mask, strict=True)]
    return softmax(hidden)


def mask_after_softmax(logits: list[float], mask: list[bool]) -> list[float]:
    """The mistake: a hidden weight becomes 0, but its logit stays in every other's denominator."""
    weights = softmax(logits)
    return [weight if seen else 0.0 for weight, seen in zip(weights, mask, strict=True)]


def zero_and_renormalise(logits: list[float], mask: list[bool]) -> list[float]:
    """Its repair: what is left is divided by its sum. Zeros where nothing is left, be it
    because all are hidden or because one hidden logit has taken all the weight."""
    weights = mask_after_softmax(logits, mask)
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def length(a: list[float]) -> float:
    """sqrt(sum of a_i^2)."""
    return math.sqrt(_dot(a, a))


def cosine(a: list[float], b: list[float]) -> float:
    """Of the angle between a and b, from the three sides of their triangle (law of cosines)."""
    opposite = length([a[i] - b[i] for i in range(len(a))])
    return (length(a) ** 2 + length(b) ** 2 - opposite**2) / (2 * length(a) * length(b))


def dot_by_angle(a: list[float], b: list[float]) -> float:
    """a . b as length x length x cosine: why similar directions, and long vectors, score high."""
    if not length(a) or not length(b):
        return 0.0
    return length(a) * length(b) * cosine(a, b)


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


def rms_norm(x: np.ndarray, scale: np.ndarray, *, epsilon: float = 1e-6) -> np.ndarray:
    """scale x / sqrt(mean(x^2) + epsilon), one row at a time; x [..., D]."""
    D = x.shape[-1]
    output = np.zeros(x.shape)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].tolist()
        root = math.sqrt(_dot(row, row) / D + epsilon)
        for d in range(D):
            output[(*index, d)] = scale[d] * (row[d] / root)
    return output


def batch_norm(
    x: np.ndarray,
    scale: np.ndarray,
    bias: np.ndarray | None = None,
    *,
    statistics: tuple[np.ndarray, np.ndarray] | None = None,
    epsilon: float = 1e-5,
) -> np.ndarray:
    """scale (x - mean) / sqrt(variance + epsilon) + bias, one feature at a time; x [..., D].

    The statistics, (mean [D], variance [D]), are those of x itself where none are given.
    """
    means, variances = batch_statistics(x) if statistics is None else statistics
    output = np.zeros(x.shape)
    for d in range(x.shape[-1]):
        root = math.sqrt(variances[d] + epsilon)
        for index in np.ndindex(x.shape[:-1]):
            normalized = (x[(*index, d)] - means[d]) / root
            output[(*index, d)] = scale[d] * normalized + (0.0 if bias is None else bias[d])
    return output


def batch_statistics(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean [D] and biased variance [D] of each feature over all rows of x [..., D]."""
    D = x.shape[-1]
    means, variances = np.zeros(D), np.zeros(D)
    for d in range(D):
        column = x[..., d].ravel().tolist()
        means[d] = sum(column) / len(column)
        variances[d] = sum((feature - means[d]) ** 2 for feature in column) / len(column)
    return means, variances


def running_statistics(
    running: tuple[np.ndarray, np.ndarray], x: np.ndarray, *, momentum: float = 0.9
) -> tuple[np.ndarray, np.ndarray]:
    """momentum * running + (1 - momentum) * those of x, whose variance is made unbiased first."""
    means, variances = batch_statistics(x)
    rows = x.size // x.shape[-1]
    updated = np.zeros(len(means)), np.zeros(len(means))
    for d in range(len(means)):
        updated[0][d] = momentum * running[0][d] + (1 - momentum) * means[d]
        unbiased = variances[d] * rows / (rows - 1)
        updated[1][d] = momentum * running[1][d] + (1 - momentum) * unbiased
    return updated


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


def gated_feed_forward(
    x: np.ndarray,
    gate_kernel: np.ndarray,
    in_kernel: np.ndarray,
    out_kernel: np.ndarray,
    *,
    gate: str = "swiglu",
    gate_bias: np.ndarray | None = None,
    in_bias: np.ndarray | None = None,
    out_bias: np.ndarray | None = None,
) -> np.ndarray:
    """(f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2, one row at a time; kernels [D, F] and [F, M]."""
    hidden, opened = _linear(x, in_kernel, in_bias), _linear(x, gate_kernel, gate_bias)
    for index in np.ndindex(hidden.shape):
        hidden[index] *= GATES[gate](float(opened[index]))
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


def silu(x: float) -> float:
    """x times the logistic function of x."""
    return x / (1 + math.exp(-x))


ACTIVATIONS = {"relu": relu, "gelu": gelu, "gelu_tanh": gelu_tanh}
GATES = {"swiglu": silu, "geglu": gelu, "geglu_tanh": gelu_tanh}


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


def _capped(x: float, soft_cap: float | None) -> float:
    return x if soft_cap is None else soft_cap * math.tanh(x / soft_cap)


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
