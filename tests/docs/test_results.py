"""What the written pages say is what the files of results hold."""

import json
from pathlib import Path
from statistics import median

import pytest

from bench.pages.race import OURS, TUTORIAL

DOCS = Path(__file__).parents[2] / "docs"


def results(name):
    return json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("file", ["multi30k.json", "multi30k-fr.json"])
def test_the_page_on_translation_says_what_was_measured(file):
    found = json.loads((DOCS / "results" / file).read_text(encoding="utf-8"))
    page = (DOCS / "research/translation.md").read_text(encoding="utf-8")
    cells = (
        f"{found['bleu']:.2f}",
        f"{100 * found['exact']:.1f}%",
        f"{found['parameters']:,}",
        f"{found['epochs']}",
        f"{found['train_seconds'] / 60:.0f} min",
    )
    assert f"| {' | '.join(cells)} |" in page
    assert found["bleu_signature"] in page
    assert found["command"].replace("--target fr", "--target de") in page


def test_the_page_on_fine_tuning_says_what_was_measured():
    found = json.loads((DOCS / "results/finetune-imdb.json").read_text(encoding="utf-8"))
    page = (DOCS / "research/finetuning.md").read_text(encoding="utf-8")
    low, high = found["test_accuracy_interval"]
    cells = (
        f"{found['test_accuracy']:.2%}",
        f"{100 * low:.2f} to {high:.2%}",
        f"{found['train_seconds'] / 60:.0f} min",
    )
    assert f"| {' | '.join(cells)} |" in page
    assert f"| {found['baseline']['test_accuracy']:.2%} |" in page
    assert found["command"] in page


def test_the_page_on_experiments_says_what_was_printed():
    found = json.loads((DOCS / "results/recipe-rounds.json").read_text(encoding="utf-8"))
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    for run in found["runs"]:
        name = f"**{run['name']}**" if run["bold"] else run["name"]
        accuracies = [f"{epoch['accuracy']:.4f}"[1:] for epoch in run["epochs"]]
        cells = [name, *accuracies, *[""] * (6 - len(accuracies))]
        row = f"| {' | '.join(cells)} | {run['epochs'][-1]['log_loss']:.3f} |"
        assert row in page, row
    for model in found["linear"]:
        cells = (f"{model[key]:.4f}"[1:] for key in ("accuracy", "naive_bayes"))
        assert f" | {' | '.join(cells)} |" in page, model
    for run in found["second_split"]["runs"]:
        accuracies = [f"{epoch['accuracy']:.4f}"[1:] for epoch in run["epochs"]]
        cells = [run["name"], *accuracies, *[""] * (6 - len(accuracies))]
        assert f"| {' | '.join(cells)} |" in page, run["name"]


def test_the_page_on_experiments_says_what_the_fourth_round_printed():
    found = json.loads((DOCS / "results/recipe-rounds.json").read_text(encoding="utf-8"))
    found, page = (
        found["fourth_round"],
        (DOCS / "research/experiments.md").read_text(encoding="utf-8"),
    )

    def cells(values, number):
        shown = ["" if value is None else f"{value:.4f}"[1:] for value in values]
        return " | ".join([*shown, *[""] * (number - len(shown))])

    for model in found["linear"]:
        accuracies = [model["accuracies"].get(seed) for seed in ("100", "0", "1", "2")]
        name = model["name"]
        assert (
            f"| {name} | {cells(accuracies, 4)} |" in page
            or f"| **{name}** | {cells(accuracies, 4)} |" in page
        ), name
    for kind, of in (
        ("residual", lambda epoch: (epoch["both"], epoch["network"])),
        ("own_losses", lambda epoch: (epoch["regions"], epoch["attention"])),
        ("sums", lambda epoch: (epoch["network"], epoch["sum"]["0.2"])),
    ):
        for run in found[kind]:
            ngrams = run.get("ngrams") or run["epochs"][0]["ngrams"]
            for values in zip(*map(of, run["epochs"]), strict=True):
                row = f" | {run['seed']} | {cells([ngrams], 1)} | {cells(values, 5)} |"
                assert row in page, (kind, run["seed"], row)


