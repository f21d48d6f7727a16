"""Document vectors: a vector for every text, learned to predict which n-grams the text contains.

For each text d, the objective

    J_d = sum_g c_g ln s(a cos(x_d, w_g)) + k m / N sum_n ln s(-a cos(x_d, w_n)),    m = sum_g c_g

is maximized, with x_d the vector of text d, c_g the count of the n-gram g in it, w_g the vector of
that n-gram, N negative n-grams n drawn with probability proportional to their frequency to the
power of 3/4, and s(z) = 1 / (1 + e^-z) (Thongtan and Phienthrakul, 2019,
https://aclanthology.org/P19-2057; k and 3/4 from Mikolov et al., 2013,
https://arxiv.org/abs/1310.4546). n-grams that carry little information about the labels are
subsampled (the same; and Li et al., 2016, https://arxiv.org/abs/1512.08183). Labels are used for
nothing else.

Positive texts come to be close to other positive texts, also by words that no labelled text has. A
linear model of the vectors makes different errors than one of n-grams
(`docs/research/experiments.md`, eighth round).
"""

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from scipy.sparse import csr_matrix
from sklearn.linear_model import LogisticRegression

from train.classifier.ngram_counts import ngram_counts
from train.classifier.recipe import VectorConfig
from train.trainer import checkpoints
from train.trainer.checkpoints import Progress
from train.trainer.signals import Stopped, stop_wish
from transformer_jax.runtime.progress import ProgressBar

CHUNK = 32  # texts per call, visited one after another
BLOCK = 2048  # texts that are sorted by length together
LEAST_LENGTH = 64  # minimum length of a padded list of n-grams; lengths are powers of two
TINY = 1e-20


class Vectors(NamedTuple):
    """The vectors of n-grams and of texts during training."""

    ngrams: Float[Array, "V D"]
    texts: Float[Array, "n+1 D"]  # the last row belongs to the padding of chunks


class TextVectors(NamedTuple):
    """The result of `text_vectors`."""

    vectors: Float[np.ndarray, "n D"]  # one per text, each of length 1
    seconds: float  # total time, including that before an interruption


def text_vectors(
    examples: Sequence[np.ndarray],
    labels: Int[np.ndarray, " labelled"],
    learned: int,
    *,
    unknown: Sequence[int] = (),
    config: VectorConfig | None = None,
    seed: int = 0,
    keep_in: Path | None = None,
    checkpoint_minutes: float = 5.0,
) -> TextVectors:
    """Train the vectors of all texts, given as token ids, of which the first are labelled.

    n-gram vectors are learned from the first `learned` texts. Then the vectors of all texts are
    fitted to these n-gram vectors. n-grams with one of the `unknown` ids have no vector. With a
    folder `keep_in`, checkpoints are written there, and training resumes, with bit-identical
    results, from the newest one of the same texts, labels, config and seed.

    Raises ValueError if no n-gram occurs in enough of the `learned` texts. With `keep_in` it also
    raises Stopped after Ctrl-C or SIGTERM, once everything is saved, and CheckpointError if a
    checkpoint cannot be written.
    """
    began = time.perf_counter()
    config = VectorConfig() if config is None else config
    counts = ngram_counts(examples, learned, config.longest, config.least_texts, unknown)
    kept = shares_kept(counts[: len(labels)], labels, config)
    frequency = np.asarray(counts[:learned].sum(axis=0), np.float64).ravel() ** 0.75
    drawn = np.cumsum(frequency / frequency.sum())
    # The number of texts that each round visits: those to learn from, then all.
    rounds = [learned] * config.epochs + [len(examples)] * config.passes

    def beginning(rows: int, draw: int) -> Array:
        numbers = np.random.default_rng((seed, draw)).random((rows, config.features), np.float32)
        return jnp.asarray(1e-3 * (2 * numbers - 1))

    vectors = Vectors(beginning(counts.shape[1], 1), beginning(len(examples) + 1, 2))
    progress = Progress()
    if keep_in:
        keep_in = keep_in / _digest(config, seed, rounds, counts, kept)
        if loaded := checkpoints.load(keep_in, vectors, warn=ProgressBar.write):
            vectors, progress = loaded
    began -= progress.train_seconds
    kept_step, kept_when = progress.step, time.perf_counter()

    def save() -> None:
        nonlocal kept_step, kept_when
        now = replace(progress, train_seconds=time.perf_counter() - began)
        checkpoints.save(keep_in, vectors, now)
        kept_step, kept_when = progress.step, time.perf_counter()

    def save_if(due: bool) -> None:
        """Save if it is due or a signal came; after a signal, stop."""
        if keep_in and (due or wish.number) and progress.step > kept_step:
            save()
        if keep_in and wish.number:
            raise Stopped(wish.number)

    bar = ProgressBar(
        total=sum(rounds), initial=progress.step, desc="vectors", unit="text", leave=False
    )
    with bar, stop_wish() if keep_in else nullcontext() as wish:
        for epoch in range(progress.epoch, len(rounds)):
            learns, visited = epoch < config.epochs, sum(rounds[:epoch])
            if epoch == config.epochs and progress.step == visited:
                # Start again: vectors of texts visited long ago fit the n-gram vectors of then.
                vectors = vectors._replace(texts=beginning(len(examples) + 1, 2))
            rng = np.random.default_rng((seed, 3 + epoch))
            texts = np.arange(rounds[epoch])
            for chunk in _chunks(counts, texts, kept, drawn, config.negatives, rng):
                number = int((chunk[0] < len(examples)).sum())
                visited += number
                if visited > progress.step:  # else it was visited before the interruption
                    vectors = _visit(vectors, *chunk, config=config, learns=learns)
                    progress = replace(progress, step=visited)
                    bar.update(number)
                save_if(time.perf_counter() - kept_when >= 60 * checkpoint_minutes)
            progress = replace(progress, epoch=epoch + 1)
        save_if(True)
    return TextVectors(np.asarray(_unit(vectors.texts)[0])[:-1], time.perf_counter() - began)


