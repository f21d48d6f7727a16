"""What n-grams say of a class, found by a solver: the linear part of a classifier, which gradient steps would not find.

    r_g = ln ((1 + c_g) / sum_h (1 + c_h)) - ln ((1 + d_g) / sum_h (1 + d_h))

with c_g of the texts of the class and d_g of the others holding the n-gram g: its log-count ratio. A text is
x_g = r_g for the n-grams that it holds, over the root of 10 and the sum of r_g^2 over all its n-grams; a support vector machine
with a squared hinge is fitted to that (Wang and Manning, 2012, https://aclanthology.org/P12-2018; what is scaled by the
length is their x). By AdamW or SGD the same weights lose one and a half points: `docs/experiments.md`.
"""

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_matrix, diags, vstack
from sklearn.svm import LinearSVC
from tqdm import tqdm

from transformer_jax.batching import Batches, bucket_lengths, evaluation_plans
from transformer_jax.embeddings import NgramEvidence
from transformer_jax.ngrams import PRIOR, ngram_rows

BATCH_TOKENS = 65_536
INVERSE_PENALTY = 1.0


class EvidenceSolver:
    """Fits the n-grams of a model, once more when there are more texts, and says by them what other texts are."""

    def __init__(self, evidence: NgramEvidence, pad_id: int, *, seed: int = 0):
        self.evidence, self.pad_id, self.seed = evidence, pad_id, seed
        self.holds = csr_matrix((0, 2**evidence.bits), dtype=np.float32)
        self.labels = np.zeros(0, np.int32)
        self.seconds = 0.0

    def fit(self, examples: Sequence[np.ndarray], labels: Int[np.ndarray, " n"]) -> None:
        """To these texts and those of before."""
        begun = time.perf_counter()
        self.holds = vstack([self.holds, self._held(examples)], format="csr")
        self.labels = np.concatenate([self.labels, labels])
        fit_evidence(self.evidence, self.holds, self.labels, seed=self.seed)
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        print(
            f"n-grams     of up to {self.evidence.longest} tokens, fitted to {len(self.labels):,} texts in {seconds:.0f} s"
        )

    def logits(self, examples: Sequence[np.ndarray]) -> Float[np.ndarray, "n C"]:
        """What they say of each text."""
        return evidence_logits(self.evidence, self._held(examples))

    def _held(self, examples: Sequence[np.ndarray]) -> csr_matrix:
        return ngrams_held(examples, self.pad_id, self.evidence.longest, self.evidence.bits)


def fit_evidence(
    evidence: NgramEvidence,
    holds: csr_matrix,
    labels: Int[np.ndarray, " n"],
    *,
    seed: int = 0,
) -> None:
    """Fills the tables of `evidence` with what separates each class from the others, or the second from the first.

    `holds` is what `ngrams_held` makes of the texts.
    """
    labels, classes = np.asarray(labels), evidence.bias.shape[0]
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
    if len(examples) == 0:
        return csr_matrix((0, 2**bits), dtype=np.float32)
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


def evidence_logits(evidence: NgramEvidence, holds: csr_matrix) -> Float[np.ndarray, "n C"]:
    """What the model says of texts, by what they hold; without padding, hashing and sorting anew it takes seconds."""
    weight, square, bias = (
        np.asarray(part[...]) for part in (evidence.weight, evidence.square, evidence.bias)
    )
    z = holds @ weight / np.sqrt(PRIOR + holds @ square) + bias
    return np.concatenate([-z / 2, z / 2], axis=1) if z.shape[1] == 1 else z


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