def test_the_page_on_experiments_says_what_the_fifth_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    found = results("recipe-rounds")["fifth_round"]
    rows = [(r["name"], r["accuracy"]) for r in found["ngrams"]]
    rows += [
        (str(r["epoch"]), r["network"], r["with_ngrams"], r["with_self_trained"])
        for r in found["network"]
    ]
    rows += [(r["seed"], f"{r['words']} reviews", r["22"], r["24"]) for r in found["places"]]
    for row in rows:
        cells = (f"{c:.4f}"[1:] if isinstance(c, float) and c < 1 else str(c) for c in row)
        assert f"| {' | '.join(cells)} |" in page, row


def test_the_page_on_experiments_says_what_the_sixth_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    found = results("recipe-rounds")["sixth_round"]
    short = "{:.4f}".format
    for run in found["imdb"]:
        cells = (short(run["accuracy"])[1:], short(run["log_loss"])[1:], f"{run['training_loss']:.3f}"[1:])  # fmt: skip
        assert f"| {run['epoch']} | {' | '.join(cells)} |" in page
    for run in found["sample"]:
        accuracies = " ".join(short(a)[a < 1 :] for a in run["accuracy"])
        muon = f" {str(run['muon_rate'])[1:]} |" if run["muon_rate"] else " |"
        rate = f"{run['learning_rate']:.0e}".replace("e-0", "e-")
        row = f"| {rate} | {run['head']} | {run['pooling']} |{muon} {str(run['b2'])[1:]} | {accuracies} |"
        assert row in page, row


def test_the_page_on_experiments_says_what_the_seventh_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    found = results("recipe-rounds")["seventh_round"]
    short = "{:.4f}".format
    for row in found["alone"]:
        both = f" {short(row['with_ngrams'])[1:]} |" if "with_ngrams" in row else " |"
        assert f"| {row['name']} | {short(row['accuracy'])[1:]} |{both}" in page, row
    for row in found["ngrams_over_four_draws"]:
        assert f"| {row['name']} | {short(row['accuracy'])[1:]} |" in page, row


def test_the_page_on_experiments_says_what_the_eighth_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    found = results("recipe-rounds")["eighth_round"]

    def cells(of, *names):
        return [f"{of[name]:.4f}"[1:] for name in names]

    everything = ("accuracy", "auc", "log_loss")
    rows = [[row["name"], *cells(row, *everything)] for row in found["without"]]
    for row in found["vectors"]:
        alone, two = cells(row["alone"], "accuracy", "auc"), cells(row["with_ngrams"], "auc", "log_loss")  # fmt: skip
        rows.append([row["name"], str(row["epochs"]), *alone, *two, *cells(row["with_both"], *everything)])  # fmt: skip
    for row in rows:
        assert f"| {' | '.join(row)} |" in page, row


def test_the_page_on_experiments_says_what_the_ninth_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    found = results("recipe-rounds")["ninth_round"]

    def cells(of):
        return [f"{of[name]:.4f}"[1:] for name in ("accuracy", "auc", "log_loss")]

    rows = [[row["name"], *cells(row)] for row in found["sums"]]
    rows += [
        [row["name"], *cells(row["alone"]), *cells(row["with_network"])]
        for row in found["distilled"]
    ]
    for row in rows:
        assert f"| {' | '.join(row)} |" in page, row
    best = min(found["distilled"], key=lambda row: row["with_network"]["log_loss"])
    assert best is found["distilled"][-1]


