"""A solver for the n-grams of a classifier: its linear part, which gradient steps fit less well.

The weight of an n-gram g is based on its log-count ratio

    r_g = ln ((1 + c_g) / sum_h (1 + c_h)) - ln ((1 + d_g) / sum_h (1 + d_h))

with c_g the number of texts of the class that contain g, and d_g that of the other texts. A text
has the features x_g = r_g / root(10 + sum_h r_h^2) for the n-grams g that it contains, with the sum
over all its n-grams h. A support vector machine with a squared hinge is fitted to them (Wang and
Manning, 2012, https://aclanthology.org/P12-2018; here their x is scaled by its length). Trained by
AdamW or SGD, the same weights lose one and a half points: `docs/research/experiments.md`.

Alternatively, n-grams are distilled from another model: they are fitted to its logits z_i of many
texts i, most of them unlabelled:

    min_b,c  sum_i (b + c . x_i - z_i)^2 + d^2 |c|^2
    x_ig = w_g / root(10 + sum_h w_h^2)
    w_g = sign(r_g) root|r_g| (ln n / n_g)^2

with r_g over all these texts, by true labels and pseudo-labels, and n_g the number of the n texts
that contain g. This puts the information of the unlabelled texts into n-gram weights, and the
other model is no longer needed.
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

from train.objectives.classification import balanced_weights
from transformer_jax.functional.ngrams import PRIOR, ngram_rows
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.runtime.progress import ProgressBar
from transformer_jax.text.batching import Batches, bucket_lengths, evaluation_plans

BATCH_TOKENS = 65_536
INVERSE_PENALTY = 1.0
LEAST_TEXTS = 3  # in distillation, n-grams in fewer texts have weight 0
DAMPING = 0.3  # d
LEAST_SQUARES_STEPS = 30


class EvidenceSolver:
    """A solver that fits a model's n-grams to labels or to another model, as texts are added."""

    def __init__(
        self, evidence: NgramEvidence, pad_id: int | None, *, seed: int = 0, balanced: bool = False
    ):
        self.evidence, self.pad_id, self.seed, self.balanced = evidence, pad_id, seed, balanced
        self.holds = csr_matrix((0, 2**evidence.bits), dtype=np.float32)
        self.labels = np.zeros(0, np.int32)
        self.extended_logits = None
        self.seconds = 0.0

    def fit(self, examples: Sequence[np.ndarray], labels: Int[np.ndarray, " n"]) -> None:
        """Add texts, and fit the n-grams to the labels of all texts."""
        self._fit(examples, labels, None)

    def distil(
        self,
        examples: Sequence[np.ndarray],
        labels: Int[np.ndarray, " n"],
        logits: Float[np.ndarray, "N C"],
        extended_logits: Float[np.ndarray, "M C"] | None = None,
    ) -> None:
        """Add texts, and fit the n-grams to another model's `logits` of all texts.

        `extended_logits` also cover the texts that `extend` will add, from a model that has learned
        from their labels too.
        """
        self._fit(examples, labels, logits)
        self.extended_logits = extended_logits

    def extend(self, examples: Sequence[np.ndarray], labels: Int[np.ndarray, " n"]) -> None:
        """Add labelled texts, and fit the n-grams again in the same way as before."""
        self._fit(examples, labels, self.extended_logits)

    def logits(self, examples: Sequence[np.ndarray]) -> Float[np.ndarray, "n C"]:
        """Return the n-grams' logits of each text."""
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
            fit_evidence(
                self.evidence, self.holds, self.labels, seed=self.seed, balanced=self.balanced
            )
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
    balanced: bool = False,
) -> None:
    """Fit the n-gram tables of `evidence` to labels.

    Each class is separated from the others; of two classes, the second from the first. `holds` is
    the result of `ngrams_held` for the texts. With `balanced`, all classes count the same.
    """
    labels = np.asarray(labels)
    weights = balanced_weights(labels, int(labels.max()) + 1)[labels] if balanced else None
    _fill(evidence, lambda label: _of_class(holds, labels == label, seed, weights))


