"""What n-grams say of a class, found by a solver: the linear part of a classifier, which gradient
steps would not find.

    r_g = ln ((1 + c_g) / sum_h (1 + c_h)) - ln ((1 + d_g) / sum_h (1 + d_h))

with c_g of the texts of the class and d_g of the others holding the n-gram g: its log-count ratio.
A text is x_g = r_g for the n-grams that it holds, over the root of 10 and the sum of r_g^2 over all
its n-grams; a support vector machine with a squared hinge is fitted to that (Wang and Manning,
2012, https://aclanthology.org/P12-2018; what is scaled by the length is their x). By AdamW or SGD
the same weights lose one and a half points: `docs/research/experiments.md`.

Or n-grams learn to say what another model says of many texts, most of them without a label, z_i of
text i:

    min_b,c  sum_i (b + c . x_i - z_i)^2 + d^2 |c|^2
    x_ig = w_g / root(10 + sum_h w_h^2)
    w_g = sign(r_g) root|r_g| (ln n / n_g)^2

with r_g of all these texts, by true labels and guessed ones, and n_g of the n texts holding g. So
what only the unlabelled texts tell becomes weights of n-grams, and the other model is not needed
any more.
"""

import time
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int
from scipy.sparse import csr_matrix, diags, vstack
from scipy.sparse.linalg import lsqr
from sklearn.svm import LinearSVC
from tqdm import tqdm

from transformer_jax.functional.ngrams import PRIOR, ngram_rows
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.text.batching import Batches, bucket_lengths, evaluation_plans

BATCH_TOKENS = 65_536
INVERSE_PENALTY = 1.0
LEAST_TEXTS = 3  # of an n-gram that learns from another model
DAMPING = 0.3  # d
LEAST_SQUARES_STEPS = 30


class EvidenceSolver:
    """A fit of a model's n-grams, to labels or to another model, repeated as texts are added."""

    def __init__(self, evidence: NgramEvidence, pad_id: int, *, seed: int = 0):
        self.evidence, self.pad_id, self.seed = evidence, pad_id, seed
        self.holds = csr_matrix((0, 2**evidence.bits), dtype=np.float32)
        self.labels = np.zeros(0, np.int32)
        self.extended_logits = None
        self.seconds = 0.0

    def fit(self, examples: Sequence[np.ndarray], labels: Int[np.ndarray, " n"]) -> None:
        """Add texts, and fit the n-grams to the labels of all."""
        self._fit(examples, labels, None)

    def distil(
        self,
        examples: Sequence[np.ndarray],
        labels: Int[np.ndarray, " n"],
        logits: Float[np.ndarray, "N C"],
        extended_logits: Float[np.ndarray, "M C"] | None = None,
    ) -> None:
        """Add texts, and fit the n-grams to what another model says of all.

        `extended_logits` are of these and of those of `extend`, where it has learned from the
        labels of those too.
        """
        self._fit(examples, labels, logits)
        self.extended_logits = extended_logits

    def extend(self, examples: Sequence[np.ndarray], labels: Int[np.ndarray, " n"]) -> None:
        """Add labelled texts, and fit the n-grams again as they were fitted before."""
        self._fit(examples, labels, self.extended_logits)

    def logits(self, examples: Sequence[np.ndarray]) -> Float[np.ndarray, "n C"]:
        """Return what the n-grams say of each text."""
        return evidence_logits(self.evidence, self._held(examples))

    def _fit(
        self,
        examples: Sequence[np.ndarray],
        labels: Int[np.ndarray, " n"],
        logits: Float[np.ndarray, "N C"] | None,
    ) -> None:
        begun = time.perf_counter()
        self.holds = vstack([self.holds, self._held(examples)], format="csr")
        self.labels = np.concatenate([self.labels, labels])
        if logits is None:
            fit_evidence(self.evidence, self.holds, self.labels, seed=self.seed)
        else:
            distil_evidence(self.evidence, self.holds, self.labels, logits)
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        print(
            f"n-grams     of up to {self.evidence.longest} tokens, fitted to {len(self.labels):,} "
            f"texts in {seconds:.0f} s"
        )

    def _held(self, examples: Sequence[np.ndarray]) -> csr_matrix:
        return ngrams_held(examples, self.pad_id, self.evidence.longest, self.evidence.bits)


