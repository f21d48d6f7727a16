"""The built-in sample: generated reviews in which only word order tells the label.

It stands in for IMDb where no network is. A sample whose label could be read off the vocabulary
would make a bag of words look as good as a transformer, so every text has a twin with exactly the
same words and punctuation and the opposite label: what differs is which of two opinions the review
ends up holding.

    The plot was dull from start to finish, but the acting was superb all evening.    positive
    The plot was superb from start to finish, but the acting was dull all evening.    negative

Both twins are always in the same split, so counting words is right in one of the two: 50 % by
construction. Both opinions stand in the same surroundings (a form of "to be" before, a neutral
phrase from one shared list after), so a pair of neighbouring words says nothing either: what
decides (but, although, not, whose view it is) is further away. The test split uses pairs of one
praising and one blaming adjective that training never shows together.
"""

import random
import re
from collections.abc import Mapping

import numpy as np

from train.data.dataset import SENTIMENT, DataError, Dataset, Split
from train.data.sample_grammar import (
    BLAME,
    FAR_FIRST,
    FAR_SECOND,
    GRAMMAR,
    NEAR_FIRST,
    NEAR_SECOND,
    PLURAL,
    PRAISE,
    SINGULAR,
)

WORDS = (15, 60)  # the least and most words of a review
NEAR_SHARE = 0.3  # of frames whose cue stands near the adjective: the rest is learnt from these
FIRST_SHARE = 0.5  # of frames whose first opinion is the verdict: "the last word counts" fails
CLOSING_SHARE = 0.15  # of reviews with a neutral last sentence; more of them slow learning
SLOT = re.compile(r"\{(\w+)\}|\[([^\]]+)\]")
FIRST, SECOND = "<first>", "<second>"  # where the two opinions go, once all else is written


def sample(seed: int = 0, train: int = 8000, test: int = 2000) -> Dataset:
    """`train` and `test` reviews (even numbers), the same ones for the same seed."""
    for name, size in (("train", train), ("test", test)):
        if size < 2 or size % 2:
            raise DataError(f"sample: {name} must be an even number of texts (twins), got {size}")
    seen: set[str] = set()
    return Dataset(
        name="sample",
        source=f"the built-in sample: generated reviews, seed {seed}, not IMDb "
        "(train/data/sample_reviews.py)",
        train=_split(random.Random(f"sample {seed} train"), train, False, seen),
        test=_split(random.Random(f"sample {seed} test"), test, True, seen),
        unsupervised=[],
        classes=SENTIMENT,
        notes=(
            "every text has a twin of the same words and the opposite label: "
            "counting words is right in half of them",
        ),
    )


def held_out(praise: str, blame: str) -> bool:
    """Whether this pair of adjectives belongs to the test split: one in five of all pairs, such
    that every adjective still meets four fifths of its opposites in training."""
    return (PRAISE.index(praise) + BLAME.index(blame)) % 5 == 0


def _split(rng: random.Random, size: int, test: bool, seen: set[str]) -> Split:
    """`size` reviews as twins, in random order; the pair is the group, so no later split parts
    twins.
    """
    rows: list[tuple[str, int, str]] = []
    while len(rows) < size:
        negative, positive = _twins(rng, test)
        if positive in seen or not WORDS[0] <= len(positive.split()) <= WORDS[1]:
            continue
        seen.add(positive)
        pair = f"pair {len(rows) // 2}"
        rows += [(negative, 0, pair), (positive, 1, pair)]
    rng.shuffle(rows)
    texts, labels, groups = zip(*rows, strict=True)
    return Split(list(texts), np.array(labels, np.int32), list(groups), unit="pair of twins")


def _twins(rng: random.Random, test: bool) -> tuple[str, str]:
    """A negative and a positive review that differ only in where the two opinions stand."""
    frame, first_decides = _frame(rng)
    praise, blame = _opinions(rng, test)
    praise_first = frame.replace(FIRST, praise).replace(SECOND, blame)
    blame_first = frame.replace(FIRST, blame).replace(SECOND, praise)
    negative, positive = (
        (blame_first, praise_first) if first_decides else (praise_first, blame_first)
    )
    if rng.random() < CLOSING_SHARE:
        closing = " " + _capital(_write("{closing}", rng, {}))
        return negative + closing, positive + closing
    return negative, positive


def _frame(rng: random.Random) -> tuple[str, bool]:
    """A sentence with two open places for opinions, and whether the first is the verdict."""
    near, first_decides = rng.random() < NEAR_SHARE, rng.random() < FIRST_SHARE
    seconds, firsts = (NEAR_SECOND, NEAR_FIRST) if near else (FAR_SECOND, FAR_FIRST)
    frame = rng.choice(firsts if first_decides else seconds)
    aspects = rng.sample([(a, "{was}") for a in SINGULAR] + [(a, "{were}") for a in PLURAL], 2)
    a, b = (f"the {aspect} {verb}" for aspect, verb in aspects)
    return _capital(_write(frame, rng, {"a": a, "b": b, "x": FIRST, "y": SECOND})), first_decides


def _opinions(rng: random.Random, test: bool) -> tuple[str, str]:
    """A praising and a blaming phrase; every pair of their adjectives is on this split's side."""
    while True:
        praise = rng.sample(PRAISE, 2 if rng.random() < 0.4 else 1)
        blame = rng.sample(BLAME, 2 if rng.random() < 0.4 else 1)
        if all(held_out(p, b) == test for p in praise for b in blame):
            return " and ".join(praise), " and ".join(blame)


def _write(text: str, rng: random.Random, given: Mapping[str, str]) -> str:
    """Replace each {name} by `given` or an entry of the grammar, each [a|b] by one of its
    alternatives, until none is left."""

    def choose(match: re.Match[str]) -> str:
        name, alternatives = match.groups()
        if alternatives:
            return rng.choice(alternatives.split("|"))
        return given[name] if name in given else rng.choice(GRAMMAR[name])

    while SLOT.search(text):
        text = SLOT.sub(choose, text)
    return text


def _capital(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]
