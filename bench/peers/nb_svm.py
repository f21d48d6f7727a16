"""The n-grams of the default recipe on their own: the best linear model here, as a contender.

Wang and Manning, 2012, https://aclanthology.org/P12-2018: naive Bayes log-count ratios, weighted by
a support vector machine.
"""

import time
from collections.abc import Sequence

import numpy as np
from scipy.special import softmax

from train.classifier.ngram_solver import evidence_logits, fit_evidence, ngrams_held
from train.evaluation.baseline import Baseline
from train.recipes.imdb import FAST
from transformer_jax.models.ngram_evidence import NgramEvidence
from transformer_jax.text.tokenizer import train_tokenizer

NAME = "n-grams of up to three words, naive Bayes weights + SVM"


def nb_svm(
    train_texts: Sequence[str],
    train_labels: np.ndarray,
    test_texts: Sequence[str],
    *,
    classes: int,
    seed: int = 0,
) -> Baseline:
    """Fit the n-grams of the default recipe; the signature is that of `linear_baseline`.

    See `train.evaluation.baseline.linear_baseline`. An SVM has no probabilities, so the softmax of
    its margins at temperature one is used.
    """
    model = FAST.model
    begun = time.perf_counter()
    tokenizer = train_tokenizer(FAST.tokenizer, train_texts)

    def held(texts):
        encoded = tokenizer.encode(texts, model.max_length, FAST.truncate)
        return ngrams_held(encoded, tokenizer.pad_id, model.ngrams, model.ngram_bits)

    evidence = NgramEvidence(classes, longest=model.ngrams, bits=model.ngram_bits)
    fit_evidence(evidence, held(train_texts), train_labels, seed=seed)
    seconds = time.perf_counter() - begun
    probabilities = softmax(evidence_logits(evidence, held(test_texts)), axis=1)
    return Baseline(NAME, probabilities, seconds, 2**model.ngram_bits)