def fit_evidence(
    evidence: NgramEvidence,
    holds: csr_matrix,
    labels: Int[np.ndarray, " n"],
    *,
    seed: int = 0,
) -> None:
    """Fills the tables of `evidence` with what separates each class from the others, or the second
    from the first.

    `holds` is what `ngrams_held` makes of the texts.
    """
    labels = np.asarray(labels)
    _fill(evidence, lambda label: _of_class(holds, labels == label, seed))


def distil_evidence(
    evidence: NgramEvidence,
    holds: csr_matrix,
    labels: Int[np.ndarray, " n"],
    logits: Float[np.ndarray, "n C"],
) -> None:
    """Fills the tables of `evidence` with what makes n-grams say of texts what `logits` say of
    them.

    `labels` may be guessed; they scale the n-grams.
    """
    labels = np.asarray(labels)
    logits = logits - logits.mean(axis=1, keepdims=True)
    if evidence.bias.shape[0] == 1:
        logits = (
            2 * logits
        )  # of two classes one column is fitted: what the second is above the first
    _fill(evidence, lambda label: _as_told(holds, labels == label, logits[:, label]))


def _fill(evidence: NgramEvidence, column: Callable[[int], dict[str, np.ndarray]]) -> None:
    classes = evidence.bias.shape[0]
    labels = [1] if classes == 1 else range(classes)
    columns = [column(k) for k in tqdm(labels, desc="n-grams", unit="class", leave=False)]
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
    """What the model says of texts, by what they hold; without padding, hashing and sorting anew it
    takes seconds.
    """
    weight, square, bias = (
        np.asarray(part[...]) for part in (evidence.weight, evidence.square, evidence.bias)
    )
    z = holds @ weight / np.sqrt(PRIOR + holds @ square) + bias
    return np.concatenate([-z / 2, z / 2], axis=1) if z.shape[1] == 1 else z


def _of_class(holds: csr_matrix, is_class: np.ndarray, seed: int) -> dict[str, np.ndarray]:
    ratio = _log_count_ratio(holds, is_class)
    square, scaled = _scaled(holds, ratio)
    if is_class.all() or not is_class.any():  # nothing to tell apart
        return {"weight": 0 * ratio, "square": square, "bias": np.zeros(())}
    machine = LinearSVC(C=INVERSE_PENALTY, random_state=seed).fit(scaled, is_class)
    return {"weight": ratio * machine.coef_[0], "square": square, "bias": machine.intercept_[0]}


def _as_told(
    holds: csr_matrix, is_class: np.ndarray, logits: Float[np.ndarray, " n"]
) -> dict[str, np.ndarray]:
    texts = np.asarray(holds.sum(axis=0)).ravel()
    known = texts >= LEAST_TEXTS
    holds, texts = holds[:, known], texts[known]
    ratio = _log_count_ratio(holds, is_class)
    w = (np.sign(ratio) * np.sqrt(np.abs(ratio)) * np.log(len(logits) / texts) ** 2).astype(
        np.float32
    )
    square, scaled = _scaled(holds, w)
    bias = logits.mean()
    found = lsqr(scaled, logits - bias, damp=DAMPING, iter_lim=LEAST_SQUARES_STEPS)[0]
    tables = np.zeros((2, len(known)))  # the other n-grams weigh nothing
    tables[:, known] = w * found, square
    return {"weight": tables[0], "square": tables[1], "bias": bias}


def _scaled(holds: csr_matrix, weights: np.ndarray) -> tuple[np.ndarray, csr_matrix]:
    square = weights**2
    return square, diags(1 / np.sqrt(PRIOR + holds @ square)) @ (holds @ diags(weights))


def _log_count_ratio(holds: csr_matrix, is_class: np.ndarray) -> np.ndarray:
    return (_log_shares(holds, is_class) - _log_shares(holds, ~is_class)).astype(np.float32)


def _log_shares(holds: csr_matrix, chosen: np.ndarray) -> np.ndarray:
    count = 1 + holds.T @ chosen.astype(np.float64)
    return np.log(count / count.sum())
