"""What is said of a classifier from its probabilities: accuracy, calibration, and whether two
models differ.
"""

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
    """All that is said of the test texts; the predicted class is the most probable one.

    - `accuracy_interval`, Wilson's 95 % interval (1927), for k right of n and p = k/n, z = 1.96:
      `(p + z^2/2n ± z sqrt(p(1-p)/n + z^2/4n^2)) / (1 + z^2/n)`; inside [0, 1] also at p = 0 and 1.
    - `calibration_error`, with the confidence of a text = its highest probability, sorted into 15
      bins `(m-1)/15 < confidence <= m/15`: `sum_m |B_m|/n * |accuracy(B_m) - confidence(B_m)|`
      (Guo et al. 2017, equation 3, https://arxiv.org/abs/1706.04599).
    - `log_loss`: the mean of `-ln p[label]`, p no smaller than float64's epsilon.
    - `per_class`: precision, recall and F1, 0 where there is nothing to divide by; `support` is how
      many texts are of the class, so that a class that never occurs can be told from a failure.
    """
    probabilities = np.asarray(probabilities, np.float64)
    labels = np.asarray(labels)
    _check(probabilities, labels, classes)
    count, each = len(labels), np.arange(len(classes))
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    correct = predicted == labels
    interval = binomtest(int(correct.sum()), count).proportion_ci(0.95, method="wilson")
    bins = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    gaps = np.bincount(bins, weights=correct - confidence, minlength=BINS)  # |B_m| (acc - conf)
    of_label = probabilities[np.arange(count), labels]
    columns = precision_recall_fscore_support(labels, predicted, labels=each, zero_division=0.0)
    names = ("precision", "recall", "f1", "support")
    return {
        "texts": count,
        "correct": int(correct.sum()),
        "accuracy": float(correct.mean()),
        "accuracy_interval": [float(interval.low), float(interval.high)],
        "calibration_error": float(np.abs(gaps).sum() / count),
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
    """Return the accuracy of another model, or of a part alone, and McNemar's test against it.

    Its b are the texts that the whole alone has right, its c those that the other alone has right.
    """
    found = score(part, labels, classes)
    return {
        "test_accuracy": found["accuracy"],
        "test_accuracy_interval": found["accuracy_interval"],
        "mcnemar": mcnemar(*(model.argmax(axis=1) == labels for model in (whole, part))),
    }


def bleu(texts: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Return BLEU as sacrebleu computes it, with 13a tokens and mixed case.

    Post, 2018, https://arxiv.org/abs/1804.08771.
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
    """Whether two models differ on the same texts (McNemar 1947, in the exact form).

    Only the texts that one model alone has right speak: b of them a's, c of them b's. If the models
    were equally good, each would be a fair coin, so `p_value` is the two-sided binomial one of b
    heads in b + c tosses; 1 where there are none.
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
