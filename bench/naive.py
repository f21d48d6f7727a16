"""Loop implementations of attention, normalization and feed-forward networks, used as references.

Every number is a Python float (float64) and every sum is an explicit loop. What the library
computes in one einsum can therefore be read here step by step, and the library is tested against
these functions. They are slow on purpose. The exception is `numpy_attention`, which has no loops:
it is what a good NumPy program would do.

Axes: B batch, T queries, S keys, N query heads, K key/value heads, H features per head, D
embedding, E embedding of the keys, A alignment, F feed-forward, M output. Values may have a
different number of features than keys.
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
    """Compute scaled dot-product attention, one query at a time.

        softmax(scale Q K^T + bias) V

    query [B, T, N, H], key [B, S, K, H], value [B, S, K, H'] -> [B, T, N, H']. `scale` is 1/sqrt(H)
    by default. `mask` (True = attend) and `bias` broadcast to [B, N, T, S]. A query that sees no
    key gets zeros. Consecutive groups of N/K query heads share one key head. A soft cap c replaces
    a scaled product x by c tanh(x / c). Dropout keeps the weights where `kept` [B, N, T, S] is True
    and multiplies them by 1 / (1 - dropout_rate).

    With `return_weights` the output is followed by the attention weights [B, N, T, S] after
    dropout. With `return_logsumexp` it is followed by the logarithm of the softmax's denominator
    [B, T, N], which is -inf for a query that sees no key.
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
    """Compute multi-head attention, one head at a time.

        Concat(head_1, ..., head_N) W^O

    inputs_q [B, T, D], inputs_kv [B, S, E], query_kernel [D, N, H], key_kernel [E, K, H],
    value_kernel [E, K, H'], out_kernel [N, H', M] -> [B, T, M]. Multiplying the concatenated heads
    by W^O is the same as multiplying each head by its own rows of W^O and adding the results, and
    that is what this loop does. The options are those of `attention`.
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
    """Compute additive attention; return the output [B, T, M] and the alignment matrix [B, T, S].

        softmax_s(w . tanh(W_q q_t + W_k k_s + b)) V

    query [B, T, D], key [B, S, E], value [B, S, M]; the kernels W_q [D, A], W_k [E, A] and w [A];
    `mask` broadcasts to [B, 1, T, S]. The alignment matrix holds the attention weights. Bahdanau et
    al., 2015, https://arxiv.org/abs/1409.0473, appendix A.1.2.
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
    """Return the softmax of the logits: exp(x) / sum of exp(x); [] for no logits.

    Subtracting the largest logit first changes no result; it only prevents overflow.
    """
    if not logits:
        return []
    peak = max(logits)
    exponentials = [math.exp(logit - peak) for logit in logits]
    total = sum(exponentials)
    return [exponential / total for exponential in exponentials]


def log_sum_exp(logits: list[float]) -> float:
    """Return the logarithm of the softmax's denominator; -inf for an empty list."""
    if not logits:
        return -math.inf
    peak = max(logits)
    return peak + math.log(sum(math.exp(logit - peak) for logit in logits))


def mask_before_softmax(logits: list[float], mask: list[bool]) -> list[float]:
    """Set masked logits to -inf, then apply softmax: the correct way to mask.

    exp(-inf) is 0, so masked entries get no weight. Return zeros where everything is masked.
    """
    if not any(mask):
        return [0.0] * len(logits)
    hidden = [logit if seen else -math.inf for logit, seen in zip(logits, mask, strict=True)]
    return softmax(hidden)


def mask_after_softmax(logits: list[float], mask: list[bool]) -> list[float]:
    """Apply softmax, then set masked weights to 0: a common mistake.

    The masked logits still count in the denominator of all other weights.
    """
    weights = softmax(logits)
    return [weight if seen else 0.0 for weight, seen in zip(weights, mask, strict=True)]