def test_the_page_on_experiments_says_what_the_tenth_round_printed():
    page = (DOCS / "research/experiments.md").read_text(encoding="utf-8")
    runs = results("recipe-rounds")["tenth_round"]
    assert [run["seed"] for run in runs] == [1, 2]

    def cells(of, *names):
        return [f"{of[name]:.4f}"[1:] for name in names]

    everything, kept = ("accuracy", "auc", "log_loss"), "w = idf² root r"
    for name in runs[0]["sums"]:
        row = [name, *(c for run in runs for c in cells(run["sums"][name], *everything))]
        assert f"| {' | '.join(row)} |" in page, row
    for name in runs[0]["distilled"]:
        row = [f"**{name}**" if name == kept else name]
        for run in runs:
            found = run["distilled"][name]
            row += cells(found["alone"], *everything) + cells(found["with_network"], "log_loss")
        assert f"| {' | '.join(row)} |" in page, row
    for run in runs:
        alone = {name: found["alone"] for name, found in run["distilled"].items()}
        assert min(alone, key=lambda name: alone[name]["log_loss"]) == kept
        assert max(alone, key=lambda name: alone[name]["auc"]) == kept
    gains = [
        100 * (run["distilled"][kept]["alone"]["accuracy"] - run["sums"]["n-grams"]["accuracy"])
        for run in runs
    ]
    assert "by {:.1f} and {:.1f} points of accuracy".format(*gains) in page


def test_the_first_page_says_what_attention_adds():
    """Under 0.3 points it has to."""
    runs = json.loads((DOCS / "results/ablation.json").read_text(encoding="utf-8"))["runs"]
    last = {(run["variant"].split(":")[0], run["seed"]): run["epochs"][-1] for run in runs}
    seeds = {seed for name, seed in last if name == "attention removed"}

    def adds(accuracy):
        apart = [
            accuracy(last["the whole recipe", seed]) - accuracy(last["attention removed", seed])
            for seed in seeds
        ]
        return f"{100 * sum(apart) / len(apart):.2f}"

    network, whole = adds(lambda e: e["alone"]["head"]), adds(lambda e: e["accuracy"])
    page = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    assert f"attention adds {network} points to the network, and only {whole} where" in page


def seconds_of(run):
    """All that is fitted: the steps, the solver for n-grams and the vectors."""
    return sum(run.get(part, 0) for part in ("train_seconds", "evidence_seconds", "guess_seconds"))


def imdb_row(name, found, seconds):
    low, high = found["test_accuracy_interval"]
    cells = (name, f"{found['test_accuracy']:.2%}", f"{100 * low:.2f} to {high:.2%}", f"{seconds:.0f}")  # fmt: skip
    return f"| {' | '.join(cells)} |"


def of_three(of, runs):
    return "{}, {} and {}".format(*map(of, runs))


def gain(run):
    """Of the whole over its n-grams, in points."""
    return f"{100 * (run['test_accuracy'] - run['alone']['evidence']['test_accuracy']):.2f}"


def chance(run):
    return f"{run['alone']['evidence']['mcnemar']['p_value']:.1g}"


def percent(run):
    return f"{100 * run['test_accuracy']:.2f}"


def test_the_first_page_says_what_imdb_gave():
    page = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    runs, best = three_seeds("imdb"), results("imdb-vectors")
    found = runs[0]
    linear, ngrams = found["baseline"], found["alone"]["evidence"]
    for row in (
        imdb_row("TF-IDF bigrams + logistic regression", linear, linear["seconds"]),
        imdb_row("its n-grams alone, a linear model (NB-SVM)", ngrams, found["evidence_seconds"]),
        imdb_row("**transformer with n-grams**, `make imdb`", found, seconds_of(found)),
        imdb_row("the same, from unlabelled reviews too, `make imdb-best`", best, seconds_of(best)),
    ):
        assert row in page, row
    assert f"two cores of a Xeon, jax {found['versions']['jax']}, {found['date']}; the last row of an EPYC" in page  # fmt: skip
    assert "Xeon" in found["machine"]["processor"] and "EPYC" in best["machine"]["processor"]
    assert f"Three seeds have {of_three(percent, runs)}%" in page
    words = " ".join(page.split())
    assert f"{of_three(gain, runs)} points above their own n-grams" in words
    assert f"(McNemar p = {of_three(chance, runs)})" in words
    network = [run["alone"]["head"] for run in runs]
    assert f"part of the answer by itself has {of_three(percent, network)}%" in words
    assert all(run["test"]["calibration_error"] <= 0.02 for run in (*runs, best))