def _digest(
    config: VectorConfig, seed: int, rounds: list[int], counts: csr_matrix, kept: np.ndarray
) -> str:
    """Return a hash of everything that determines the result; only equal runs are resumed."""
    digest = hashlib.sha256(repr((config, seed, rounds, counts.shape)).encode())
    for array in (counts.indptr, counts.indices, counts.data, kept):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def shares_kept(
    counts: csr_matrix, labels: Int[np.ndarray, " n"], config: VectorConfig
) -> Float[np.ndarray, " V"]:
    """Return the fraction of each n-gram's occurrences that is used in training.

    It is the largest |r_g| over the classes, clipped to `least_kept` and 1, with

        r_g = ln ((1 + c_g) / sum_h (1 + c_h)) - ln ((1 + d_g) / sum_h (1 + d_h))

    and c_g the number of texts of a class that contain g, d_g that of the other texts (as in
    `train/classifier/ngram_solver.py`). n-grams in no labelled text have `unlabelled_kept`.
    """
    holds = counts.sign()
    largest = np.zeros(counts.shape[1])
    for label in np.unique(labels):
        sides = (labels == label, labels != label)
        own, other = (1.0 + holds.T @ chosen.astype(np.float64) for chosen in sides)
        ratio = np.log(own / own.sum()) - np.log(other / other.sum())
        largest = np.maximum(largest, np.abs(ratio))
    seen = np.asarray(holds.sum(axis=0)).ravel() > 0
    return np.where(seen, np.clip(largest, config.least_kept, 1.0), config.unlabelled_kept)


def vector_logits(
    vectors: Float[np.ndarray, "n D"],
    labelled: Int[np.ndarray, " k"],
    labels: Int[np.ndarray, " k"],
    classes: int,
) -> Float[np.ndarray, "n C"]:
    """Fit logistic regression to the `labelled` vectors and return the logits of all vectors."""
    if len(np.unique(labels)) == 1:  # only one class to predict
        row = np.where(np.arange(classes) == labels[0], 0.0, -10.0)
        return np.tile(row, (len(vectors), 1)).astype(np.float32)
    machine = LogisticRegression(C=30.0, max_iter=400).fit(vectors[labelled], labels)
    z = machine.decision_function(vectors)
    z = np.stack([-z / 2, z / 2], axis=1) if z.ndim == 1 else z
    logits = np.full((len(vectors), classes), z.min() - 10.0)  # for classes without a text
    logits[:, machine.classes_] = z
    return logits.astype(np.float32)


