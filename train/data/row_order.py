"""Validation without group ids, where the rows are ordered by subject.

Files often list the texts of one movie, author or thread together, without a column that says so. A
random validation part then shares its subjects with the training part, and rewards memorization.
Texts of one subject share rare words, such as names. Where neighbouring rows share them much more
often than shuffled rows do, the validation part is a few stretches of neighbouring rows. They begin
and end where few rare words are shared, which is where the subject tends to change.

Rows that are sorted by class list the subjects once for each class. These lists are merged by the
rare words that texts of both share."""

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

WORDS = re.compile(r"[A-Z]\w+ [A-Z]\w+|\w+")  # two capitalized words, or one word
RARE = range(2, 21)  # the numbers of texts that have a rare word
LEAST_TEXTS = 200  # in fewer, chance has too large a part
LEAST_EXCESS = 0.1  # of the share of neighbours with a common rare word, over that of shuffled rows
CHAIN = 3  # times as many links in one order as with a shuffled list, where two lists are alike
NEAR = 30  # the rows on each side of a cut whose words are compared
MARGIN = 50  # the most rows by which a cut is moved to where few words are shared
STRETCH, STRETCHES = 200, (3, 10)  # rows of a stretch, about; the least and the most stretches


@dataclass(frozen=True)
class RowOrder:
    """An order of the rows in which neighbours are of one subject."""

    lines: list[np.ndarray]  # the rows of each list of subjects
    links: list[np.ndarray]  # for each place in a line, the words shared by rows before and after

    def draw(self, fraction: float, seed: int) -> np.ndarray:
        """Return about this fraction of the rows: stretches that are spread over each line."""
        random = np.random.default_rng(seed)
        drawn = []
        for line, links in zip(self.lines, self.links, strict=True):
            size = min(max(1, round(fraction * len(line))), len(line) - 1)
            count = min(max(size // STRETCH, STRETCHES[0]), STRETCHES[1], size)
            edges, ends = (
                np.linspace(0, n, count + 1).round().astype(int) for n in (len(line), size)
            )
            for low, high, rows in zip(edges, edges[1:], np.diff(ends), strict=False):
                length = min(rows, high - low)
                start = int(random.integers(low, high - length + 1))
                margin = min(MARGIN, length // 4, (high - low - length) // 4)
                cuts = (_least(links, place, margin) for place in (start, start + length))
                drawn.append(line[slice(*cuts)])
        return np.unique(np.concatenate(drawn))


def subject_order(texts: Sequence[str], labels: np.ndarray) -> RowOrder | None:
    """Return the order of the rows in which subjects follow each other; None if there is none."""
    if len(texts) < LEAST_TEXTS:
        return None
    words = rare_words(texts)
    lines = _lines(labels)
    if not _is_informative(words, lines):
        return None
    merged, *others = sorted(lines, key=len, reverse=True)
    alone = []
    for line in others:
        places = _places(words[merged], words[line])
        if places is None:
            alone.append(line)
        else:
            order = np.argsort(np.concatenate([np.arange(len(merged)), places]), kind="stable")
            merged = np.concatenate([merged, line])[order]
    lines = [merged, *alone]
    return RowOrder(lines, [_links(words[line]) for line in lines])


def rare_words(texts: Sequence[str]) -> "csr_matrix":
    """Return the rare words of each text, [n, words]; two rows' product is their words' weight.

    The weight of a word in df of n texts is log(n / df), and an entry is its square root."""
    from scipy.sparse import csr_matrix  # not where a program only checks its command line

    ids: defaultdict[str, int] = defaultdict()
    ids.default_factory = ids.__len__
    bags = [np.fromiter({ids[word] for word in WORDS.findall(text)}, np.int32) for text in texts]
    columns = np.concatenate(bags)
    rows = np.repeat(np.arange(len(bags)), [len(bag) for bag in bags])
    frequency = np.bincount(columns, minlength=len(ids))
    is_rare = (frequency >= RARE.start) & (frequency < RARE.stop)
    kept = is_rare[columns]
    rows, columns = rows[kept], np.cumsum(is_rare)[columns[kept]] - 1
    weights = np.sqrt(np.log(len(texts) / frequency[is_rare]), dtype=np.float32)
    shape = len(texts), len(weights)
    return csr_matrix((weights[columns], (rows, columns)), shape)


def _lines(labels):
    """Return the rows of each class where rows are sorted by class, else all rows as one line."""
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    if len(starts) > len(np.unique(labels)):
        return [np.arange(len(labels))]
    return np.split(np.arange(len(labels)), starts[1:])


def _share(words, rows):
    """Return the share of neighbours that have a rare word in common."""
    if len(rows) < 2:
        return 0.0
    shared = words[rows[:-1]].multiply(words[rows[1:]]).sum(axis=1)
    return float((np.asarray(shared) > 0).mean())


def _is_informative(words, lines):
    random = np.random.default_rng(0)
    excess = [_share(words, line) - _share(words, random.permutation(line)) for line in lines]
    return np.average(excess, weights=[len(line) for line in lines]) >= LEAST_EXCESS


def _places(words, others):
    """Return the place of each other row among the rows; None if their orders are unlike."""
    shared = (words.sign() @ others.sign().T).tocoo()
    pairs = shared.data > 1  # one word may be chance
    rows, columns = shared.row[pairs], shared.col[pairs]
    order = np.lexsort((columns, rows))
    rows, columns = rows[order], columns[order]
    chain = _longest_chain(columns)
    shuffled = np.random.default_rng(0).permutation(others.shape[0])[columns]
    if len(chain) <= CHAIN * len(_longest_chain(shuffled[np.lexsort((shuffled, rows))])):
        return None
    linked, which = np.unique(columns[chain], return_inverse=True)
    places = np.bincount(which, rows[chain]) / np.bincount(which)
    return np.interp(np.arange(others.shape[0]), linked, places)


def _longest_chain(values):
    """Return the indices of the longest subsequence that does not decrease."""
    lasts, ends, before = [], [], []  # by length: the least last value, and its index
    for i, value in enumerate(values.tolist()):
        length = bisect_right(lasts, value)
        before.append(ends[length - 1] if length else -1)
        lasts[length : length + 1], ends[length : length + 1] = [value], [i]
    chain = ends[-1:]
    while chain and before[chain[-1]] >= 0:
        chain.append(before[chain[-1]])
    return np.array(chain[::-1], int)


def _links(words):
    """Return for each place in a line the weight of words that rows near before and after share."""
    n = words.shape[0]
    places, total = np.arange(n + 1), np.zeros(n + 1)
    for distance in range(1, min(NEAR, n - 1) + 1):
        shared = np.asarray(words[:-distance].multiply(words[distance:]).sum(axis=1)).ravel()
        sums = np.concatenate([[0], np.cumsum(shared)])
        total += sums[np.minimum(places, n - distance)] - sums[np.maximum(places - distance, 0)]
    return total


def _least(links, place, margin):
    """Return the nearest of the places within the margin that have the least links."""
    low = max(0, place - margin)
    nearby = links[low : place + margin + 1]
    least = low + np.flatnonzero(nearby == nearby.min())
    return int(least[np.abs(least - place).argmin()])
