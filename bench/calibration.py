"""Compare two rules for the weights of a classifier's parts, on easy and on hard texts.

    python -m bench.calibration --data PATH        data as train.imdb takes them, besides two others
    python -m bench.calibration --small --docs DIR a few features, a few texts
    python -m bench.calibration --page             measure nothing, write the page

Three classifiers are trained: on texts in which one word tells the class, on the built-in sample of
`train.imdb`, and on the given data. Two fifths of the training texts are held out. The weights are
fitted to the first half of these, once with one-hot targets and once with the smoothed targets that
training uses, and are scored on the second half. The test split is not read. Numbers are written to
docs/results/calibration.json, the page to docs/research/calibration.md.
"""

if __name__ == "__main__":  # before NumPy and JAX have threads
    from transformer_jax.runtime.malloc import keep_freed_memory

    keep_freed_memory()

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from scipy.special import softmax

from bench.ablation import SMALL
from bench.pages.markdown import how_measured, table
from bench.pages.program import Program
from bench.peers.recipe_runs import ends_of_epochs, fold_of, looks
from train.classifier.calibration import log_probabilities, smoothed_targets, weights_of
from train.data.dataset import SENTIMENT, Dataset, Split
from train.data.load import load
from train.data.sample_reviews import sample
from train.evaluation.metrics import score
from train.recipes.imdb import FAST, SAMPLE, Recipe

HELD_OUT = 0.4
WORDS = "the a this film story scene actor music plot ending camera script".split()


def one_word_tells(texts: int, seed: int = 0) -> Dataset:
    """Return texts of ten random words and one of two words that tell the class.

    >>> one_word_tells(4).train.texts[1].split()[-1]
    'good'
    """
    random = np.random.default_rng(seed)
    labels = np.arange(texts, dtype=np.int32) % 2
    said = [" ".join([*random.choice(WORDS, 10), ("bad", "good")[label]]) for label in labels]
    train = Split(said, labels, None)
    source = "texts in which one word tells the class"
    return Dataset("one word", source, train, train, [], SENTIMENT)


def compare_rules(data: Dataset, recipe: Recipe) -> dict:
    """Train a classifier; return what each rule gives on the second half of the held-out texts."""
    fold = fold_of(data, recipe, 0, HELD_OUT)
    (look,) = looks(
        fold, recipe, 0, lambda steps: ends_of_epochs(steps)[-1:], parts=("head", "evidence")
    )
    parts = [log_probabilities(said) for said in look.alone.values() or [look.probabilities]]
    labels, classes = fold.held_out_labels, len(fold.classes)
    order = np.random.default_rng(0).permutation(len(labels))
    fitted, scored = np.array_split(order, 2)
    targets = {
        "one-hot": np.eye(classes)[labels[fitted]],
        "smoothed": smoothed_targets(labels[fitted], classes),
    }
    found = {}
    for rule, target in targets.items():
        weights = weights_of([part[fitted] for part in parts], target)
        logits = np.tensordot(weights, np.stack(parts)[:, scored], 1)
        highest = np.sort(logits, axis=1)[:, ::-1]
        result = score(softmax(logits, axis=1), labels[scored], fold.classes)
        found[rule] = {
            "weights": [round(weight, 3) for weight in weights],
            "log_odds": round(float((highest[:, 0] - highest[:, 1]).max()), 2),
            **{key: round(result[key], 5) for key in ("accuracy", "log_loss", "calibration_error")},
        }
    names = list(look.alone) or ["head"]
    return {"data": data.source, "fitted": len(fitted), "parts": names, "rules": found}


def page(results: dict, shown: dict[str, str]) -> Iterator[str]:
    """Yield the lines of the page from the contents of the JSON file."""
    yield "# How the weights of a classifier's parts are fitted\n"
    yield (
        "This page shows how sure a classifier is of texts that are easy. It is for readers who "
        "use its probabilities.\n"
    )
    yield (
        "A classifier of `train.imdb` adds the logits of its parts, each times a weight. The "
        "weights minimize the cross-entropy on the validation texts. If all of these are "
        "classified correctly, larger weights always lower the cross-entropy with one-hot targets, "
        "and the optimizer stops only where the loss is flat. So the targets are smoothed: if n "
        "validation texts are of a class, the target of this class is (n + 1) / (n + 2) for each "
        "of them (Platt, 1999). The largest log-odds are then about log(n + 1). If the classifier "
        "makes errors on validation, this changes almost nothing.\n"
    )
    header = [
        "data", "texts fitted to", "targets", "weights", "accuracy", "largest log-odds",
        "log loss", "calibration error",
    ]  # fmt: skip
    rows = [
        [
            run["data"] if rule == "one-hot" else "",
            f"{run['fitted']:,}" if rule == "one-hot" else "",
            rule,
            ", ".join(
                f"{part} {weight:.2f}"
                for part, weight in zip(run["parts"], found["weights"], strict=True)
            ),
            f"{100 * found['accuracy']:.2f}%",
            f"{found['log_odds']:.1f}",
            f"{found['log_loss']:.4f}",
            f"{found['calibration_error']:.4f}",
        ]
        for run in results["runs"]
        for rule, found in run["rules"].items()
    ]
    yield from table(header, rows)
    yield ""
    lower = [
        run["data"]
        for run in results["runs"]
        if run["rules"]["smoothed"]["log_loss"] < run["rules"]["one-hot"]["log_loss"]
    ]
    yield (
        "The smoothed targets cost log loss where no text is ever misclassified. They lower it on "
        f"held-out texts of: {'; '.join(lower) or 'none of these'}.\n"
    )
    yield (
        "Two fifths of the training texts are held out. The weights are fitted to the first half "
        "of these, all other columns are measured on the second half. The test split is not read."
    )
    yield from how_measured("calibration.json", [f"{results['command']}  # {results['date']}"])


PROGRAM = Program(
    "calibration", __doc__, "results/calibration.json", "research/calibration.md",
    ("command", "runs"), page, has_small=True,
)  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    parser = PROGRAM.parser()
    parser.add_argument("--data", help="data as train.imdb takes them (default: imdb)")
    options = PROGRAM.parse(parser, arguments)
    return PROGRAM.run(options, partial(measured, options))


def measured(options: argparse.Namespace) -> dict:
    """Train on every data set and return what each rule gives."""
    if options.small:
        last = load(options.data) if options.data else sample(train=200, test=2)
        cases = [(one_word_tells(100), SMALL), (sample(train=200, test=2), SMALL), (last, SMALL)]
    else:
        once = replace(FAST, fit=replace(FAST.fit, epochs=1))
        given = load(options.data or "imdb")
        cases = [(one_word_tells(2000), FAST), (sample(), SAMPLE), (given, once)]
    runs = []
    for data, recipe in cases:
        runs.append(compare_rules(data, recipe))
        print(f"{data.source}: {runs[-1]['rules']}", flush=True)
    return PROGRAM.stamp(options) | {"runs": runs}


if __name__ == "__main__":
    sys.exit(main())
