"""Fill the tables and sentences of README and the written pages from the files in docs/results.

    python -m docs.build.tables

fills in the table below each line `<!-- table: NAME -->`, and the text between a line
`<!-- filled: NAME -->` and the next `<!-- end -->`. The rest of a page stays as it is.
`tests/docs/test_results.py` checks that nothing is out of date.
"""

import json
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from bench.pages.markdown import milliseconds, table
from bench.pages.race import OURS, TUTORIAL
from train.evaluation.report import summary
from transformer_jax.runtime.files import write_text

DOCS = Path(__file__).parents[1]
PAGES = [
    DOCS.parent / "README.md",
    *(
        page
        for folder in ("guides", "research", "project")
        for page in sorted((DOCS / folder).glob("*.md"))
    ),
]
TABLE = re.compile(r"(<!-- table: (.*) -->\n)((?:\|.*\n)*)")
TEXT = re.compile(r"(<!-- filled: ([^\n]*) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)
COLUMNS = 100

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
TABLES: dict[str, Callable[[], Table]] = {}
TEXTS: dict[str, Callable[[], str]] = {}


def named(name: str) -> Callable[[Callable[[], Table]], Callable[[], Table]]:
    """Return a decorator that registers a function as the table of this name."""

    def keep(make: Callable[[], Table]) -> Callable[[], Table]:
        TABLES[name] = make
        return make

    return keep


def filled(text: str) -> str:
    """Return the text of a page with its tables and generated sentences filled in again."""
    text = TABLE.sub(lambda found: found[1] + "\n".join(table(*TABLES[found[2]]())) + "\n", text)
    return TEXT.sub(lambda found: f"{found[1]}{TEXTS[found[2]]()}{found[4]}", text)


def sentences(text: str) -> str:
    """Wrap a paragraph to the width of a page."""
    return textwrap.fill(text, COLUMNS, break_long_words=False, break_on_hyphens=False)


@cache
def results(name: str) -> Any:
    """Return the contents of a results file."""
    return json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))


def seeds(name: str) -> list[dict]:
    """Return the reports of three seeds."""
    return [results(name), *(results(f"{name}-seed-{seed}") for seed in (1, 2))]


# Formats ------------------------------------------------------------------------------------------


def short(value: float | None) -> str:
    """Format four digits without the zero before the point: .9134."""
    return "" if value is None else f"{value:.4f}"[value < 1 :]


def accuracy(run: dict) -> str:
    return f"{run['test_accuracy']:.2%}"


def interval(run: dict) -> str:
    low, high = run["test_accuracy_interval"]
    return f"{100 * low:.2f} to {high:.2%}"


def fitting_seconds(run: dict) -> float:
    """Return the seconds of all fitted parts: steps, solver for n-grams, vectors."""
    return sum(run.get(part, 0) for part in ("train_seconds", "evidence_seconds", "guess_seconds"))


def minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}"


def epochs(values: Sequence[float], number: int) -> list[str]:
    """Return a cell for each of `number` epochs; cells after the last are empty."""
    return [*map(short, values), *[""] * (number - len(values))]


# README -------------------------------------------------------------------------------------------


@named("imdb")
def imdb() -> Table:
    run, best = results("imdb"), results("imdb-vectors")
    linear = run["baseline"]
    rows = {
        "TF-IDF bigrams + logistic regression": (linear, linear["seconds"]),
        "`make imdb`: transformer with n-grams": (run, fitting_seconds(run)),
        "`make imdb-best`: learns from unlabelled reviews too": (best, fitting_seconds(best)),
    }
    header = ["model, seed 0", "test accuracy", "95% interval", "training"]
    return header, (
        [name, accuracy(found), interval(found), duration(seconds)]
        for name, (found, seconds) in rows.items()
    )


@named("recipes")
def recipes() -> Table:
    tuned, encoder, pretrained = (
        results(name) for name in ("finetune-imdb", "imdb-mlm", "imdb-mlm-classifier")
    )
    both = fitting_seconds(encoder) + fitting_seconds(pretrained)
    rows = {
        "`make imdb`": (results("imdb"), fitting_seconds(results("imdb"))),
        "`make imdb-best DATA=PATH`": (
            results("imdb-vectors"),
            fitting_seconds(results("imdb-vectors")),
        ),
        "`--pretrained MODEL`, all-MiniLM-L6-v2": (tuned, fitting_seconds(tuned)),
        "`--pretrained RUN`, an encoder of `train.mlm`": (pretrained, both),
    }
    return ["command", "test accuracy", "95% interval", "training"], (
        [name, accuracy(run), interval(run), duration(seconds)]
        for name, (run, seconds) in rows.items()
    )


def duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{minutes(seconds)} min"


def verdict() -> str:
    """Return the last lines that `make imdb` prints."""
    lines = summary(results("imdb")).splitlines()
    return "\n".join(["```text", *lines[-2:], "```", ""])


def classifier() -> str:
    """Return what the three seeds of `make imdb` and `make imdb-best` reach."""
    best = seeds("imdb-vectors")
    return sentences(
        f"{against_ngrams()} `make imdb-best` reaches {mean_accuracy(best)} (mean of three seeds) "
        f"in about {10 * round(max(map(fitting_seconds, best)) / 600)} minutes. The test split is "
        "read once, at the end of a run; models are selected on held-out movies "
        "([more](docs/guides/training.md))."
    )


def against_ngrams() -> str:
    runs = seeds("imdb")
    gains = [100 * (run["test_accuracy"] - ngrams(run)["test_accuracy"]) for run in runs]
    ps = [ngrams(run)["mcnemar"]["p_value"] for run in runs]
    return (
        f"Three seeds of `make imdb` reach {listed([accuracy(run) for run in runs])}: "
        f"{listed([f'{gain:.2f}' for gain in gains])} points above a linear model of the same "
        f"n-grams (McNemar p = {listed([f'{p:.1g}' for p in ps])}; {sum(p < 0.05 for p in ps)} of "
        f"{len(ps)} gains are significant)."
    )


def mean_accuracy(runs: Sequence[dict]) -> str:
    return f"{mean(run['test_accuracy'] for run in runs):.2%}"


def training() -> str:
    """Return the results of the guide on training."""
    runs, best = seeds("imdb"), seeds("imdb-vectors")
    again = [results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2)]
    alone = [accuracy(run["alone"]["evidence"]) for run in runs]
    took = [fitting_seconds(run) for run in best]
    return "\n\n".join(map(sentences, [
        f"{against_ngrams()} The linear model of the n-grams alone reaches {listed(alone)}, the "
        "network without n-grams "
        f"{listed([accuracy(run['alone']['head']) for run in runs])}, and TF-IDF bigrams with "
        f"logistic regression {accuracy(runs[0]['baseline'])}.",
        "On held-out movies attention raises accuracy by "
        f"{attention_adds(lambda epoch: epoch['alone']['head'])} points without n-grams and by "
        f"{attention_adds(lambda epoch: epoch['accuracy'])} points with them "
        "([ablation](../research/ablation.md)).",
        f"`make imdb-best` also learns from unlabelled reviews. It reaches {mean_accuracy(best)} "
        f"(mean of three seeds) in {minutes(min(took))} to {minutes(max(took))} minutes and needs "
        "10 GiB of memory. In two repeats on a busy machine (of "
        f"{listed([minutes(fitting_seconds(run)) for run in again])} minutes) its network without "
        f"n-grams reached {listed([accuracy(run['alone']['head']) for run in again])} "
        "([unlabelled texts](../research/unlabelled.md)).",
        f"{tutorial()} [Experiments](../research/experiments.md) lists everything that was tried, "
        "failures too; [mistakes](../research/mistakes.md) shows reviews that the classifier gets "
        "wrong.",
    ]))  # fmt: skip


def attention_adds(score: Callable[[dict], float]) -> str:
    """Return the points of accuracy that attention adds at the last epoch, averaged over seeds."""
    last = {
        (run["variant"].split(":")[0], run["seed"]): run["epochs"][-1]
        for run in results("ablation")["runs"]
    }
    without = {seed: epoch for (name, seed), epoch in last.items() if name == "attention removed"}
    gains = [score(last["the whole recipe", seed]) - score(without[seed]) for seed in without]
    return f"{100 * mean(gains):.2f}"


def tutorial() -> str:
    """Return when runs pass the accuracy of the tutorial, 80.74%."""
    points = {name: [] for name in (OURS, TUTORIAL)}
    for run in results("race")["runs"]:
        if run["contender"] in points:
            points[run["contender"]].append(run["points"])
    first = [next(p for p in run if p["accuracy"] > 0.8074) for run in points[OURS]]
    seconds, compiling = (median(p[key] for p in first) for key in ("seconds", "compile_seconds"))
    best = max(point["accuracy"] for point in points[TUTORIAL][0])
    return (
        "The tutorial that this project started from prints an accuracy of 80.74%. `train.imdb` "
        f"passes it after {seconds:.0f} s of training ({compiling:.0f} s of them compile time). "
        f"The tutorial's own PyTorch program was at {best:.2%} after half an hour "
        "([race](../research/race.md))."
    )


