"""Values of tokens, summed over the words of the original text, with its case and spaces kept."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int32
from tokenizers import Regex, pre_tokenizers

from transformer_jax.text.encoding import Located
from transformer_jax.text.tokenizer import WORD

LINE_BREAK = r"(?:(?i:<br\s*/?>)\s*)*(?i:<br\s*/?>)"
_breaks = pre_tokenizers.Split(Regex(LINE_BREAK), "removed", invert=True)
_words = pre_tokenizers.Split(Regex(f"{LINE_BREAK}|{WORD}"), "removed", invert=True)


@dataclass(frozen=True)
class Piece:
    """A part of a text. All pieces joined are the text, with a note in place of a cut part."""

    text: str
    value: float | None = None  # the sum of the values of its tokens; None if it has no token
    is_unknown: bool = False  # whether one of its tokens is the unknown token


@dataclass(frozen=True)
class _Token:
    index: int
    start: int
    end: int


def pieces_of(
    located: Located, values: Float[np.ndarray, " T"], unknown_id: int | None
) -> tuple[list[Piece], list[int]]:
    """Split a text into pieces with the summed values of their tokens.

    Also returns the indices of the tokens that belong to no piece, such as special tokens. A piece
    is a word, a punctuation mark or a line break, as matched by `tokenizer.WORD`, or several of
    them if a token extends over them. A token of whitespace only belongs to the word after it, or
    to the last word if there is none, as in byte-level vocabularies.
    """
    text, gap = located.text, located.gap
    spans = list(enumerate(located.spans))
    rest = [t for t, span in spans if span is None]
    tokens = [_Token(t, *span) for t, span in spans if span is not None]
    if gap is None:
        sides = [(0, len(text), tokens)]
    else:
        head = [token for token in tokens if token.index in located.head]
        tail = [token for token in tokens if token.index not in located.head]
        sides = [(0, gap[0], head), (gap[1], len(text), tail)]
    pieces: list[Piece] = []
    for number, (start, end, some) in enumerate(sides):
        if number:
            pieces.append(Piece(f" [... {located.cut} tokens not read ...] "))
        own = [_Token(t.index, t.start - start, t.end - start) for t in some]
        found, orphans = _side(text[start:end], own, located.ids, values, unknown_id)
        pieces += found
        rest += orphans
    return pieces, sorted(rest)


def _side(
    text: str,
    tokens: Sequence[_Token],
    ids: Int32[np.ndarray, " T"],
    values: Float[np.ndarray, " T"],
    unknown_id: int | None,
) -> tuple[list[Piece], list[int]]:
    """Split a part of the text without a gap into pieces; see `pieces_of`."""
    is_blank = [c.isspace() for c in text]
    for start, end in _found(_breaks, text):
        is_blank[start:end] = [True] * (end - start)
    trimmed = [_trimmed(token, text, is_blank) for token in tokens]
    spans = _merged([*_found(_words, text), *(span for span in trimmed if span is not None)])
    starts = [start for start, _ in spans]
    sums: dict[int, list[int]] = {}
    rest = []
    for token, span in zip(tokens, trimmed, strict=True):
        if span is not None:
            sums.setdefault(bisect_right(starts, span[0]) - 1, []).append(token.index)
        elif spans:  # a token of whitespace: the next piece, or the last one
            place = min(bisect_right(starts, token.start), len(spans) - 1)
            sums.setdefault(place, []).append(token.index)
        else:
            rest.append(token.index)
    pieces, done = [], 0
    for place, (start, end) in enumerate(spans):
        if done < start:
            pieces.append(Piece(text[done:start]))
        own = sums.get(place)
        pieces.append(
            Piece(text[start:end])
            if own is None
            else Piece(
                text[start:end],
                float(values[own].sum()),
                unknown_id is not None and any(ids[t] == unknown_id for t in own),
            )
        )
        done = end
    if done < len(text):
        pieces.append(Piece(text[done:]))
    return pieces, rest


def _trimmed(token: _Token, text: str, is_blank: list[bool]) -> tuple[int, int] | None:
    """Return the span of a token without whitespace and line breaks; None if it is whitespace."""
    start = min(max(token.start, 0), max(len(text) - 1, 0))
    end = min(max(token.end, start + 1), len(text))  # some vocabularies give a space zero width
    if not text[start:end].strip():
        return None
    whole = start, end
    while start < end and is_blank[start]:
        start += 1
    while start < end and is_blank[end - 1]:
        end -= 1
    return (start, end) if start < end else whole


def _found(split: pre_tokenizers.Split, text: str) -> list[tuple[int, int]]:
    """Find the spans that match; ’ counts as ', as in the tokenizers of `train_tokenizer`."""
    return [span for _, span in split.pre_tokenize_str(text.replace("’", "'"))]


def _merged(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge overlapping spans, and sort them."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged
