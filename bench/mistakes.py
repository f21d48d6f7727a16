"""Twenty reviews of the test split that a classifier gets wrong: the words that moved it, and the
reason that one can see.

    python -m bench.mistakes RUN --data PATH            RUN of train.imdb; --show prints the reviews, to be read
    python -m bench.mistakes --page                     nothing is explained: the page from numbers and reasons

Half of them are those that it is surest of, half are drawn from all that are wrong. Each is
explained by integrated gradients, as `python -m transformer_jax explain` does. Numbers go to
docs/results/mistakes.json, the page to docs/research/mistakes.md; reasons are written by hand into
docs/results/mistakes-reasons.json, by the number of the row. No review is stored: single words are.
"""

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from bench.measure.command_line import without_paths
from bench.pages.results import add_output, rewrite, write_page, write_results
from bench.pages.tables import table
from train.data.dataset import DataError, Split
from train.data.load import load
from transformer_jax.inference.classify import Scorer
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.serialization.run_folder import RunFolderError, Trained, load_classifier
from transformer_jax.text.batching import bucket_lengths

PROGRAM = "python -m bench.mistakes"
NUMBER = 20
WORDS = 5  # for and against each
BATCH_TOKENS = 16_384


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(
        prog=PROGRAM, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", nargs="?", metavar="RUN", help="the folder of a trained classifier")
    add("--data", default="imdb", help="as train.imdb takes it (default: imdb)")
    add("--number", type=int, default=NUMBER, help=f"how many reviews (default: {NUMBER})")
    add("--show", action="store_true", help="print the reviews, which are not stored")
    add_output(parser)
    options = parser.parse_args(arguments)
    if options.number < 1:
        parser.error("--number must be 1 or more")
    path = options.docs / "results/mistakes.json"

    def write(results: dict) -> Path:
        return write_page(
            options.docs / "research/mistakes.md", page(results, reasons(options.docs))
        )

    if options.page:
        return rewrite(path, PROGRAM, ("command", "reviews", "wrong", "mistakes"), write)
    if options.run is None:
        parser.error("RUN is needed: the folder of a trained classifier")
    try:
        classifier = load_classifier(options.run)
        data = load(options.data)
    except (RunFolderError, DataError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    test = data.test
    if data.classes != classifier.spec.classes:
        print(f"error: {options.run} knows other classes than {data.name}", file=sys.stderr)
        return 2
    said = probabilities_of(classifier, test.texts)
    wrong = (said.argmax(axis=1) != test.labels).sum()
    words = ["RUN" if word == options.run else word for word in arguments]
    results = {
        "command": without_paths([*PROGRAM.split(), *words]),
        "data": data.source,
        "reviews": len(test),
        "wrong": int(wrong),
        "mistakes": [],
    }
    for kind, row in tqdm(chosen(said, test, options.number), desc="explaining", unit="review"):
        if options.show:
            tqdm.write(f"\n{row}  {data.classes[test.labels[row]]}  {said[row].max():.3f}\n{test.texts[row]}")  # fmt: skip
        found = explain(classifier, test.texts[row])
        results["mistakes"].append(
            {
                "row": row,
                "kind": kind,
                "label": data.classes[test.labels[row]],
                "said": found.label,
                "probability": round(float(said[row].max()), 4),
                "words": len(test.texts[row].split()),
                "for": strongest(found, 1),
                "against": strongest(found, -1),
                "gap": round(float(found.attribution.gap), 4),
                "log_odds": round(float(found.attribution.total), 4),
            }
        )
    write_results(path, results)
    write(results)
    return 0


def probabilities_of(classifier: Trained, texts: Sequence[str]) -> Float[np.ndarray, "n C"]:
    spec, tokenizer = classifier.spec, classifier.tokenizer
    encoded = tokenizer.encode(texts, spec.max_length, spec.truncate)
    buckets = bucket_lengths([len(ids) for ids in encoded], spec.max_length, num_buckets=4)
    scorer = Scorer(classifier.model, tokenizer.pad_id, buckets, max(BATCH_TOKENS, buckets[-1]))
    return scorer(encoded)


def chosen(said: Float[np.ndarray, "n C"], test: Split, number: int) -> list[tuple[str, int]]:
    """Half of them the surest of the wrong ones, the rest drawn from the others; a text counts
    once.
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
    """The words that moved it most, what one word adds up to in all its places."""
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


def reasons(docs: Path) -> dict[str, str]:
    path = docs / "results/mistakes-reasons.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def page(results: dict, reasons: dict[str, str]) -> Iterator[str]:
    yield "# Reviews that it gets wrong\n"
    yield (
        f"`{results['command']}`: of {results['reviews']:,} test reviews the default classifier gets {results['wrong']:,} wrong. "
        "Here are the ones that it is surest of, and others drawn from the rest. *For* and *against* are the words that moved its "
        "answer most, with their shares of the log odds, by integrated gradients (`python -m transformer_jax explain RUN TEXT`). The reason "
        "is what a reader of the whole review sees; the reviews themselves are not stored here.\n"
    )
    for kind, title in (("surest", "The surest"), ("drawn", "Drawn from the others")):
        rows = [
            [
                str(mistake["row"]),
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
            yield from table(["row", "label", "said", "for", "against", "reason"], rows)
            yield ""
    kinds = Counter(
        reasons[row].split(":")[0]
        for row in (str(mistake["row"]) for mistake in results["mistakes"])
        if row in reasons
    )
    if kinds:
        counted = ", ".join(f"{kind} {number}" for kind, number in kinds.most_common())
        yield f"By the kind of reason: {counted}. *Label* is a review that its stars contradict.\n"
    gaps = [abs(m["gap"]) / max(abs(m["log_odds"]), 0.1) for m in results["mistakes"]]
    if gaps:
        yield (
            f"The shares of each review add up to its log odds to within {100 * max(gaps):.1f}%. A row is its number, from 0, in the test "
            "split as it was read."
        )


def _words(found: list[dict]) -> str:
    return ", ".join(
        f"{each['word'].replace('|', '/')} {each['value']:+.2f}"
        + (f" ({each['times']} times)" if each["times"] > 1 else "")
        for each in found
    )


if __name__ == "__main__":
    sys.exit(main())
