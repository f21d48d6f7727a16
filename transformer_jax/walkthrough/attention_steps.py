"""The steps of attention for one text, array by array, in a small random model or a trained one.

All arrays are computed by the library: projections by `linear`, weights by `attention_weights`, the
weighted sum of values by `dot_product_attention`, and the last step by `multi_head_attention` with
the same parameters.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from transformer_jax.attention.dot_product import attention_weights, dot_product_attention
from transformer_jax.attention.mask_rule import as_mask
from transformer_jax.attention.masks import causal
from transformer_jax.attention.multi_head import multi_head_attention
from transformer_jax.attention.rule import rendered
from transformer_jax.functional.linear import linear
from transformer_jax.functional.positions import lookup, sinusoidal_positions
from transformer_jax.walkthrough.step import Step

Parameters = Mapping[str, Array | np.ndarray]
Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class WordModel:
    """A token embedding table and the kernels of one attention layer."""

    table: Float[np.ndarray, "V D"]
    kernels: Parameters  # query_kernel, key_kernel, value_kernel [D, N, H], out_kernel [N, H, D]


def word_model(vocab_size: int, embed_dim: int, num_heads: int, seed: int) -> WordModel:
    """Create a model with random parameters.

    All values are normally distributed. The kernels are divided by sqrt(D), so that the attention
    weights are neither uniform nor concentrated on one key.
    """
    D, N, H = embed_dim, num_heads, embed_dim // num_heads
    random = np.random.default_rng(seed)
    shapes = {"query": (D, N, H), "key": (D, N, H), "value": (D, N, H), "out": (N, H, D)}
    kernels = {
        f"{kind}_kernel": random.standard_normal(shape, np.float32) / np.float32(D**0.5)
        for kind, shape in shapes.items()
    }
    return WordModel(random.standard_normal((vocab_size, D), np.float32), kernels)


def word_steps(
    model: WordModel,
    ids: Sequence[int],
    labels: Sequence[str],
    *,
    head: int = 0,
    is_causal: bool = False,
) -> list[Step]:
    """Compute the steps from token ids to the attention output: embeddings, positions, attention.

    `ids` are rows of `model.table`, and `labels` are their words.
    """
    rows, labels = np.asarray(ids, np.int32), tuple(labels)
    token, position, x, one_hot = map(np.asarray, _embed(model.table, rows))
    steps = [
        Step(
            "ids",
            "vocabulary[word]",
            rows[None],
            "1 T",
            columns=labels,
            note="The id of a word is the index of its row in the token table. "
            f"The table has V = {len(model.table)} rows, five of them for special tokens.",
        ),
        Step(
            "E",
            "table[ids]",
            token,
            "T D",
            labels,
            note="The embedding: a word has the same row of the table at every position. "
            "Looking up a row equals multiplying a one-hot vector by the table "
            f"(largest difference here: {np.abs(one_hot - token).max():.1g}).",
        ),
        Step(
            "P",
            "sin, cos(position / 10000^(2i/D))",
            position,
            "T D",
            labels,
            note="The position encoding depends on the position only. "
            "Without it, attention could not distinguish orders of the same words.",
        ),
        Step("X", "E + P", x, "T D", labels, note="The input of attention: word plus position."),
    ]
    return steps + attention_steps(x, model.kernels, labels, head=head, is_causal=is_causal)


def attention_steps(
    x: Float[np.ndarray, "T D"],
    parameters: Parameters,
    labels: Sequence[str],
    *,
    head: int = 0,
    is_causal: bool = False,
    name: str = "X",
) -> list[Step]:
    """Compute the steps of attention: one head from `x` to its weighted sum, then the output.

    `parameters` are the arguments of `multi_head_attention` by name: four kernels and, if there are
    any, biases.
    """
    labels = tuple(labels)
    arrays = _attend(x, parameters, is_causal, head)
    a = {key: np.asarray(array) for key, array in arrays.items()}
    return [
        *_projection_steps(a, parameters, labels, head, name),
        *_weight_steps(a, labels, is_causal),
        *_output_steps(a, parameters, labels, head),
    ]


def _projection_steps(
    a: Arrays, parameters: Parameters, labels: tuple[str, ...], head: int, name: str
) -> Iterator[Step]:
    """Yield the kernels of one head, each followed by the queries, keys or values."""
    N, H = parameters["query_kernel"].shape[1:]
    for letter, kind, says in (
        ("Q", "query", "what each token looks for"),
        ("K", "key", "what each token is matched by"),
        ("V", "value", "what each token contributes when it is attended to"),
    ):
        bias = f" + b_{letter}" if f"{kind}_bias" in parameters else ""
        yield Step(f"W_{letter}", f"{kind} kernel of head {head}", a[f"{kind}_kernel"], "D H")
        yield Step(
            letter,
            f"{name} W_{letter}{bias}",
            a[kind],
            "T H",
            labels,
            note=f"Head {head} of {N}: {says}, in H = {H} features.",
        )


def _weight_steps(a: Arrays, labels: tuple[str, ...], is_causal: bool) -> Iterator[Step]:
    """Yield the steps from the scores of one head to its weights."""

    def step(name: str, equation: str, note: str) -> Step:
        return Step(name, equation, a[name], "T S", labels, labels, note)

    H = a["query"].shape[1]
    yield step(
        "scores",
        "Q K^T",
        "Rows are queries, columns are keys. A dot product is large if both point the same way.",
    )
    yield step(
        "scaled",
        "scores / sqrt(H)",
        f"Divided by sqrt({H}) = {H**0.5:.3f}: the variance of a sum of H products grows with H, "
        "and softmax of large scores saturates: one weight is 1 and the gradients vanish.",
    )
    mask = "causal: key not after query" if is_causal else "none: every key is visible"
    yield step("mask", mask, "1 = the query may attend to the key.")
    if is_causal:
        yield step(
            "masked",
            "scaled where mask, else -∞",
            "The mask is applied before the softmax, so that a masked key has weight e^-∞ = 0.",
        )
    yield step(
        "weights",
        f"softmax({'masked' if is_causal else 'scaled'})",
        "exp(x) / sum of exp(x) over the row: every row is a distribution and sums to 1.",
    )


def _output_steps(
    a: Arrays, parameters: Parameters, labels: tuple[str, ...], head: int
) -> Iterator[Step]:
    """Yield the steps from the weights of one head to the output of all heads."""
    T, N, H = a["heads"].shape
    yield Step(
        "blend",
        "weights V",
        a["blend"],
        "T H",
        labels,
        note=f"Each row is a weighted mean of the rows of V: the output of head {head}.",
    )
    yield Step(
        "heads",
        "concat(blend of every head)",
        a["heads"].reshape(T, -1),
        "T NH",
        labels,
        note=f"The outputs of all {N} heads, concatenated: N H = {N * H} columns.",
    )
    yield Step("W_O", "output kernel, its rows those columns", a["out_kernel"], "NH D")
    yield Step(
        "output",
        f"heads W_O{' + b_O' if 'out_bias' in parameters else ''}",
        a["output"],
        "T D",
        labels,
        note="The output projection mixes the heads. It is multi_head_attention's result.",
    )


def context_step(
    model: WordModel,
    here: tuple[Sequence[int], Sequence[str]],
    there: tuple[Sequence[int], Sequence[str]],
    **options,
) -> Step | None:
    """Compute the distance between the vectors of each word that is in both of two texts.

    The vectors are compared before and after attention. A text is a pair of its ids and its words.
    Returns None if the texts share no word. `options` are those of `word_steps`.
    """
    arrays = ("E", "X", "output")
    first = {id: i for i, id in reversed(list(enumerate(here[0])))}  # first position of each word
    other = {id: i for i, id in reversed(list(enumerate(there[0])))}
    shared = [id for id in first if id in other]
    if not shared:
        return None
    a, b = (
        {step.name: step.array for step in word_steps(model, *text, **options)}
        for text in (here, there)
    )
    distances = [
        [np.linalg.norm(a[name][first[id]] - b[name][other[id]]) for name in arrays]
        for id in shared
    ]
    return Step(
        "distance",
        f"|vector in this text - vector in '{' '.join(there[1])}'|",
        np.array(distances),
        "word array",
        tuple(here[1][first[id]] for id in shared),
        arrays,
        "The table has one vector for each word, so E is 0. X differs if the positions differ. The "
        "output differs because the neighbours differ: a word in two contexts has two vectors.",
    )


@jax.jit
def _embed(table, ids):
    token = lookup(table, ids)
    position = sinusoidal_positions(jnp.arange(len(ids)), table.shape[1]).astype(token.dtype)
    one_hot = jax.nn.one_hot(ids, len(table), dtype=table.dtype)
    return token, position, token + position, jnp.matmul(one_hot, table, precision="highest")


@jax.jit(static_argnames="is_causal")
def _attend(x, parameters, is_causal, head):
    """Compute every array of one layer. `head` may be traced."""
    mask = causal() if is_causal else None
    x = x[None]
    q, k, v = (
        linear(x, parameters[f"{kind}_kernel"], parameters.get(f"{kind}_bias"))
        for kind in ("query", "key", "value")
    )
    N, K = q.shape[2], k.shape[2]
    shared = head // (N // K)  # with grouped queries, several heads share a key head
    scores = q[0, :, head] @ k[0, :, shared].T
    scaled = scores * q.shape[3] ** -0.5
    seen = rendered(as_mask(mask), len(scores), len(scores))
    seen = jnp.ones_like(scores, bool) if seen is None else seen[0, 0]
    heads = dot_product_attention(q, k, v, mask=mask)
    return {
        "query_kernel": parameters["query_kernel"][:, head],
        "key_kernel": parameters["key_kernel"][:, shared],
        "value_kernel": parameters["value_kernel"][:, shared],
        "out_kernel": parameters["out_kernel"].reshape(-1, parameters["out_kernel"].shape[2]),
        "query": q[0, :, head],
        "key": k[0, :, shared],
        "value": v[0, :, shared],
        "scores": scores,
        "scaled": scaled,
        "mask": seen,
        "masked": jnp.where(seen, scaled, -jnp.inf),
        "weights": attention_weights(q, k, mask=mask)[0, head],
        "blend": heads[0, :, head],
        "heads": heads[0],
        "output": multi_head_attention(x, x, mask=mask, **parameters)[0],
    }
