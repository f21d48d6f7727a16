"""Worked examples of attention: queries, keys and values, scores, weights, output, heads."""

import numpy as np

from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.examples import EXAMPLES
from transformer_jax.walkthrough.worked.notation import attend, numbers, project, tell


def artist_qkv(example: dict) -> list[Step]:
    query, key, value = _project(example["inputs"])
    tokens = example["inputs"]["tokens"]
    painted, artist = tokens.index("painted"), tokens.index("artist")
    return [
        tell("X", "one row a token", example["inputs"]["X"], "T D", tokens),
        tell("Q", "X W_Q", query, "T H", tokens),
        tell("K", "X W_K", key, "S H", tokens),
        tell("V", "X W_V", value, "S H", tokens),
        tell("q_painted", "the row of Q for 'painted'", query[painted], "H"),
        tell("k_artist", "the row of K for 'artist'", key[artist], "H"),
        tell("v_artist", "the row of V for 'artist'", value[artist], "H"),
    ]


def artist_attention(example: dict) -> list[Step]:
    # It continues with the numbers of another example.
    inputs = EXAMPLES["artist_qkv"]["inputs"]
    query, key, value = _project(inputs)
    tokens = inputs["tokens"]
    painted = query[tokens.index("painted")][None]
    output, weights = attend(painted, key, value)
    scores = project(painted, key.T)
    return [
        tell("q", "the row of X W_Q for 'painted'", painted[0], "H"),
        tell("scores", "q K^T", scores[0], "S", columns=tokens),
        tell("scaled", "q K^T / sqrt(H)", scores[0] / 2, "S", columns=tokens, note="sqrt(4) is 2."),
        tell("weights", "softmax(q K^T / sqrt(H))", weights[0], "S", columns=tokens),
        tell("output", "weights V", output[0], "H"),
    ]


def cat_sat(example: dict) -> list[Step]:
    x = numbers(example["inputs"]["X"])
    tokens = example["inputs"]["tokens"]
    return [
        tell("X", "one row a token; Q = K = V = X", x, "T D", tokens),
        *_attention(x, x, x, tokens),
    ]


def bread_table(example: dict) -> list[Step]:
    query, key, value = _project(example["inputs"])
    tokens = example["inputs"]["tokens"]
    d_k = key.shape[1]
    return [
        tell("Q", "X W_Q", query, "T H", tokens),
        tell("K", "X W_K", key, "S H", tokens),
        tell("V", "X W_V", value, "S H", tokens),
        tell("d_k", "features of a key", d_k, note="W_K has three columns."),
        tell("sqrt_d_k", "sqrt(d_k)", d_k**0.5),
        *_attention(query, key, value, tokens),
    ]


def bright_qkv(example: dict) -> list[Step]:
    query, key, value = _project(example["inputs"])
    tokens = example["inputs"]["tokens"]
    return [
        tell("X", "one row a token", example["inputs"]["X"], "T D", tokens),
        tell("Q", "X W_Q", query, "T H", tokens),
        tell("K", "X W_K", key, "S H", tokens),
        tell("V", "X W_V", value, "S H", tokens),
        *_attention(query, key, value, tokens, output_name="context"),
    ]


def kid_smiles(example: dict) -> list[Step]:
    """Check whether any weights can give the printed numbers, and whether these are consistent."""
    inputs, printed = example["inputs"], example["printed"]
    tokens, heads = inputs["tokens"], inputs["heads"]
    x = numbers(inputs["X"])
    weights, context = numbers(printed["weights_head1"]), numbers(printed["context_head1"])
    merged = numbers(printed["final"]).reshape(len(x), heads, -1)  # tokens, heads, features
    # The first two rows of X sum to seven times the third, hence so do those of X W, whatever W is.
    # The log of a softmax is the scores up to a constant per row, which centring removes.
    scores = np.log(weights)
    scores = scores - scores.mean(axis=-1, keepdims=True)
    values = np.linalg.solve(weights, context)

    def excess(rows):
        return rows[0] + rows[1] - 7 * rows[2]

    agrees = np.allclose(merged[:, 0], context, atol=2e-3)  # to twice the last printed place
    follows = np.allclose(excess(scores), 0, atol=0.1) and np.allclose(excess(values), 0, atol=0.1)
    return [
        tell("X", "one row a token", x, "T D", tokens),
        tell("excess_x", "x_The + x_kid - 7 x_smiles", excess(x), "D"),
        tell("per_head", "weights V of head 1, as printed before merging", context, "T H", tokens),
        tell("context_head1", "the first half of the printed merged rows", merged[:, 0], "T H",
             tokens,
             note="Merging only rearranges rows, so these should equal per_head; "
             "only the first does."),
        tell("scores", "log(printed weights), centred in each row", scores, "T S", tokens, tokens),
        tell("excess_scores", "scores_The + scores_kid - 7 scores_smiles", excess(scores), "S",
             note="Q = X W_Q, so this is 0 for every W_Q and W_K; it is not."),
        tell("values", "printed weights^-1 per_head", values, "S H", tokens),
        tell("excess_values", "v_The + v_kid - 7 v_smiles", excess(values), "H",
             note="V = X W_V, so this is 0 for every W_V; it is not."),
        tell("consistent", "per_head = context_head1, and both sums 0", agrees and follows),
    ]  # fmt: skip


def _project(inputs: dict) -> list[np.ndarray]:
    """Compute Q, K and V as X times three matrices."""
    x = numbers(inputs["X"])
    return [project(x, numbers(inputs[name])) for name in ("W_Q", "W_K", "W_V")]


def _attention(query, key, value, tokens, output_name="output") -> list[Step]:
    output, weights = attend(query, key, value)
    scores = project(query, key.T)
    H = query.shape[1]
    labels = {"rows": tokens, "columns": tokens}
    return [
        tell("scores", "Q K^T", scores, "T S", **labels),
        tell("scaled", f"Q K^T / sqrt({H})", scores / H**0.5, "T S", **labels),
        tell("weights", "softmax(scaled), row by row", weights, "T S", **labels),
        tell(output_name, "weights V", output, "T H", tokens),
    ]


WORKED = {
    function.__name__: function
    for function in (
        artist_qkv,
        artist_attention,
        cat_sat,
        bread_table,
        bright_qkv,
        kid_smiles,
    )
}
