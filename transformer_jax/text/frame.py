"""The frame of a text, which is the special tokens around it, and batches of framed texts."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int32

from transformer_jax.text.encoding import Truncation
from transformer_jax.text.tokenizer_settings import Side

FIRST, SECOND = -1, -2  # the places of the two texts in a frame; all other entries are ids
Frame = list[tuple[int, int]]  # (id, FIRST or SECOND; segment), in order


class Encoded(NamedTuple):
    """The input of a model: ids, which of them are not padding, and their segments.

    The segment is that of the text in its pair, and 0 in padding.
    """

    tokens: Int32[np.ndarray, "B T"]
    is_token: Bool[np.ndarray, "B T"]
    segment_ids: Int32[np.ndarray, "B T"]


def longest_first(
    first: list[int], second: list[int], room: int | None, truncate: Truncation
) -> tuple[list[int], list[int]]:
    """Return both texts truncated to `room` tokens in total, the longer one first."""
    if room is None or len(first) + len(second) <= room:
        return first, second
    short = min(len(first), len(second), room // 2)
    lengths = (room - short, short) if len(first) > len(second) else (short, room - short)
    if truncate == "tail":
        return first[len(first) - lengths[0] :], second[len(second) - lengths[1] :]
    return first[: lengths[0]], second[: lengths[1]]


def framed(frame: Frame, first: list[int], second: list[int]) -> tuple[list[int], list[int]]:
    """Return the ids in their frame, and the segment of each."""
    ids: list[int] = []
    segments: list[int] = []
    for part, segment in frame:
        piece = first if part == FIRST else second if part == SECOND else [part]
        ids += piece
        segments += [segment] * len(piece)
    return ids, segments


def padded(rows: list[list[int]], kinds: list[list[int]], side: Side, pad_id: int) -> Encoded:
    """Return the ids and the segments of texts, padded on `side` to the longest text."""
    lengths = np.array([len(row) for row in rows], np.int64)
    longest = int(lengths.max(initial=0))
    places, own = np.arange(longest), lengths[:, None]
    is_token = places < own if side == "right" else places >= longest - own
    tokens = np.full(is_token.shape, pad_id, np.int32)
    segment_ids = np.zeros(is_token.shape, np.int32)
    tokens[is_token] = [token_id for row in rows for token_id in row]
    segment_ids[is_token] = [segment for kind in kinds for segment in kind]
    return Encoded(tokens, is_token, segment_ids)


# The spaces that Transformers removes with clean_up_tokenization_spaces, in this order.
CLEANED_UP = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


def cleaned_up(text: str) -> str:
    """Return a decoded text without the spaces before punctuation."""
    for spaced in CLEANED_UP:
        text = text.replace(spaced, spaced.strip())
    return text