def zero_and_renormalise(logits: list[float], mask: list[bool]) -> list[float]:
    """Zero masked weights after the softmax and divide the others by their sum.

    This repairs `mask_after_softmax`. Return zeros where no weight remains: all entries are masked,
    or one masked logit has taken all the weight.
    """
    weights = mask_after_softmax(logits, mask)
    total = sum(weights)
    return [weight / total if total else 0.0 for weight in weights]


def length(a: list[float]) -> float:
    """Return the Euclidean length of a vector: sqrt(sum of a_i^2)."""
    return math.sqrt(_dot(a, a))


def cosine(a: list[float], b: list[float]) -> float:
    """Return the cosine of the angle between a and b.

    It is computed from the three sides of their triangle (law of cosines).
    """
    opposite = length([a[i] - b[i] for i in range(len(a))])
    return (length(a) ** 2 + length(b) ** 2 - opposite**2) / (2 * length(a) * length(b))


def dot_by_angle(a: list[float], b: list[float]) -> float:
    """Return a . b, computed as length x length x cosine.

    The equation shows why vectors of similar direction, and long vectors, get high scores.
    """
    if not length(a) or not length(b):
        return 0.0
    return length(a) * length(b) * cosine(a, b)


def layer_norm(
    x: np.ndarray, scale: np.ndarray, bias: np.ndarray | None = None, *, epsilon: float = 1e-5
) -> np.ndarray:
    """Apply layer normalization, one row at a time.

        scale (x - mean) / sqrt(variance + epsilon) + bias

    x [..., D], scale [D] and bias [D] -> [..., D].
    """
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
    """Apply RMS normalization, one row at a time.

        scale x / sqrt(mean(x^2) + epsilon)

    x [..., D] and scale [D] -> [..., D].
    """
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
    """Apply batch normalization to x [..., D], one feature at a time.

        scale (x - mean) / sqrt(variance + epsilon) + bias

    `statistics` is (mean [D], variance [D]); by default they are computed from x itself.
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
    """Return the mean [D] and biased variance [D] of each feature over all rows of x [..., D]."""
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
    """Return the running mean and variance of batch normalization after one more batch x.

        momentum * running + (1 - momentum) * statistics of x

    The variance of x is made unbiased first.
    """
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
    """Apply a feed-forward network to x [..., D], one row at a time.

        f(x W_1 + b_1) W_2 + b_2

    The kernels W_1 and W_2 are [D, F] and [F, M].
    """
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
    """Apply a gated feed-forward network to x [..., D], one row at a time.

        (f(x W_g + b_g) * (x W_1 + b_1)) W_2 + b_2

    The kernels W_g and W_1 are [D, F], W_2 is [F, M].
    """
    hidden, opened = _linear(x, in_kernel, in_bias), _linear(x, gate_kernel, gate_bias)
    for index in np.ndindex(hidden.shape):
        hidden[index] *= GATES[gate](float(opened[index]))
    return _linear(hidden, out_kernel, out_bias)


def relu(x: float) -> float:
    """Return max(x, 0)."""
    return max(x, 0.0)


def gelu(x: float) -> float:
    """Return x times the probability that a standard normal variable is below x."""
    return x * (1 + math.erf(x / math.sqrt(2))) / 2


def gelu_tanh(x: float) -> float:
    """Return the tanh approximation of `gelu` that GPT-2 uses."""
    return x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def silu(x: float) -> float:
    """Return x times the logistic function of x."""
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
    """Compute `attention` for finite inputs as two batched matrix products.

    float32 inputs stay float32.
    """
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
    weights -= np.where(np.isfinite(peak), peak, 0)  # a query that sees no key has no peak
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
    """Return x W + b; x [..., D], kernel [D, F] -> [..., F]."""
    columns = kernel.T.tolist()
    output = np.zeros((*x.shape[:-1], len(columns)))
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].tolist()
        for f in range(len(columns)):
            output[(*index, f)] = _dot(row, columns[f]) + (0.0 if bias is None else bias[f])
    return output


def _row(bias: np.ndarray | None, n: int) -> np.ndarray | None:
    return None if bias is None else bias[n]