def distil_evidence(
    evidence: NgramEvidence,
    holds: csr_matrix,
    labels: Int[np.ndarray, " n"],
    logits: Float[np.ndarray, "n C"],
) -> None:
    """Fit the n-gram tables of `evidence` to another model's `logits` of the texts.

    `labels`, which may be pseudo-labels, scale the n-grams. `holds` is the result of `ngrams_held`.
    """
    labels = np.asarray(labels)
    logits = logits - logits.mean(axis=1, keepdims=True)
    if evidence.bias.shape[0] == 1:
        # For two classes one column is fitted: the logit of the second minus that of the first.
        logits = 2 * logits
    _fill(evidence, lambda label: _as_told(holds, labels == label, logits[:, label]))


def _fill(evidence: NgramEvidence, column: Callable[[int], dict[str, np.ndarray]]) -> None:
    classes = evidence.bias.shape[0]
    labels = [1] if classes == 1 else range(classes)
    shown = ProgressBar(labels, desc="n-grams", unit="class", leave=False)
    columns = [column(k) for k in shown]
    for name in ("weight", "square", "bias"):
        values = np.stack([column[name] for column in columns], axis=-1)
        getattr(evidence, name)[...] = jnp.asarray(values, jnp.float32)


def ngrams_held(
    examples: Sequence[np.ndarray], pad_id: int | None, longest: int, bits: int
) -> csr_matrix:
    """Return a matrix with 1 where a text contains an n-gram, [n, 2**bits].

    Columns are the hashed rows of the model's own lookup.
    """
    if len(examples) == 0:
        return csr_matrix((0, 2**bits), dtype=np.float32)
    rows_of = jax.jit(ngram_rows, static_argnums=(2, 3))
    lengths = [len(ids) for ids in examples]
    buckets = bucket_lengths(np.array(lengths), max(lengths), 4)
    plans = evaluation_plans(lengths, buckets, max(BATCH_TOKENS, buckets[-1]))
    texts, columns = [], []
    for batch in Batches(plans, examples, None, pad_id):
        rows, there = rows_of(batch.tokens, batch.is_token, longest, bits)
        rows, there = np.asarray(rows), np.asarray(there)
        text = np.broadcast_to(batch.index[:, None, None], there.shape)
        texts.append(text[there])
        columns.append(rows[there])
    texts, columns = np.concatenate(texts), np.concatenate(columns)
    ones = np.ones(len(texts), np.float32)
    held = csr_matrix((ones, (texts, columns)), shape=(len(examples), 2**bits))
    held.data[:] = 1  # csr_matrix has added up repeated n-grams
    return held


def evidence_logits(evidence: NgramEvidence, holds: csr_matrix) -> Float[np.ndarray, "n C"]:
    """Return the n-gram logits of the model from a matrix of `ngrams_held`.

    This takes only seconds, because nothing is padded, hashed or sorted again.
    """
    weight, square, bias = (
        np.asarray(part[...]) for part in (evidence.weight, evidence.square, evidence.bias)
    )
    z = holds @ weight / np.sqrt(PRIOR + holds @ square) + bias
    return np.concatenate([-z / 2, z / 2], axis=1) if z.shape[1] == 1 else z


def _of_class(
    holds: csr_matrix, is_class: np.ndarray, seed: int, weights: np.ndarray | None
) -> dict[str, np.ndarray]:
    ratio = _log_count_ratio(holds, is_class)
    square, scaled = _scaled(holds, ratio)
    if is_class.all() or not is_class.any():  # nothing to separate
        return {"weight": 0 * ratio, "square": square, "bias": np.zeros(())}
    machine = LinearSVC(C=INVERSE_PENALTY, random_state=seed)
    machine.fit(scaled, is_class, sample_weight=weights)
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
    tables = np.zeros((2, len(known)))  # the other n-grams have weight 0
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
