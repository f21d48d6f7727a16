"""Explain twenty test reviews that a classifier gets wrong: the deciding words and the reason.

    python -m bench.mistakes RUN --data PATH    RUN of train.imdb; --show prints the reviews
    python -m bench.mistakes --page             measure nothing, write the page

Half of them are the most confident errors, half are drawn from the other errors. Each is explained
by integrated gradients, as `python -m transformer_jax explain` does. Numbers are written to
docs/results/mistakes.json, the page to docs/research/mistakes.md. The reasons are written by hand
into docs/results/mistakes-reasons.json, by the number of the row. Reviews are not stored, only
single words of them.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from bench.pages.markdown import how_measured, table
from bench.pages.program import Program
from train.data.dataset import Split
from train.data.load import load
from transformer_jax.inference.classify import Scorer
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import Trained, load_classifier
from transformer_jax.text.batching import bucket_lengths

NUMBER = 20
WORDS = 5  # per review, for and against the prediction
BATCH_TOKENS = 16_384


def probabilities_of(classifier: Trained, texts: Sequence[str]) -> Float[np.ndarray, "n C"]:
    spec, tokenizer = classifier.spec, classifier.tokenizer
    encoded = tokenizer.encode(texts, spec.max_length, spec.truncate)
    buckets = bucket_lengths([len(ids) for ids in encoded], spec.max_length, num_buckets=4)
    scorer = Scorer(classifier.model, tokenizer.pad_id, buckets, max(BATCH_TOKENS, buckets[-1]))
    return scorer(encoded)


def chosen(said: Float[np.ndarray, "n C"], test: Split, number: int) -> list[tuple[str, int]]:
    """Choose half of the errors by confidence, and draw the other half at random.

    Identical texts are chosen only once.
    """
    wrong = np.flatnonzero(said.argmax(axis=1) != test.labels)
    ordered = wrong[np.argsort(-said[wrong].max(axis=1), kind="stable")]
    first: dict[str, int] = {}
    for row in ordered:
        first.setdefault(test.texts[row], int(row))
    once = list(first.values())
    surest, others = once[: (number + 1) // 2], once[(number + 1) // 2 :]
    drawn = np.random.default_rng(0).permutation(len(others))[: number // 2]
    return [("surest", row) for row in surest] + [("drawn", others[i]) for i in sorted(drawn)]


def strongest(found: Explanation, sign: int) -> list[dict]:
    """Return the words with the largest attributions, summed over all places of a word."""
    sums: dict[str, list[float]] = defaultdict(list)
    for piece in found.pieces:
        if piece.value is not None and piece.text.strip():
            sums[piece.text.strip().lower()].append(piece.value)
    totals = sorted(
        ((sign * sum(values), word, len(values)) for word, values in sums.items()), reverse=True
    )
    return [
        {"word": word, "value": round(sign * total, 3), "times": times}
        for total, word, times in totals[:WORDS]
        if total > 0
    ]


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page."""
    reasons = results["reasons"]
    yield "# Reviews that the classifier gets wrong\n"
    yield (
        "This page explains test reviews that the default classifier gets wrong. It is for readers "
        "who want to know what kinds of errors remain.\n"
    )
    yield (
        f"Of {results['reviews']:,} test reviews the classifier gets {results['wrong']:,} wrong. "
        "The first table shows the errors with the highest probability, the second a random sample "
        "of the others. *For* and *against* are the words with the largest attributions for and "
        "against the prediction. Attributions are shares of the log odds, computed by integrated "
        "gradients (`python -m transformer_jax explain RUN TEXT`). The reason was written by a "
        "reader of the whole review; the reviews themselves are not stored here.\n"
    )
    for kind, title in (("surest", "Most confident errors"), ("drawn", "Randomly drawn errors")):
        rows = [
            [
                mistake["row"],
                mistake["label"],
                f"{mistake['said']}, {100 * mistake['probability']:.1f}%",
                _words(mistake["for"]),
                _words(mistake["against"]),
                reasons.get(str(mistake["row"]), ""),
            ]
            for mistake in results["mistakes"]
            if mistake["kind"] == kind
        ]
        if rows:
            yield f"## {title}\n"
            yield from table(["row", "label", "prediction", "for", "against", "reason"], rows)
            yield ""
    kinds = Counter(
        reasons[row].split(":")[0]
        for row in (str(mistake["row"]) for mistake in results["mistakes"])
        if row in reasons
    )
    if kinds:
        counted = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
        yield f"By the kind of reason: {counted}. *Label*: the review contradicts its stars.\n"
    gaps = [abs(m["gap"]) / max(abs(m["log_odds"]), 0.1) for m in results["mistakes"]]
    if gaps:
        yield (
            "The attributions of each review add up to its log odds to within "
            f"{100 * max(gaps):.1f}%. A row is the number of the review in the test split, from 0, "
            "in the order of the files."
        )
    yield from how_measured("mistakes.json", [results["command"]], [f"- Data: {results['data']}"])


def _words(found: list[dict]) -> str:
    return ", ".join(
        f"{each['word'].replace('|', '/')} {each['value']:+.2f}"
        + (f" ({each['times']} times)" if each["times"] > 1 else "")
        for each in found
    )


class Mistakes(Program):
    """The program, whose page also shows the reasons that were written by hand."""

    def publish(self, results: dict, docs: Path) -> list[Path]:
        path = docs / "results/mistakes-reasons.json"
        reasons = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        return super().publish(results | {"reasons": reasons}, docs)


PROGRAM = Mistakes(
    "mistakes", __doc__, "results/mistakes.json", "research/mistakes.md",
    ("command", "reviews", "wrong", "mistakes"), page,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="the folder of a trained classifier")
    add("--data", default="imdb", help="data as train.imdb takes them (default: imdb)")
    add("--number", type=int, default=NUMBER, help=f"number of reviews (default: {NUMBER})")
    add("--show", action="store_true", help="print the reviews, which are not stored")
    options = PROGRAM.parse(parser, arguments, unnamed=("run",))
    if options.number < 1:
        parser.error("--number must be 1 or more")
    if options.run is None and not options.page:
        parser.error("RUN is needed: the folder of a trained classifier")
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    classifier, data = load_classifier(options.run), load(options.data)
    if data.classes != classifier.spec.classes:
        raise InputError(f"{options.run} has other classes than {data.name}")
    test, mistakes = data.test, []
    said = probabilities_of(classifier, test.texts)
    for kind, row in tqdm(chosen(said, test, options.number), desc="explaining", unit="review"):
        label, probability = data.classes[test.labels[row]], said[row].max()
        if options.show:
            tqdm.write(f"\n{row}  {label}  {probability:.3f}\n{test.texts[row]}")
        found = explain(classifier, test.texts[row])
        mistakes.append(
            {
                "row": row,
                "kind": kind,
                "label": label,
                "said": found.label,
                "probability": round(float(probability), 4),
                "words": len(test.texts[row].split()),
                "for": strongest(found, 1),
                "against": strongest(found, -1),
                "gap": round(float(found.attribution.gap), 4),
                "log_odds": round(float(found.attribution.total), 4),
            }
        )
    return PROGRAM.stamp(options) | {
        "data": data.source,
        "reviews": len(test),
        "wrong": int((said.argmax(axis=1) != test.labels).sum()),
        "mistakes": mistakes,
    }


if __name__ == "__main__":
    sys.exit(main())
