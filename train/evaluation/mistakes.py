"""The most confident mistakes of a classifier on its test texts, with an attribution by word."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from transformer_jax.interpret.explain import explain
from transformer_jax.runtime.files import write_text
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import round_lengths
from transformer_jax.text.words import Piece

MISTAKES = "mistakes.json"
MOST = 20  # mistakes of a page
LIMIT = 32  # integration nodes of a text; a gap of a few percent changes no colour
CHARACTERS = 1500  # of a text


def write_mistakes(folder: Path, *arguments: Any, **options: Any) -> None:
    """Write the result of `confident_mistakes` into a run folder, for its page."""
    mistakes = confident_mistakes(*arguments, **options)
    write_text(folder / MISTAKES, json.dumps(mistakes, ensure_ascii=False) + "\n")


def confident_mistakes(
    classifier: Trained,
    texts: Sequence[str],
    labels: Int[np.ndarray, " n"],
    probabilities: Float[np.ndarray, "n C"],
    *,
    tokens: float,
) -> list[dict[str, Any]]:
    """Return up to 20 texts of a wrong label, those of the most probable labels first.

    Each has its `label`, the `predicted` one, its `probability`, and its `pieces`: a list of (text,
    value, is unknown), cut after 1,500 characters. The values are the attributions to the log odds
    of the predicted label (`interpret.explain`). The texts of which the attribution would compute
    more than `tokens` tokens in all, of integration nodes and padding too, have no values.
    """
    probabilities, labels = np.asarray(probabilities), np.asarray(labels)
    predicted, confidence = probabilities.argmax(axis=1), probabilities.max(axis=1)
    wrong = np.flatnonzero(predicted != labels)
    wrong = wrong[np.argsort(-confidence[wrong], kind="stable")][:MOST].tolist()
    if not wrong:
        return []
    spec, tokenizer = classifier.spec, classifier.tokenizer
    encoded = tokenizer.encode([texts[i] for i in wrong], spec.max_length, spec.truncate)
    # One length, because each is compiled, which takes as long as many of these texts.
    length = int(round_lengths([max(map(len, encoded))], spec.max_length)[0])
    mistakes = []
    for i in wrong:
        name, found = spec.classes[predicted[i]], None
        if 2 * LIMIT * length <= tokens:
            found = explain(classifier, texts[i], name=name, limit=LIMIT, length=length)
            tokens -= 2 * found.attribution.nodes * length  # with those of the tries before
        pieces = [Piece(texts[i])] if found is None else found.pieces
        mistakes.append(
            {
                "label": spec.classes[labels[i]],
                "predicted": name,
                "probability": float(confidence[i]),
                "pieces": [(p.text, p.value, p.is_unknown) for p in _first(pieces)],
            }
        )
    return mistakes


def _first(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Yield the first pieces of a text, up to `CHARACTERS` and then three dots."""
    room = CHARACTERS
    for piece in pieces:
        if len(piece.text) > room:
            yield replace(piece, text=f"{piece.text[:room]} ...")
            return
        room -= len(piece.text)
        yield piece
