"""The tables of the research notes, except the rounds of experiments.md."""

from collections.abc import Sequence

from docs.build.filled import Table, table
from docs.build.results import (
    accuracy,
    earlier_run,
    fitting_seconds,
    interval,
    minutes,
    results,
    seeds,
    short,
)


@table("translation")
def translation() -> Table:
    header = ["", "BLEU", "exact", "parameters", "passes", "training"]
    rows = {"English to German": "multi30k", "English to French": "multi30k-fr"}
    return header, (
        [name, f"{found['bleu']:.2f}", f"{found['exact']:.1%}", f"{found['parameters']:,}",
         found["epochs"], f"{minutes(found['train_seconds'])} min"]
        for name, found in ((name, results(file)) for name, file in rows.items())
    )  # fmt: skip


@table("finetuning")
def finetuning() -> Table:
    run = results("finetune-imdb")
    linear = run["baseline"]
    took = (f"{minutes(run['train_seconds'])} min", f"{linear['seconds']:.0f} s")
    return ["", "test accuracy", "95% interval", "training"], [
        ["MiniLM, fine-tuned", accuracy(run), interval(run), took[0]],
        [
            "TF-IDF, words and bigrams, logistic regression",
            accuracy(linear),
            interval(linear),
            took[1],
        ],
    ]


@table("fine-tuning rates")
def fine_tuning_rates() -> Table:
    recipe, kept = (earlier_run(f"fine-tuning, {rate}") for rate in ("1e-4", "2e-4"))
    return ["rate of the highest layer", "accuracy"], [
        ["1e-4, the recipe's", short(recipe["test_accuracy"])],
        ["**2e-4**", f"**{short(kept['test_accuracy'])}**"],
    ]


def beside(name: str, before: str, header: Sequence[str]) -> Table:
    """Return a table of three seeds of two experiments, side by side."""
    return ["seed", *header, "95% interval", "calibration error", "minutes"], (
        [seed, accuracy(theirs), accuracy(ours), interval(ours),
         f"{ours['test']['calibration_error']:.3f}", minutes(fitting_seconds(ours))]
        for seed, (theirs, ours) in enumerate(zip(seeds(before), seeds(name), strict=True))
    )  # fmt: skip


@table("unlabelled")
def unlabelled() -> Table:
    return beside("imdb-unlabelled", "imdb", ["without", "with `--unlabelled`"])


@table("vectors")
def vectors() -> Table:
    return beside("imdb-vectors", "imdb-unlabelled", ["`--unlabelled`", "with `--vectors`"])


@table("vectors again")
def vectors_again() -> Table:
    header = ["seed", "with `--vectors`", "95% interval", "its n-grams alone", "McNemar p"]
    header += ["its network alone", "calibration error", "minutes"]
    runs = (results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2))
    return header, (
        [run["seed"], accuracy(run), interval(run), accuracy(run["alone"]["evidence"]),
         f"{run['alone']['evidence']['mcnemar']['p_value']:.1g}", accuracy(run["alone"]["head"]),
         f"{run['test']['calibration_error']:.3f}", minutes(fitting_seconds(run))]
        for run in runs
    )  # fmt: skip


@table("few labels")
def few_labels() -> Table:
    without, ours = results("imdb-few"), results("imdb-few-unlabelled")
    header = ["TF-IDF bigrams + logistic regression", "without, 12 epochs", "with `--unlabelled`"]
    return header, [[accuracy(without["baseline"]), accuracy(without), f"**{accuracy(ours)}**"]]


@table("pretraining")
def pretraining() -> Table:
    encoder, run = results("imdb-mlm"), results("imdb-mlm-classifier")
    first, second = (minutes(found["train_seconds"]) for found in (encoder, run))
    right = f"{encoder['held_out_accuracy']:.1%} predicted correctly"
    return ["", ""], [
        ["held-out words, unigram baseline", f"{encoder['unigram_loss']:.2f} nats"],
        [f"held-out words, after {first} minutes", f"{encoder['held_out_loss']:.2f} nats, {right}"],
        [f"test accuracy, after {second} minutes more", f"**{accuracy(run)}** ({interval(run)})"],
        ["calibration error", f"{run['test']['calibration_error']:.3f}"],
        ["TF-IDF bigrams + logistic regression", accuracy(run["baseline"])],
    ]