def training_details() -> str:
    """Return where and when the runs of the guide on training were made."""
    run, best = results("imdb"), results("imdb-vectors")
    return sentences(
        f"`{run['command']}` with seeds 0, 1 and 2, {where(run)} "
        "(`docs/results/imdb.json`, `imdb-seed-1.json`, `imdb-seed-2.json`). "
        f"`{best['command']}` with seeds 0, 1 and 2, {where(best)}, while another run shared the "
        "machine (`docs/results/imdb-vectors*.json`). The validation split shares no movie with "
        "the training split."
    )


def where(run: dict) -> str:
    machine = run["machine"]
    return (
        f"{machine['cores']} cores of {machine['processor']}, jax {run['versions']['jax']}, "
        f"{run['date']}"
    )


def ngrams(run: dict) -> dict:
    """Return the scores of the n-grams of a run without its network."""
    return run["alone"]["evidence"]


def listed(words: Sequence[str]) -> str:
    return f"{', '.join(words[:-1])} and {words[-1]}"


def writing() -> str:
    """Return what the language model and the translator reach."""
    characters, pairs = results("shakespeare"), results("multi30k")
    return sentences(
        f"On two CPU cores: tiny Shakespeare, {characters['held_out_loss']:.3f} nats per "
        f"character after {minutes(characters['train_seconds'])} minutes; Multi30k, English to "
        f"German, BLEU {pairs['bleu']:.1f} after {minutes(pairs['train_seconds'])} minutes "
        "([more](docs/research/translation.md))."
    )


def measured() -> str:
    """Return what models that write have reached."""
    characters, sample = results("shakespeare"), results("translate-sample")
    german, french = results("multi30k"), results("multi30k-fr")
    one, eight = (
        {name: ratio["median"] for name, ratio in row["ratios"].items()}
        for row in results("generation")["decode"]
        if row["batch"] in (1, 8)
    )
    return "\n".join(
        textwrap.fill(
            f"- {line}", COLUMNS, subsequent_indent="  ", break_long_words=False,
            break_on_hyphens=False,
        )
        for line in (
            f"Tiny Shakespeare, characters: {characters['held_out_loss']:.3f} nats per character "
            f"on the held-out last tenth, after {characters['train_seconds']:.0f} s of training "
            f"({where(characters)}).",
            f"Multi30k (test of 2016): English to German, BLEU {german['bleu']:.2f} after "
            f"{minutes(german['train_seconds'])} min; English to French, BLEU {french['bleu']:.2f} "
            f"after {minutes(french['train_seconds'])} min "
            "([translation](../research/translation.md)).",
            f"The built-in translation sample: {sample['exact']:.1%} of the texts exactly right "
            f"after {sample['train_seconds']:.0f} s.",
            "A token of a model of GPT-2's size takes "
            f"{one['Hugging Face']:.2f} of the time of Hugging Face (batch of 8: "
            f"{eight['Hugging Face']:.2f}), and {one['reading the weights']:.2f} of the time of "
            "reading the weights once ([generation](../benchmarks/generation.md)).",
            "On an H100, attention is compared with cuDNN and PyTorch, and a training step of "
            "BERT-base with what matrix products reach ([GPU](../benchmarks/gpu.md)).",
        )
    )  # fmt: skip


def attention() -> str:
    """Return the figure of the cost of attention, and a sentence on it."""
    bench, T = results("bench"), 1024
    records = [record for record in bench["records"] if record["subject"] == "attention"]
    found = {
        record["implementation"]: milliseconds(record["seconds"])
        for record in records
        if record["length"] == T and "ratio" not in record
    }
    ratios = {r["implementation"]: r["ratio"] for r in records if r.get("ratio")}
    machine = bench["machine"]
    figure = "![Time of attention by length](docs/figures/benchmarks-cost.svg)"
    return f"{figure}\n\n" + sentences(
        f"Jitted attention over {T} tokens (8 heads of 64, float32, forward) takes "
        f"{found['transformer_jax']} ms on {machine['cores']} cores of {machine['processor']}, "
        f"NumPy {found['NumPy']}, `jax.nn` {found['jax.nn']}, PyTorch {found['PyTorch']} ms. At "
        f"512 tokens, in alternating calls, `jax.nn` takes {ratios['jax.nn']:.2f}, PyTorch "
        f"{ratios['PyTorch']:.2f} and NumPy {ratios['NumPy']:.2f} times as long "
        "([more](docs/benchmarks/benchmarks.md), [GPU](docs/benchmarks/gpu.md))."
    )


