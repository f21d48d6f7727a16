"""The linear baseline: TF-IDF of words and bigrams, then logistic regression.

The weight of a term t in a text d, one of n, is `(1 + ln tf(t, d)) * (1 + ln((1 + n) / (1 +
df(t))))`; each text is scaled to length 1 (Salton & Buckley 1988,
https://doi.org/10.1016/0306-4573(88)90021-0). The classifier is `softmax(W x + b)` with an L2
penalty on W. It sees which words and bigrams occur, but not where, so a transformer can beat it
only by using longer-range word order. It is meant to be a strong baseline: the settings below were
chosen on IMDb reviews of movies that were not trained on.
"""

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from sklearn.dummy import DummyClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from train.data.dataset import Dataset, Split
from train.evaluation.metrics import compared

NAME = "TF-IDF (words and bigrams) + logistic regression"
LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)  # IMDb reviews keep this one tag
# Punctuation is included, because "?" and "!" carry opinion, and one-letter words, as "I" may too.
TOKEN = r"\w+|[^\w\s]"
INVERSE_PENALTY = 10.0
FEW = 1000  # with at least this many texts, a term must occur in two of them to be kept


@dataclass(frozen=True)
class Baseline:
    """The linear model's predictions for the test texts, and the cost of fitting it."""

    name: str
    probabilities: Float[np.ndarray, "n C"]
    seconds: float  # of vectorizing the training texts and fitting; prediction is not included
    features: int


def linear_baseline(
    train_texts: Sequence[str],
    train_labels: Sequence[int] | np.ndarray,
    test_texts: Sequence[str],
    *,
    classes: int | None = None,
    seed: int = 0,
    balanced: bool = False,
) -> Baseline:
    """Fit the linear model on the training texts and predict class probabilities of the test texts.

    `classes` is the number of classes, needed if the training labels lack the last ones. The
    solver is deterministic, so `seed` has no effect; it is passed on for solvers that use it. With
    `balanced`, all classes count the same.
    """
    start = time.perf_counter()
    labels = np.asarray(train_labels)
    vectorizer = TfidfVectorizer(
        preprocessor=_clean,
        token_pattern=TOKEN,
        ngram_range=(1, 2),
        sublinear_tf=True,
        min_df=2 if len(train_texts) >= FEW else 1,
    )
    try:
        x = vectorizer.fit_transform(train_texts)
    except ValueError:  # no term is left, e.g. all texts are empty: only class counts are learned
        x = None
    if x is None or len(np.unique(labels)) == 1:
        model = DummyClassifier(strategy="prior").fit(np.zeros((len(labels), 1)), labels)
        known = model.predict_proba(np.zeros((len(test_texts), 1)))
        seconds = time.perf_counter() - start
    else:
        model = LogisticRegression(
            C=INVERSE_PENALTY,
            max_iter=1000,
            random_state=seed,
            class_weight="balanced" if balanced else None,
        )
        model.fit(x, labels)
        seconds = time.perf_counter() - start
        known = model.predict_proba(vectorizer.transform(test_texts))
    probabilities = np.zeros((len(test_texts), classes or int(labels.max()) + 1))
    probabilities[:, model.classes_] = known  # a class without training texts keeps probability 0
    return Baseline(NAME, probabilities, seconds, 0 if x is None else x.shape[1])


def _clean(text: str) -> str:
    return LINE_BREAK.sub(" ", text).lower()


def compare_with_baseline(
    data: Dataset,
    train_split: Split,
    validation: Split,
    probabilities: Float[np.ndarray, "n C"],
    *,
    balanced: bool = False,
) -> dict:
    """Fit the linear baseline to all labelled texts and return its report entries.

    `probabilities` are those of our model for the test texts, with which it is compared. With
    `balanced`, all classes count the same for the baseline.
    """
    labels = np.concatenate([train_split.labels, validation.labels])
    linear = linear_baseline(
        train_split.texts + validation.texts,
        labels,
        data.test.texts,
        classes=len(data.classes),
        balanced=balanced,
    )
    found = compared(probabilities, linear.probabilities, data.test.labels, data.classes)
    facts = {"name": linear.name, "features": linear.features, "seconds": linear.seconds}
    return {"mcnemar": found.pop("mcnemar"), "baseline": facts | found}