def test_the_log_of_experiments_says_what_imdb_gave():
    page = " ".join((DOCS / "research/experiments.md").read_text(encoding="utf-8").split())
    runs = three_seeds("imdb")
    for part in ("evidence", "head"):
        found = of_three(lambda run: f"{run['alone'][part]['test_accuracy']:.4f}", runs)  # noqa: B023
        assert found in page
    assert f"{of_three(gain, runs)} points to the n-grams" in page
    status = (DOCS / "status.md").read_text(encoding="utf-8")
    assert f"n-grams alone {of_three(lambda r: percent(r['alone']['evidence']), runs)}" in status


def test_the_first_page_says_how_long_the_race_took():
    page = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    runs = results("race")["runs"]
    of = {n: [r["points"] for r in runs if r["contender"] == n] for n in (OURS, TUTORIAL)}
    first = [next(p for p in points if p["accuracy"] > 0.8074) for points in of[OURS]]
    seconds, compiling = (median(p[key] for p in first) for key in ("seconds", "compile_seconds"))
    (tutorial,) = of[TUTORIAL]
    best = max(p["accuracy"] for p in tutorial)
    assert best < 0.8074 and tutorial[-1]["seconds"] > 1800
    assert f"after {seconds:.0f} s of training, {compiling:.0f} of them compiling" in page
    assert f"its own PyTorch program stood at {best:.2%} after half an hour" in page


def test_the_page_says_what_unlabelled_reviews_gave():
    page = (DOCS / "research/unlabelled.md").read_text(encoding="utf-8")
    runs, without = three_seeds("imdb-unlabelled"), three_seeds("imdb")
    apart = []
    for seed, (ours, theirs) in enumerate(zip(runs, without, strict=True)):
        low, high = ours["test_accuracy_interval"]
        apart.append(100 * (ours["test_accuracy"] - theirs["test_accuracy"]))
        cells = (
            str(seed),
            f"{theirs['test_accuracy']:.2%}",
            f"{ours['test_accuracy']:.2%}",
            f"{100 * low:.2f} to {high:.2%}",
            f"{ours['test']['calibration_error']:.3f}",
            f"{(ours['train_seconds'] + ours['evidence_seconds']) / 60:.0f}",
        )
        assert f"| {' | '.join(cells)} |" in page
    assert f"**{sum(apart) / 3:.2f} points**" in page
    assert f"{runs[0]['data']['unlabelled']:,} are left with seed 0" in page


def test_the_pages_say_what_vectors_of_texts_gave():
    readme, status, experiments, page = (
        path.read_text(encoding="utf-8")
        for path in (
            DOCS.parent / "README.md",
            *(
                DOCS / f"{name}.md"
                for name in ("status", "research/experiments", "research/unlabelled")
            ),
        )
    )
    runs, without = three_seeds("imdb-vectors"), three_seeds("imdb-unlabelled")
    took = []
    for seed, (ours, theirs) in enumerate(zip(runs, without, strict=True)):
        low, high = ours["test_accuracy_interval"]
        took.append(seconds_of(ours) / 60)
        cells = (
            str(seed),
            f"{theirs['test_accuracy']:.2%}",
            f"{ours['test_accuracy']:.2%}",
            f"{100 * low:.2f} to {high:.2%}",
            f"{ours['test']['calibration_error']:.3f}",
            f"{took[-1]:.0f}",
        )
        assert f"| {' | '.join(cells)} |" in page
    mean, before = (sum(run["test_accuracy"] for run in some) / 3 for some in (runs, without))
    assert f"**{mean:.2%}** on average, {100 * (mean - before):.2f} points above" in page
    assert f"{max(run['peak_memory_gib'] for run in runs):.1f} GiB at most" in page
    minutes = f"in {min(took):.0f} to {max(took):.0f} minutes"
    assert f"{mean:.2%}, mean of three seeds, {minutes}" in " ".join(readme.split())
    assert f"{mean:.2%}, mean of three seeds, within {max(took):.0f} minutes" in status
    assert f"three seeds: {mean:.2%}" in experiments


def test_the_pages_say_what_vectors_gave_again():
    page = (DOCS / "research/unlabelled.md").read_text(encoding="utf-8")
    runs = [results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2)]
    for run in runs:
        low, high = run["test_accuracy_interval"]
        alone = run["alone"]
        cells = (
            str(run["seed"]),
            f"{run['test_accuracy']:.2%}",
            f"{100 * low:.2f} to {high:.2%}",
            f"{alone['evidence']['test_accuracy']:.2%}",
            chance(run),
            f"{alone['head']['test_accuracy']:.2%}",
            f"{run['test']['calibration_error']:.3f}",
            f"{seconds_of(run) / 60:.0f}",
        )
        assert f"| {' | '.join(cells)} |" in page, cells
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").split())
    network = " and ".join(percent(run["alone"]["head"]) for run in runs)
    assert f"by itself its network has {network}%" in readme
    linear = runs[0]["baseline"]["test_accuracy"]
    assert all(run["alone"]["head"]["test_accuracy"] > linear for run in runs)


def test_the_page_says_what_pretraining_gave():
    page = (DOCS / "research/pretraining.md").read_text(encoding="utf-8")
    encoder, found = results("imdb-mlm"), results("imdb-mlm-classifier")
    low, high = found["test_accuracy_interval"]
    minutes = [round(run["train_seconds"] / 60) for run in (encoder, found)]
    assert f"alone | {encoder['unigram_loss']:.2f} nats |" in page
    guessed = f"{encoder['held_out_loss']:.2f} nats, {encoder['held_out_accuracy']:.1%} guessed"
    assert f"after {minutes[0]} minutes | {guessed} |" in page
    assert (
        f"after {minutes[1]} minutes more | **{found['test_accuracy']:.2%}** ({100 * low:.2f} to {high:.2%}) |"
        in page
    )
    assert f"calibration error | {found['test']['calibration_error']:.3f} |" in page
    assert f"logistic regression | {found['baseline']['test_accuracy']:.2%} |" in page
    assert f"missed by {100 * (0.925 - found['test_accuracy']):.2f} points" in page
    assert sum(minutes) < 120
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    assert f"{found['test_accuracy']:.2%} after {sum(minutes)} minutes" in " ".join(readme.split())


def test_the_page_says_what_pretraining_gave_on_the_sample():
    page = (DOCS / "research/pretraining.md").read_text(encoding="utf-8")
    encoder, found = results("sample-mlm"), results("sample-mlm-classifier")
    low, high = found["test_accuracy_interval"]
    assert f"seed 0: {encoder['held_out_loss']:.3f} nats" in page
    assert f"alone gives {encoder['unigram_loss']:.3f};" in page
    assert f"{found['test_accuracy']:.2%} ({100 * low:.2f} to {high:.2%})" in page
    assert f"the linear model {found['baseline']['test_accuracy']:.2%}." in page
    seconds = (f"{run['train_seconds']:.0f} s" for run in (encoder, found))
    assert " and ".join(seconds) + " of training" in page


def test_the_page_says_what_they_give_beside_few_labels():
    page = (DOCS / "research/unlabelled.md").read_text(encoding="utf-8")
    without, ours = results("imdb-few"), results("imdb-few-unlabelled")
    assert without["data"]["train"] + without["data"]["validation"] == 1000
    assert without["weights"]["head"] == 0.05  # as little as may be
    cells = [run["test_accuracy"] for run in (without["baseline"], without, ours)]
    low, middle, high = (f"{cell:.2%}" for cell in cells)
    assert f"| {low} | {middle} | **{high}** |" in page
    short, long = (f"{run['train_seconds'] / 60:.0f}" for run in (without, ours))
    assert f"{short} and {long} minutes" in page


def three_seeds(name):
    found = [results(name), *(results(f"{name}-seed-{seed}") for seed in (1, 2))]
    assert [run["seed"] for run in found] == [0, 1, 2]
    return found
