"""The tables of docs/research/experiments.md: the rounds in which the recipe was found."""

from functools import partial
from typing import Any

from docs.build.filled import Table, table
from docs.build.results import epochs, results, short

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
    "round 6, sample, rates": (
        "sixth_round.sample_rates",
        "rate = learning_rate:g | seed of pretraining = pretrained | of fine-tuning = seed "
        "| accuracy = accuracy",
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
    "round 11": (
        "eleventh_round.runs",
        "what = name | accuracy by epoch = accuracy | training loss = training_loss:3",
    ),
}


def rounds_table(path: str, columns: str) -> Table:
    """Return the table of a list in recipe-rounds.json."""
    pairs = [column.rsplit(" = ", 1) for column in columns.split(" | ")]
    rows = at(results("recipe-rounds"), path)
    return [header for header, _ in pairs], (
        [formatted(row, key) for _, key in pairs] for row in rows
    )


def at(found: Any, path: str) -> Any:
    """Return the value at `key.key` in nested dictionaries; None if there is no such key."""
    for key in path.split("."):
        found = None if found is None else found.get(key)
    return found


def formatted(row: dict, key: str) -> str:
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
    table(_name)(partial(rounds_table, *_spec))
EPOCHS = ["epoch 1", *map(str, range(2, 7))]


def by_epoch(name: str, run: dict) -> list[str]:
    return [name, *epochs([epoch["accuracy"] for epoch in run["epochs"]], 6)]


@table("round 3")
def third_round() -> Table:
    return ["what", *EPOCHS, "log loss at the last"], (
        [*by_epoch(bold(run), run), f"{run['epochs'][-1]['log_loss']:.3f}"]
        for run in results("recipe-rounds")["runs"]
    )


@table("round 3, other movies")
def other_movies() -> Table:
    runs = results("recipe-rounds")["second_split"]["runs"]
    return ["what", *EPOCHS], (by_epoch(run["name"], run) for run in runs)


@table("round 4, networks")
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
