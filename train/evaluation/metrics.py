"""Metrics: accuracy and calibration of a classifier, McNemar's test of two, and BLEU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.stats import binomtest
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

BINS = 15  # of the calibration error, as in the paper


def score(
    probabilities: Float[np.ndarray, "n C"], labels: Int[np.ndarray, " n"], classes: Sequence[str]
) -> dict[str, Any]:
    """Return accuracy, calibration, log loss and per-class scores of predicted probabilities.

    The predicted class is the most probable one.

    - `accuracy_interval`: Wilson's 95 % confidence interval (1927), with k of n correct, p = k/n
      and z = 1.96: `(p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`. It lies in [0, 1]
      also at p = 0 and 1.
    - `calibration_error`: the expected calibration error,
      `sum_m |B_m|/n * |accuracy(B_m) - confidence(B_m)|` (Guo et al. 2017, equation 3,
      https://arxiv.org/abs/1706.04599). The confidence of a text is its highest probability; there
      are 15 bins `(m-1)/15 < confidence <= m/15`. `calibration_bins` has the number of texts, the
      mean confidence and the accuracy of each bin that has a text.
    - `log_loss`: the mean of `-ln p[label]`, with p clipped below at float64's epsilon.
    - `per_class`: precision, recall and F1, which are 0 if their denominator is 0. `support` is
      the number of texts of the class; 0 means that the class does not occur.

    Raises ValueError for probabilities of the wrong shape, rows that do not sum to 1, and labels
    out of range.
    """
    probabilities = np.asarray(probabilities, np.float64)
    labels = np.asarray(labels)
    _check(probabilities, labels, classes)
    count, each = len(labels), np.arange(len(classes))
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    correct = predicted == labels
    interval = binomtest(int(correct.sum()), count).proportion_ci(0.95, method="wilson")
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    sums = [np.bincount(bins, weights, minlength=BINS) for weights in (None, confidence, correct)]
    gaps = sums[2] - sums[1]  # |B_m| (accuracy - confidence)
    of_label = probabilities[np.arange(count), labels]
    columns = precision_recall_fscore_support(labels, predicted, labels=each, zero_division=0.0)
    names = ("precision", "recall", "f1", "support")
    return {
        "texts": count,
        "correct": int(correct.sum()),
        "accuracy": float(correct.mean()),
        "accuracy_interval": [float(interval.low), float(interval.high)],
        "calibration_error": float(np.abs(gaps).sum() / count),
        "calibration_bins": [
            {"texts": int(texts), "confidence": sure / texts, "accuracy": right / texts}
            for texts, sure, right in zip(*sums, strict=True)
            if texts
        ],
        "mean_confidence": float(confidence.mean()),
        "log_loss": float(-np.log(np.maximum(of_label, np.finfo(np.float64).eps)).mean()),
        "per_class": {
            name: dict(zip(names, (x.item() for x in row), strict=True))
            for name, row in zip(classes, zip(*columns, strict=True), strict=True)
        },
        "classes": list(classes),
        "confusion_matrix": confusion_matrix(labels, predicted, labels=each).tolist(),
        "confusion_matrix_axes": ["true class (rows)", "predicted class (columns)"],
    }


def compared(
    whole: Float[np.ndarray, "n C"],
    part: Float[np.ndarray, "n C"],
    labels: Int[np.ndarray, " n"],
    classes: Sequence[str],
) -> dict[str, Any]:
    """Return the accuracy of `part`, another model or a part alone, and McNemar's test against it.

    In the test, b counts the texts that only `whole` has right, and c those that only `part` has.
    """
    found = score(part, labels, classes)
    return {
        "test_accuracy": found["accuracy"],
        "test_accuracy_interval": found["accuracy_interval"],
        "mcnemar": mcnemar(*(model.argmax(axis=1) == labels for model in (whole, part))),
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU as sacrebleu computes it, with 13a tokenization and case-sensitive.

    `exact` is the fraction of texts that equal their reference. Source: Post, 2018,
    https://arxiv.org/abs/1804.08771.
    """
    import sacrebleu

    metric = sacrebleu.metrics.BLEU()
    exact = [one.strip() == other.strip() for one, other in zip(texts, references, strict=True)]
    return {
        "bleu": metric.corpus_score(texts, [references]).score,
        "bleu_signature": str(metric.get_signature()),
        "exact": float(np.mean(exact)),
    }


def mcnemar(correct_a: Bool[np.ndarray, " n"], correct_b: Bool[np.ndarray, " n"]) -> dict[str, Any]:
    """Compare two models on the same texts by McNemar's test (1947, exact form).

    Only the texts that exactly one model has right count: `b` of them model a, `c` of them model
    b. If the models were equally good, either would be equally likely, so `p_value` is that of a
    two-sided binomial test of b heads in b + c fair tosses; 1 if b + c is 0. Raises ValueError if
    the arrays differ in shape.
    """
    a, b = np.asarray(correct_a, bool), np.asarray(correct_b, bool)
    if a.shape != b.shape:
        raise ValueError(
            f"mcnemar: both models must be judged on the same texts, got {a.shape} and {b.shape}"
        )
    only_a, only_b = int((a & ~b).sum()), int((b & ~a).sum())
    p_value = binomtest(only_a, only_a + only_b).pvalue if only_a + only_b else 1.0
    return {"b": only_a, "c": only_b, "p_value": float(p_value)}


def _check(probabilities: np.ndarray, labels: np.ndarray, classes: Sequence[str]) -> None:
    if not len(labels) or probabilities.shape != (len(labels), len(classes)):
        raise ValueError(
            f"score: probabilities must have the shape (texts, classes) = "
            f"({len(labels)}, {len(classes)}), at least one text; got "
            f"{probabilities.shape}"
        )
    if not np.allclose(probabilities.sum(axis=1), 1, atol=1e-2):  # NaN is not close either
        raise ValueError(
            "score: each row of probabilities must sum to 1 (softmax of the logits); "
            "if it holds NaN, training diverged: lower the learning rate"
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"score: labels must lie in 0..{len(classes) - 1}, one for each of "
            f"{list(classes)}; got {labels.min()}..{labels.max()}"
        )