TEXTS |= {
    "make imdb": verdict,
    "classifier": classifier,
    "training": training,
    "training details": training_details,
    "measured": measured,
    "writing": writing,
    "attention": attention,
}

# Pages on one subject -----------------------------------------------------------------------------


@named("translation")
def translation() -> Table:
    header = ["", "BLEU", "exact", "parameters", "passes", "training"]
    rows = {"English to German": "multi30k", "English to French": "multi30k-fr"}
    return header, (
        [name, f"{found['bleu']:.2f}", f"{found['exact']:.1%}", f"{found['parameters']:,}",
         found["epochs"], f"{minutes(found['train_seconds'])} min"]
        for name, found in ((name, results(file)) for name, file in rows.items())
    )  # fmt: skip


@named("finetuning")
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


def earlier_run(name: str) -> dict:
    """Return the stored part of the report of an earlier run."""
    return next(run for run in results("earlier-runs") if run["name"] == name)


@named("fine-tuning rates")
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


@named("unlabelled")
def unlabelled() -> Table:
    return beside("imdb-unlabelled", "imdb", ["without", "with `--unlabelled`"])


@named("vectors")
def vectors() -> Table:
    return beside("imdb-vectors", "imdb-unlabelled", ["`--unlabelled`", "with `--vectors`"])


@named("vectors again")
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


@named("few labels")
def few_labels() -> Table:
    without, ours = results("imdb-few"), results("imdb-few-unlabelled")
    header = ["TF-IDF bigrams + logistic regression", "without, 12 epochs", "with `--unlabelled`"]
    return header, [[accuracy(without["baseline"]), accuracy(without), f"**{accuracy(ours)}**"]]


@named("pretraining")
def pretraining() -> Table:
    encoder, run = results("imdb-mlm"), results("imdb-mlm-classifier")
    first, second = (minutes(found["train_seconds"]) for found in (encoder, run))
    guessed = f"{encoder['held_out_loss']:.2f} nats, {encoder['held_out_accuracy']:.1%} guessed"
    return ["", ""], [
        ["held-out words, how often each comes alone", f"{encoder['unigram_loss']:.2f} nats"],
        [f"held-out words, after {first} minutes", guessed],
        [f"test accuracy, after {second} minutes more", f"**{accuracy(run)}** ({interval(run)})"],
        ["calibration error", f"{run['test']['calibration_error']:.3f}"],
        ["TF-IDF bigrams + logistic regression", accuracy(run["baseline"])],
    ]


# The rounds of experiments.md, from the third on --------------------------------------------------

# A list of recipe-rounds.json, and for each column its header and the key of its value.
ROUNDS = {
    "round 3, linear models": (
        "linear",
        "what = name | accuracy = accuracy | naive Bayes alone = naive_bayes",
    ),
    "round 4, n-grams": (
        "fourth_round.linear",
        "what = name | seed 100 = accuracies.100 | 0 = accuracies.0 | 1 = accuracies.1 "
        "| 2 = accuracies.2",
    ),
    "round 5, n-grams": ("fifth_round.ngrams", "n-grams = name | accuracy = accuracy"),
    "round 5, network": (
        "fifth_round.network",
        "epoch = epoch:g | the network = network | + n-grams = with_ngrams "
        "| + n-grams fitted to all = with_self_trained",
    ),
    "round 5, places": (
        "fifth_round.places",
        "seed = seed | words of = words | 2^22 places = 22 | 2^24 places = 24",
    ),
    "round 6, IMDb": (
        "sixth_round.imdb",
        "epoch = epoch | accuracy = accuracy | log loss = log_loss | training loss = "
        "training_loss:3",
    ),
    "round 6, sample": (
        "sixth_round.sample",
        "rate = learning_rate:e | the head's, times = head | pooling = pooling "
        "| Muon's = muon_rate:g | b2 = b2:g | accuracy = accuracy",
    ),
    "round 7, alone": (
        "seventh_round.alone",
        "what = name | accuracy = accuracy | + n-grams = with_ngrams",
    ),
    "round 7, n-grams": (
        "seventh_round.ngrams_over_four_draws",
        "n-grams = name | accuracy = accuracy",
    ),
    "round 8, without vectors": (
        "eighth_round.without",
        "what = name | accuracy = accuracy | area = auc | log loss = log_loss",
    ),
    "round 8, vectors": (
        "eighth_round.vectors",
        "vectors = name | epochs = epochs | accuracy = alone.accuracy | area = alone.auc "
        "| + n-grams: area = with_ngrams.auc | log loss = with_ngrams.log_loss "
        "| + network: accuracy = with_both.accuracy | area = with_both.auc "
        "| log loss = with_both.log_loss",
    ),
    "round 9, sums": (
        "ninth_round.sums",
        "what = name | accuracy = accuracy | area = auc | log loss = log_loss",
    ),
    "round 9, n-grams": (
        "ninth_round.distilled",
        "n-grams fitted to vectors = name | accuracy = alone.accuracy | area = alone.auc "
        "| log loss = alone.log_loss | + network: accuracy = with_network.accuracy "
        "| area = with_network.auc | log loss = with_network.log_loss",
    ),
    "round 10, sums": (
        "tenth_round.sums",
        "what = name | seed 1: accuracy = 1.accuracy | area = 1.auc | log loss = 1.log_loss "
        "| seed 2: accuracy = 2.accuracy | area = 2.auc | log loss = 2.log_loss",
    ),
    "round 10, n-grams": (
        "tenth_round.distilled",
        "n-grams fitted to vectors = name | seed 1: accuracy = 1.alone.accuracy "
        "| area = 1.alone.auc | log loss = 1.alone.log_loss "
        "| + network: log loss = 1.with_network.log_loss | seed 2: accuracy = 2.alone.accuracy "
        "| area = 2.alone.auc | log loss = 2.alone.log_loss "
        "| + network: log loss = 2.with_network.log_loss",
    ),
}


def rounds_table(path: str, columns: str) -> Table:
    """Return the table of a list in recipe-rounds.json."""
    pairs = [column.rsplit(" = ", 1) for column in columns.split(" | ")]
    rows = at(results("recipe-rounds"), path)
    return [header for header, _ in pairs], ([text(row, key) for _, key in pairs] for row in rows)


def at(found: Any, path: str) -> Any:
    """Return the value at `key.key` in nested dictionaries; None if there is no such key."""
    for key in path.split("."):
        found = None if found is None else found.get(key)
    return found


def text(row: dict, key: str) -> str:
    """Format a cell by `key:format`: bold names, numbers below one without their zero."""
    key, _, form = key.partition(":")
    value = at(row, key)
    if key == "name":
        return bold(row)
    if isinstance(value, list):
        return " ".join(map(short, value))
    if not isinstance(value, float):
        return "" if value is None else str(value)
    if form == "e":
        return f"{value:.0e}".replace("e-0", "e-")
    return (f"{value:{form}}" if form == "g" else f"{value:.{form or 4}f}").removeprefix("0")


def bold(row: dict) -> str:
    return f"**{row['name']}**" if row.get("bold") else row["name"]


for _name, _spec in ROUNDS.items():
    TABLES[_name] = partial(rounds_table, *_spec)
EPOCHS = ["epoch 1", *map(str, range(2, 7))]


def by_epoch(name: str, run: dict) -> list[str]:
    return [name, *epochs([epoch["accuracy"] for epoch in run["epochs"]], 6)]


@named("round 3")
def third_round() -> Table:
    return ["what", *EPOCHS, "log loss at the last"], (
        [*by_epoch(bold(run), run), f"{run['epochs'][-1]['log_loss']:.3f}"]
        for run in results("recipe-rounds")["runs"]
    )


@named("round 3, other movies")
def other_movies() -> Table:
    runs = results("recipe-rounds")["second_split"]["runs"]
    return ["what", *EPOCHS], (by_epoch(run["name"], run) for run in runs)


@named("round 4, networks")
def fourth_round_networks() -> Table:
    found, rows = results("recipe-rounds")["fourth_round"], []
    ways = {
        "residual": {
            "one loss for the sum: the sum": "both",
            "its network by itself": "network",
        },
        "own_losses": {
            "a loss for each: regions by themselves": "regions",
            "attention by itself": "attention",
            "n-grams + half of the regions": "ngrams_and_half_regions",
        },
        "sums": {"the network alone": "network", "n-grams + 0.2 of it": "sum"},
    }
    for way, names in ways.items():
        for run in found[way]:
            ngrams = run.get("ngrams") or run["epochs"][0]["ngrams"]
            for name, key in names.items():
                values = [epoch[key] for epoch in run["epochs"]]
                values = [v["0.2"] if key == "sum" else v for v in values]
                if key == "sum" and run["attends"]:
                    name = f"**{name}**"
                elif not run.get("attends", True) and key == "network":
                    name += ", attention removed"
                rows.append([name, run["seed"], short(ngrams), *epochs(values, 5)])
    return ["what", "seed", "n-grams", *EPOCHS[:5]], rows


if __name__ == "__main__":
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            write_text(page, after)
            print(page.relative_to(DOCS.parent))
