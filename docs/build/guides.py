"""The tables and sentences of README, of the guides and of the features."""

from collections.abc import Callable
from statistics import mean, median

from bench.pages.markdown import milliseconds
from bench.pages.race import OURS, TUTORIAL
from docs.build.filled import Table, table, text
from docs.build.results import (
    accuracy,
    duration,
    fitting_seconds,
    interval,
    listed,
    mean_accuracy,
    minutes,
    ngrams,
    results,
    seeds,
    where,
)
from train.evaluation.report import summary


@table("imdb")
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


@table("mesh")
def mesh() -> Table:
    run = results("mesh")
    header = ["", *(f"({', '.join(map(str, sizes))})" for sizes in run["meshes"])]
    return header, ([name, *(f"{x:.1e}" for x in row)] for name, row in run["differences"].items())


@table("recipes")
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


@text("make imdb")
def verdict() -> list[str]:
    """Return the last lines that `make imdb` prints."""
    lines = summary(results("imdb")).splitlines()
    return ["```text", *lines[-2:], "```"]


@text("classifier")
def classifier() -> list[str]:
    """Return what the three seeds of `make imdb` and `make imdb-best` reach."""
    best = seeds("imdb-vectors")
    return [
        f"{against_ngrams()} `make imdb-best` reaches {mean_accuracy(best)} (mean of three seeds) "
        f"in about {10 * round(max(map(fitting_seconds, best)) / 600)} minutes. The test split is "
        "read once; models are selected on held-out movies "
        "([more](docs/guides/training.md))."
    ]


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


@text("training")
def training() -> list[str]:
    """Return the results of the guide on training."""
    runs, best = seeds("imdb"), seeds("imdb-vectors")
    again = [results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2)]
    alone = [accuracy(run["alone"]["evidence"]) for run in runs]
    took = [fitting_seconds(run) for run in best]
    return [
        f"{against_ngrams()} The linear model of the n-grams alone reaches {listed(alone)}, the "
        "network without n-grams "
        f"{listed([accuracy(run['alone']['head']) for run in runs])}, and TF-IDF bigrams with "
        f"logistic regression {accuracy(runs[0]['baseline'])}.",
        "",
        "On held-out movies attention raises accuracy by "
        f"{attention_adds(lambda epoch: epoch['alone']['head'])} points without n-grams and by "
        f"{attention_adds(lambda epoch: epoch['accuracy'])} points with them "
        "([ablation](../research/ablation.md)).",
        "",
        f"`make imdb-best` also learns from unlabelled reviews. It reaches {mean_accuracy(best)} "
        f"(mean of three seeds) in {minutes(min(took))} to {minutes(max(took))} minutes and needs "
        f"{max(run['peak_memory_gib'] for run in best):.0f} GiB of memory. In two repeats on a "
        "busy machine (of "
        f"{listed([minutes(fitting_seconds(run)) for run in again])} minutes) its network without "
        f"n-grams reached {listed([accuracy(run['alone']['head']) for run in again])} "
        "([unlabelled texts](../research/unlabelled.md)).",
        "",
        f"{tutorial()} [Experiments](../research/experiments.md) lists everything that was tried, "
        "failures too; [mistakes](../research/mistakes.md) shows reviews that the classifier gets "
        "wrong.",
    ]


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


@text("training details")
def training_details() -> list[str]:
    """Return where and when the runs of the guide on training were made."""
    run, best = results("imdb"), results("imdb-vectors")
    return [
        f"`{run['command']}` with seeds 0, 1 and 2, {where(run)} "
        "(`docs/results/imdb.json`, `imdb-seed-1.json`, `imdb-seed-2.json`). "
        f"`{best['command']}` with seeds 0, 1 and 2, {where(best)}, while another run shared the "
        "machine (`docs/results/imdb-vectors*.json`). The validation split shares no movie with "
        "the training split."
    ]


@text("writing")
def writing() -> list[str]:
    """Return what the language model and the translator reach."""
    characters, pairs = results("shakespeare"), results("multi30k")
    return [
        f"On two CPU cores: tiny Shakespeare, {characters['held_out_loss']:.3f} nats per "
        f"character after {minutes(characters['train_seconds'])} minutes; Multi30k, English to "
        f"German, BLEU {pairs['bleu']:.1f} after {minutes(pairs['train_seconds'])} minutes "
        "([more](docs/research/translation.md))."
    ]


@text("measured")
def measured() -> list[str]:
    """Return what models that write have reached."""
    characters, sample = results("shakespeare"), results("translate-sample")
    german, french = results("multi30k"), results("multi30k-fr")
    ratios = {
        row["batch"]: {name: ratio["median"] for name, ratio in row["ratios"].items()}
        for row in results("generation")["decode"]
    }
    one, eight = ratios[1], ratios[8]
    return [
        f"- Tiny Shakespeare, characters: {characters['held_out_loss']:.3f} nats per character "
        f"on the held-out last tenth, after {characters['train_seconds']:.0f} s of training "
        f"({where(characters)}).",
        f"- Multi30k (test of 2016): English to German, BLEU {german['bleu']:.2f} after "
        f"{minutes(german['train_seconds'])} min; English to French, BLEU {french['bleu']:.2f} "
        f"after {minutes(french['train_seconds'])} min "
        "([translation](../research/translation.md)).",
        f"- The built-in translation sample: {sample['exact']:.1%} of the texts exactly right "
        f"after {sample['train_seconds']:.0f} s.",
        "- A token of a model of GPT-2's size takes "
        f"{one['Hugging Face']:.2f} of the time of Hugging Face (batch of 8: "
        f"{eight['Hugging Face']:.2f}), and {one['reading the weights']:.2f} of the time of "
        "reading the weights once ([generation](../benchmarks/generation.md)).",
        "- On NVIDIA GPUs, attention is compared with cuDNN and PyTorch, and a training step of "
        "BERT-base with what matrix products reach ([GPU](../benchmarks/gpu.md)).",
    ]


@text("attention")
def attention() -> list[str]:
    """Return the figure of the cost of attention, and a sentence on it."""
    bench, T = results("bench"), 1024
    records = [record for record in bench["records"] if record["subject"] == "attention"]
    found = {
        record["implementation"]: milliseconds(record["seconds"])
        for record in records
        if record["length"] == T and "ratio" not in record
    }
    ratios = {
        r["implementation"]: r["ratio"] for r in records if "ratio" in r and r["length"] == 512
    }
    machine = bench["machine"]
    figure = "![Time of attention by length](docs/figures/benchmarks-cost.svg)"
    return [
        figure,
        "",
        f"Jitted attention over {T} tokens (8 heads of 64, float32, forward) takes "
        f"{found['transformer_jax']} ms on {machine['cores']} cores of {machine['processor']}, "
        f"NumPy {found['NumPy']}, `jax.nn` {found['jax.nn']}, PyTorch {found['PyTorch']} ms. At "
        f"512 tokens, in alternating calls, `jax.nn` takes {ratios['jax.nn']:.2f}, PyTorch "
        f"{ratios['PyTorch']:.2f} and NumPy {ratios['NumPy']:.2f} times as long "
        "([more](docs/benchmarks/benchmarks.md), [GPU](docs/benchmarks/gpu.md)).",
    ]