def _chunks(
    counts: csr_matrix,
    texts: Int[np.ndarray, " k"],
    kept: Float[np.ndarray, " V"],
    drawn: Float[np.ndarray, " V"],
    negatives: int,
    rng: np.random.Generator,
) -> Iterator[tuple[np.ndarray, ...]]:
    """Yield all texts once, in random order: ids, n-grams, their counts and negative n-grams."""
    texts = rng.permutation(texts)
    for begin in range(0, len(texts), BLOCK):
        block = texts[begin : begin + BLOCK]
        held = counts[block]
        held.data = rng.binomial(held.data, kept[held.indices]).astype(np.int32)
        held.eliminate_zeros()
        lengths = np.diff(held.indptr)
        power = np.ceil(np.log2(np.maximum(lengths, LEAST_LENGTH))).astype(int)
        groups = [
            own[i : i + CHUNK]
            for own in (np.flatnonzero(power == p) for p in np.unique(power))
            for i in range(0, len(own), CHUNK)
        ]
        for group in rng.permutation(len(groups)):
            group = groups[group]
            shape = (CHUNK, 2 ** int(power[group[0]]))
            rows, times = np.zeros(shape, np.int32), np.zeros(shape, np.float32)
            for i, text in enumerate(group):
                own = slice(*held.indptr[text : text + 2])
                rows[i, : lengths[text]] = held.indices[own]
                times[i, : lengths[text]] = held.data[own]
            ids = np.full(CHUNK, counts.shape[0], np.int32)
            ids[: len(group)] = block[group]
            against = np.searchsorted(drawn, rng.random((CHUNK, negatives)))
            yield ids, rows, times, np.minimum(against, len(drawn) - 1).astype(np.int32)


@partial(jax.jit, donate_argnums=0, static_argnames=("config", "learns"))
def _visit(
    vectors: Vectors,
    ids: Int[Array, " B"],
    rows: Int[Array, "B L"],
    times: Float[Array, "B L"],
    against: Int[Array, "B N"],
    *,
    config: VectorConfig,
    learns: bool,
) -> Vectors:
    """Update the vectors text by text: each text uses the n-gram vectors that the last one left."""
    a, rate = config.scale, config.learning_rate * config.scale

    def visit(vectors: Vectors, text: tuple[Array, ...]) -> tuple[Vectors, None]:
        d, rows, times, against = text
        W = vectors.ngrams
        (P, P_norm), (N, N_norm) = _unit(W[rows]), _unit(W[against])
        each = config.negative_weight * times.sum() / len(against)

        def slopes(x: Array) -> tuple[Array, ...]:
            u, norm = _unit(x)
            p, n = P @ u, N @ u  # the cosines
            # dJ / d(a cos)
            return u, norm, p, n, times * jax.nn.sigmoid(-a * p), -each * jax.nn.sigmoid(a * n)

        def step(_, x: Array) -> Array:
            u, norm, p, n, up, down = slopes(x)
            # d cos(x, w) / dx = (w / |w| - cos x / |x|) / |x|
            x = x + rate / config.inner_steps * (up @ P + down @ N - (up @ p + down @ n) * u) / norm
            return x / jnp.maximum(1, jnp.linalg.norm(x))

        x = lax.fori_loop(0, config.inner_steps, step, vectors.texts[d])
        if learns:
            u, _, p, n, up, down = slopes(x)
            W = W.at[rows].add(rate * (up[:, None] / P_norm) * (u - p[:, None] * P))
            W = W.at[against].add(rate * (down[:, None] / N_norm) * (u - n[:, None] * N))
        return Vectors(W, vectors.texts.at[d].set(x)), None

    return lax.scan(visit, vectors, (ids, rows, times, against))[0]


def _unit(x: Float[Array, "... D"]) -> tuple[Float[Array, "... D"], Float[Array, "... 1"]]:
    """Return the vectors scaled to length 1, and their lengths before."""
    norm = jnp.sqrt(jnp.sum(x * x, axis=-1, keepdims=True) + TINY)
    return x / norm, norm
