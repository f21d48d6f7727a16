"""Worked examples of attention scores: variance, softmax, masks, dropout of weights."""

import jax
import numpy as np

from transformer_jax.attention.masks import causal
from transformer_jax.functional.dropout import dropout
from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.notation import compiled, numbers, project, softmax, tell


def artist_softmax(example: dict) -> list[Step]:
    inputs = example["inputs"]
    scaled = numbers(inputs["scores"]) / inputs["d_k"] ** 0.5
    labels = {"columns": inputs["tokens"]}
    return [
        tell("scores", "as printed", inputs["scores"], "S", **labels),
        tell("scaled", "scores / sqrt(d_k)", scaled, "S", **labels),
        tell("weights", "softmax(scaled)", softmax(scaled), "S", **labels),
    ]


def bank_scaled(example: dict) -> list[Step]:
    inputs = example["inputs"]
    scaled = numbers(inputs["scores"]) / inputs["d_k"] ** 0.5
    labels = {"rows": inputs["tokens"], "columns": inputs["tokens"]}
    return [
        tell("scores", "as printed", inputs["scores"], "T S", **labels),
        tell("scaled", "scores / sqrt(d_k)", scaled, "T S", **labels),
        tell("weights", "softmax(scaled), row by row", softmax(scaled), "T S", **labels),
    ]


def softmax_money(example: dict) -> list[Step]:
    return _softmax_of(example["inputs"]["x"])


def softmax_saturation(example: dict) -> list[Step]:
    return _softmax_of(example["inputs"]["x"])


def softmax_vs_sum(example: dict) -> list[Step]:
    x = numbers(example["inputs"]["x"])
    by_sum, by_softmax = x / x.sum(), softmax(x)
    return [
        tell("x", "as given", x, "S"),
        tell(
            "by_sum", "x / sum(x)", by_sum, "S", note="A negative x would become a negative weight."
        ),
        tell("by_softmax", "exp(x) / sum(exp(x))", by_softmax, "S"),
        tell("largest_by_sum", "max(by_sum)", by_sum.max()),
        tell("largest_by_softmax", "max(by_softmax)", by_softmax.max()),
    ]


def variance_table(example: dict) -> list[Step]:
    """Compute Var(q . k) for independent features of variance 1, by formula and by sampling."""
    d_k = example["inputs"]["d_k"]
    divisors = np.array([1.0, d_k, d_k**0.5, d_k**2])
    names = ("1", "d_k", "sqrt(d_k)", "d_k^2")
    query, key = np.random.default_rng(0).standard_normal((2, 100_000, d_k))
    scores = (query * key).sum(axis=-1)
    measured = [(scores / divisor).var() for divisor in divisors]
    return [
        tell("divisors", "what the scores are divided by", divisors, "divisor", columns=names),
        tell(
            "variance",
            "Var(q . k / c) = d_k / c^2",
            d_k / divisors**2,
            "divisor",
            columns=names,
            note="A product of two features has variance 1, a sum of d_k products d_k; dividing by "
            "c divides the variance by c^2.",
        ),
        tell("measured", "of 100,000 pairs drawn with seed 0", measured, "divisor", columns=names),
    ]


def causal_weights(example: dict) -> list[Step]:
    scaled = numbers(example["inputs"]["scaled"])
    T = len(scaled)
    mask = np.asarray(causal().to_array(T)[0, 0])
    leaked = np.where(mask, softmax(scaled), 0)
    return [
        tell("scaled", "as printed", scaled, "T S"),
        tell("mask", "key <= query", mask, "T S"),
        tell("weights", "softmax over the keys that the mask lets through",
             softmax(scaled, mask), "T S"),
        tell(
            "masked_afterwards",
            "softmax over all keys, then zeros where the mask hides",
            leaked,
            "T S",
            note="Future keys are still in the denominator, so the rows do not sum to 1.",
        ),
        tell("row_sums", "sum of each row of masked_afterwards", leaked.sum(axis=-1), "T"),
        tell(
            "renormalised",
            "masked_afterwards / row_sums",
            leaked / leaked.sum(axis=-1, keepdims=True),
            "T S",
            note="Dividing by the row sums removes the future keys and gives the weights above.",
        ),
    ]  # fmt: skip


def neg_inf_mask(example: dict) -> list[Step]:
    a, b = (numbers(example["inputs"][name]) for name in "ab")
    return [
        tell("scores_a", "the first query: -inf masks the keys after it", a, "S"),
        tell("a", "softmax(scores_a)", softmax(a, np.isfinite(a)), "S"),
        tell("scores_b", "the second query", b, "S"),
        tell("b", "softmax(scores_b)", softmax(b, np.isfinite(b)), "S"),
    ]


def dropout_scale(example: dict) -> list[Step]:
    inputs = example["inputs"]
    w, p = numbers(inputs["w"]), inputs["p"]
    drop = compiled(lambda w, seed: dropout(w, p, jax.random.key(seed)))
    # The first seed that drops the same entries as the example; one seed in 2^4 does.
    seed = next(s for s in range(1000) if ((drop(w, s) > 0) == np.array(inputs["keep"])).all())
    y = drop(w, seed)
    return [
        tell("w", "weights of one query", w, "S"),
        tell("keep", f"drawn with seed {seed}", y > 0, "S"),
        tell("y", "w / (1 - p) where kept, 0 elsewhere", y, "S"),
        tell(
            "row_sum",
            "sum(y)",
            y.sum(),
            note="It is 1 here by chance; in general only on average.",
        ),
        tell("expected", "(1 - p) w / (1 - p) + p 0", (1 - p) * w / (1 - p), "S"),
    ]


def numpy_multiply(example: dict) -> list[Step]:
    a, b = (numbers(example["inputs"][name]) for name in "ab")
    return [
        tell("a", "as given", a, "H"),
        tell("b", "as given", b, "H"),
        tell("multiply", "a_i b_i, as np.multiply does", np.multiply(a, b), "H"),
        tell("matmul", "sum_i a_i b_i", project(a, b[:, None])[0]),
    ]


def _softmax_of(x) -> list[Step]:
    x = numbers(x)
    shifted = x - x.max()
    return [
        tell("x", "as given", x, "S"),
        tell(
            "shifted",
            "x - max(x)",
            shifted,
            "S",
            note="This avoids overflow and does not change the weights.",
        ),
        tell("exponentials", "exp(shifted)", np.exp(shifted), "S"),
        tell("weights", "exponentials / their sum", softmax(x), "S"),
    ]


WORKED = {
    function.__name__: function
    for function in (
        artist_softmax,
        bank_scaled,
        softmax_money,
        softmax_saturation,
        softmax_vs_sum,
        variance_table,
        causal_weights,
        neg_inf_mask,
        dropout_scale,
        numpy_multiply,
    )
}
