"""The built-in sample: synthetic reviews labelled by word order alone.

It replaces IMDb if there is no network. If the vocabulary determined the label, a bag of words
would do as well as a transformer. So every text has a twin with exactly the same words and
punctuation and the opposite label; they differ in which of two opinions is the verdict.

    The plot was dull from start to finish, but the acting was superb all evening.    positive
    The plot was superb from start to finish, but the acting was dull all evening.    negative

Both twins are always in the same split, so counting words is right for one of the two: 50 % by
construction. Both opinions have the same neighbours (a form of "to be" before, a neutral phrase
from one shared list after), so pairs of neighbouring words carry no information either: the cue
(but, although, not, whose view it is) is further away. The test split uses pairs of one praising
and one blaming adjective that never occur together in training.
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

WORDS = (15, 60)  # minimum and maximum number of words of a review
NEAR_SHARE = 0.3  # of frames whose cue is near the adjective, from which a model learns the rest
FIRST_SHARE = 0.5  # of frames whose first opinion is the verdict, so that position is no cue
CLOSING_SHARE = 0.15  # of reviews with a neutral last sentence; more of them slow down learning
SLOT = re.compile(r"\{(\w+)\}|\[([^\]]+)\]")
FIRST, SECOND = "<first>", "<second>"  # placeholders of the two opinions, which are filled in last


def sample(seed: int = 0, train: int = 8000, test: int = 2000) -> Dataset:
    """Generate a data set of `train` and `test` reviews; the seed determines all of them.

    Raises DataError unless both numbers are even and at least 2, because texts come as twins.
    """
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
    """Return whether this pair of adjectives is reserved for the test split.

    One in five of all pairs is, so that every adjective still occurs with four fifths of its
    opposites in training."""
    return (PRAISE.index(praise) + BLAME.index(blame)) % 5 == 0


def _split(rng: random.Random, size: int, test: bool, seen: set[str]) -> Split:
    """Generate `size` reviews as twins, in random order."""
    # The group of a review is its pair of twins, so that no later split separates them.
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
    """Generate a negative and a positive review that differ only in the order of two opinions."""
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
    """Draw a sentence with placeholders for two opinions, and whether the first is the verdict."""
    near, first_decides = rng.random() < NEAR_SHARE, rng.random() < FIRST_SHARE
    seconds, firsts = (NEAR_SECOND, NEAR_FIRST) if near else (FAR_SECOND, FAR_FIRST)
    frame = rng.choice(firsts if first_decides else seconds)
    aspects = rng.sample([(a, "{was}") for a in SINGULAR] + [(a, "{were}") for a in PLURAL], 2)
    a, b = (f"the {aspect} {verb}" for aspect, verb in aspects)
    return _capital(_write(frame, rng, {"a": a, "b": b, "x": FIRST, "y": SECOND})), first_decides


def _opinions(rng: random.Random, test: bool) -> tuple[str, str]:
    """Draw a praising and a blaming phrase whose pairs of adjectives all belong to this split."""
    while True:
        praise = rng.sample(PRAISE, 2 if rng.random() < 0.4 else 1)
        blame = rng.sample(BLAME, 2 if rng.random() < 0.4 else 1)
        if all(held_out(p, b) == test for p in praise for b in blame):
            return " and ".join(praise), " and ".join(blame)


def _write(text: str, rng: random.Random, given: Mapping[str, str]) -> str:
    """Expand every {name}, from `given` or the grammar, and every [a|b], until none is left."""

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
