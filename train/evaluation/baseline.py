"""The linear model that stands beside ours: TF-IDF of words and bigrams, then logistic regression.

A term t of a text d, one of n, weighs `(1 + ln tf(t, d)) * (1 + ln((1 + n) / (1 + df(t))))`, each
text scaled to length 1 (Salton & Buckley 1988, https://doi.org/10.1016/0306-4573(88)90021-0); the
classifier is `softmax(W x + b)` with an L2 penalty on W. It sees which words and pairs of
neighbours occur, not where: what a transformer gains over it comes from the order of words beyond
that. It is meant to be hard to beat: the settings below were chosen on IMDb reviews of movies not
trained on.
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
# "?" and "!" carry opinion, and so may "I".
TOKEN = r"\w+|[^\w\s]"  # one-letter words and each mark of punctuation too
INVERSE_PENALTY = 10.0
FEW = 1000  # from this many texts on, a term must stand in two of them to be kept


@dataclass(frozen=True)
class Baseline:
    """What the linear model says of the test texts, and what it took to learn that."""

    name: str
    probabilities: Float[np.ndarray, "n C"]
    seconds: float  # reading the training texts and fitting; predicting is not counted
    features: int


def linear_baseline(
    train_texts: Sequence[str],
    train_labels: Sequence[int] | np.ndarray,
    test_texts: Sequence[str],
    *,
    classes: int | None = None,
    seed: int = 0,
) -> Baseline:
    """Fit on the training texts and give each test text the probability of each class.

    `classes` is how many there are, where the training labels may lack the last ones. The solver
    draws nothing at random, so `seed` changes no number; it is handed on for solvers that do.
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
    except ValueError:  # no term is left (all texts empty, say): only class counts can be learned
        x = None
    if x is None or len(np.unique(labels)) == 1:
        model = DummyClassifier(strategy="prior").fit(np.zeros((len(labels), 1)), labels)
        known = model.predict_proba(np.zeros((len(test_texts), 1)))
        seconds = time.perf_counter() - start
    else:
        model = LogisticRegression(C=INVERSE_PENALTY, max_iter=1000, random_state=seed)
        model.fit(x, labels)
        seconds = time.perf_counter() - start
        known = model.predict_proba(vectorizer.transform(test_texts))
    probabilities = np.zeros((len(test_texts), classes or int(labels.max()) + 1))
    probabilities[:, model.classes_] = known  # a class without training texts keeps probability 0
    return Baseline(NAME, probabilities, seconds, 0 if x is None else x.shape[1])


def _clean(text: str) -> str:
    return LINE_BREAK.sub(" ", text).lower()


def compare_with_baseline(
    data: Dataset, train_split: Split, validation: Split, probabilities: Float[np.ndarray, "n C"]
) -> dict:
    """Return what the report says of a linear model of all labelled texts, beside ours."""
    labels = np.concatenate([train_split.labels, validation.labels])
    linear = linear_baseline(
        train_split.texts + validation.texts,
        labels,
        data.test.texts,
        classes=len(data.classes),
    )
    found = compared(probabilities, linear.probabilities, data.test.labels, data.classes)
    facts = {"name": linear.name, "features": linear.features, "seconds": linear.seconds}
    return {"mcnemar": found.pop("mcnemar"), "baseline": facts | found}
