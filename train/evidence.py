"""What n-grams say of a class, found by a solver: the linear part of a classifier, which gradient steps would not find.

    r_g = ln ((1 + c_g) / sum_h (1 + c_h)) - ln ((1 + d_g) / sum_h (1 + d_h))

with c_g of the texts of the class and d_g of the others holding the n-gram g: its log-count ratio. A text is
x_g = r_g for the n-grams that it holds, over the root of 10 and the sum of r_g^2 over all its n-grams; a support vector machine
with a squared hinge is fitted to that (Wang and Manning, 2012, https://aclanthology.org/P12-2018; what is scaled by the
length is their x). By AdamW or SGD the same weights lose one and a half points: `docs/experiments.md`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int
from scipy.sparse import csr_matrix, diags
from sklearn.svm import LinearSVC
from tqdm import tqdm

from transformer_jax.batching import Batches, bucket_lengths, evaluation_plans
from transformer_jax.embeddings import NgramEvidence
from transformer_jax.ngrams import PRIOR, ngram_rows

BATCH_TOKENS = 65_536
INVERSE_PENALTY = 1.0


def fit_evidence(
    evidence: NgramEvidence,
    examples: Sequence[np.ndarray],
    labels: Int[np.ndarray, " n"],
    pad_id: int,
    *,
    seed: int = 0,
) -> None:
    """Fills the tables of `evidence` with what separates each class from the others, or the second from the first."""
    labels, classes = np.asarray(labels), evidence.bias.shape[0]
    holds = ngrams_held(examples, pad_id, evidence.longest, evidence.bits)
    columns = [
        _of_class(holds, labels == label, seed)
        for label in tqdm(
            [1] if classes == 1 else range(classes), desc="n-grams", unit="class", leave=False
        )
    ]
    for name in ("weight", "square", "bias"):
        values = np.stack([column[name] for column in columns], axis=-1)
        getattr(evidence, name)[...] = jnp.asarray(values, jnp.float32)


def ngrams_held(examples: Sequence[np.ndarray], pad_id: int, longest: int, bits: int) -> csr_matrix:
    """1 where a text holds an n-gram, [n, 2**bits]: by the very rows that the model looks up."""
    rows_of = jax.jit(ngram_rows, static_argnums=(2, 3))
    lengths = [len(ids) for ids in examples]
    buckets = bucket_lengths(np.array(lengths), max(lengths), 4)
    plans = evaluation_plans(lengths, buckets, max(BATCH_TOKENS, buckets[-1]))
    texts, columns = [], []
    for batch in Batches(plans, examples, None, pad_id):
        rows, there = rows_of(batch.tokens, jnp.asarray(batch.tokens != pad_id), longest, bits)
        rows, there = np.asarray(rows), np.asarray(there)
        text = np.broadcast_to(batch.index[:, None, None], there.shape)
        texts.append(text[there])
        columns.append(rows[there])
    texts, columns = np.concatenate(texts), np.concatenate(columns)
    ones = np.ones(len(texts), np.float32)
    held = csr_matrix((ones, (texts, columns)), shape=(len(examples), 2**bits))
    held.data[:] = 1  # it added up those that stand in a text more than once
    return held


def _of_class(holds: csr_matrix, is_class: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    ratio = (_log_shares(holds, is_class) - _log_shares(holds, ~is_class)).astype(np.float32)
    square = ratio**2
    scaled = diags(1 / np.sqrt(PRIOR + holds @ square)) @ (holds @ diags(ratio))
    if is_class.all() or not is_class.any():  # nothing to tell apart
        return {"weight": 0 * ratio, "square": square, "bias": np.zeros(())}
    machine = LinearSVC(C=INVERSE_PENALTY, random_state=seed).fit(scaled, is_class)
    return {"weight": ratio * machine.coef_[0], "square": square, "bias": machine.intercept_[0]}


def _log_shares(holds: csr_matrix, chosen: np.ndarray) -> np.ndarray:
    count = 1 + holds.T @ chosen.astype(np.float64)
    return np.log(count / count.sum())
