"""What the written pages say is what the files of results hold."""

from statistics import mean, median

import pytest

from bench.pages.race import OURS, TUTORIAL
from docs.build.tables import (
    DOCS,
    PAGES,
    TABLES,
    accuracy,
    earlier_run,
    filled,
    fitting_seconds,
    interval,
    results,
    seeds,
)

README = DOCS.parent / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_out_of_date(page):
    """`python -m docs.build.tables` changes nothing."""
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


def test_every_table_is_on_one_page_and_changes_with_its_results(monkeypatch):
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(pages.count(f"<!-- table: {name} -->\n|") == 1 for name in TABLES)
    page = "<!-- table: few labels -->\n| a |\n| --- |\n| 1 |\n\nAfter it."
    assert filled(page).endswith("%** |\n\nAfter it.") and "| a |" not in filled(page)


# Sentences ----------------------------------------------------------------------------------------


def percent(run):
    return f"{100 * run['test_accuracy']:.2f}"


def four_digits(run):
    return f"{run['test_accuracy']:.4f}"


def gain(run):
    """Of the whole over its n-grams, in points."""
    return f"{100 * (run['test_accuracy'] - run['alone']['evidence']['test_accuracy']):.2f}"


def chance(run):
    return f"{run['alone']['evidence']['mcnemar']['p_value']:.1g}"


def of_three(of, runs):
    return "{}, {} and {}".format(*map(of, runs))


def part(name):
    return [run["alone"][name] for run in seeds("imdb")]


def minutes(run):
    return round(run["train_seconds"] / 60)


def adds(of):
    """What attention adds, in points: the whole recipe against the one without, seed by seed."""
    runs = results("ablation")["runs"]
    last = {(run["variant"].split(":")[0], run["seed"]): run["epochs"][-1] for run in runs}
    without = {seed: epoch for (name, seed), epoch in last.items() if name == "attention removed"}
    return f"{100 * mean(of(last['the whole recipe', s]) - of(without[s]) for s in without):.2f}"


def race():
    """The first point of each run of ours above the tutorial's bar, and the tutorial's points."""
    runs = results("race")["runs"]
    points = {
        name: [r["points"] for r in runs if r["contender"] == name] for name in (OURS, TUTORIAL)
    }
    first = [next(p for p in run if p["accuracy"] > 0.8074) for run in points[OURS]]
    (tutorial,) = points[TUTORIAL]
    return first, tutorial


def vectors():
    """The mean accuracy of three seeds, and the minutes of each."""
    runs = seeds("imdb-vectors")
    took = [fitting_seconds(run) / 60 for run in runs]
    return f"{mean(run['test_accuracy'] for run in runs):.2%}", took


def readme():
    run, (first, tutorial), (average, took) = results("imdb"), race(), vectors()
    again = [results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2)]
    seconds, compiling = (median(p[key] for p in first) for key in ("seconds", "compile_seconds"))
    encoder, tuned = results("imdb-mlm"), results("imdb-mlm-classifier")
    of_run = f"jax {run['versions']['jax']}, {run['date']}"
    yield f"two cores of a Xeon, {of_run}; the last row of an EPYC"
    yield f"Three seeds have {of_three(percent, seeds('imdb'))}%"
    yield f"{of_three(gain, seeds('imdb'))} points above their own n-grams"
    yield f"(McNemar p = {of_three(chance, seeds('imdb'))})"
    yield f"part of the answer by itself has {of_three(percent, part('head'))}%"
    yield f"attention adds {adds(lambda e: e['alone']['head'])} points to the network, and only "
    yield f"and only {adds(lambda e: e['accuracy'])} where"
    yield f"after {seconds:.0f} s of training, {compiling:.0f} of them compiling"
    best = max(point["accuracy"] for point in tutorial)
    yield f"its own PyTorch program stood at {best:.2%} after half an hour"
    yield f"{average}, mean of three seeds, in {min(took):.0f} to {max(took):.0f} minutes"
    networks = " and ".join(percent(run["alone"]["head"]) for run in again)
    yield f"by itself its network has {networks}%"
    yield f"{accuracy(tuned)} after {minutes(encoder) + minutes(tuned)} minutes"


def status():
    average, took = vectors()
    yield f"n-grams alone {of_three(percent, part('evidence'))}"
    yield f"{average}, mean of three seeds, within {max(took):.0f} minutes"


def experiments():
    for name in ("evidence", "head"):
        yield "| {} | {} | {} |".format(*map(four_digits, part(name)))
    yield "adds to the n-grams | {} | {} | {} |".format(*map(gain, seeds("imdb")))
    yield f"three seeds: {vectors()[0]}"
    names = (
        "first recipe",
        "second recipe",
        "third recipe",
        "unlabelled, n-grams six times as loud",
    )
    first, second, third, unlabelled = (four_digits(earlier_run(n)) for n in names)
    yield f"the first recipe ({first}), and the last row over four epochs"
    yield f"which was the default then ({second};"
    yield f"read once each, they have **{third}**"
    yield f"and has {unlabelled} too"
    recipes = (
        ("first recipe: regions and one encoder layer | round 1", first),
        ("both share one embedding table | round 2", second),
        ("encoder scaled by 0.1 | round 3", third),
        ("fine-tuned; not the default | round 6", four_digits(results("imdb-mlm-classifier"))),
    )
    for name, found in recipes:
        yield f"{name} | {found} |"
    for name in ("imdb", "imdb-unlabelled"):
        yield f"| {', '.join(map(four_digits, seeds(name)))} |"
    kept = results("recipe-rounds")["tenth_round"]["distilled"][-1]
    (ngrams,) = [
        r for r in results("recipe-rounds")["tenth_round"]["sums"] if r["name"] == "n-grams"
    ]
    points = (100 * (kept[s]["alone"]["accuracy"] - ngrams[s]["accuracy"]) for s in ("1", "2"))
    yield "by {:.1f} and {:.1f} points of accuracy".format(*points)


def finetuning():
    yield results("finetune-imdb")["command"]


def translation():
    for name in ("multi30k", "multi30k-fr"):
        found = results(name)
        yield found["bleu_signature"]
        yield found["command"].replace("--target fr", "--target de")
    yield f"| here | {results('multi30k')['bleu']:.2f} |"


def unlabelled():
    runs, before = seeds("imdb-unlabelled"), seeds("imdb")
    average, _ = vectors()
    few, few_unlabelled = results("imdb-few"), results("imdb-few-unlabelled")

    def apart(some, others):
        pairs = zip(some, others, strict=True)
        return 100 * mean(a["test_accuracy"] - b["test_accuracy"] for a, b in pairs)

    yield f"**{apart(runs, before):.2f} points**"
    yield f"{runs[0]['data']['unlabelled']:,} are left with seed 0"
    yield f"**{average}** on average, {apart(seeds('imdb-vectors'), runs):.2f} points above"
    yield f"{max(run['peak_memory_gib'] for run in seeds('imdb-vectors')):.1f} GiB at most"
    yield f"the linear baseline ({accuracy(results('imdb')['baseline'])})"
    yield f"has less ({of_three(percent, part('head'))}% by three"
    yield f"{minutes(few)} and {minutes(few_unlabelled)} minutes"


def pretraining():
    yield f"missed by {100 * (0.925 - results('imdb-mlm-classifier')['test_accuracy']):.2f} points"
    encoder, found = results("sample-mlm"), results("sample-mlm-classifier")
    yield f"the held-out loss is {encoder['held_out_loss']:.3f} nats"
    yield f"a unigram model has {encoder['unigram_loss']:.3f}."
    yield f"a test accuracy of {accuracy(found)} ({interval(found)})"
    yield f"the linear model {accuracy(found['baseline'])}."
    seconds = (f"{run['train_seconds']:.0f} s" for run in (encoder, found))
    yield " and ".join(seconds) + " of training"


SAYS = {
    README: readme,
    DOCS / "status.md": status,
    **{
        DOCS / f"research/{says.__name__}.md": says
        for says in (experiments, finetuning, pretraining, translation, unlabelled)
    },
}


@pytest.mark.parametrize("page", SAYS, ids=lambda page: page.name)
def test_the_page_says_what_was_measured(page):
    text = " ".join(page.read_text(encoding="utf-8").split())
    said = list(SAYS[page]())
    assert said and [sentence for sentence in said if " ".join(sentence.split()) not in text] == []


def test_the_results_are_what_the_sentences_around_the_numbers_say():
    _, tutorial = race()
    assert max(p["accuracy"] for p in tutorial) < 0.8074 and tutorial[-1]["seconds"] > 1800
    best, few = results("imdb-vectors"), results("imdb-few")
    assert "Xeon" in results("imdb")["machine"]["processor"]
    assert "EPYC" in best["machine"]["processor"]
    assert all(run["test"]["calibration_error"] <= 0.02 for run in (*seeds("imdb"), best))
    for name in ("imdb", "imdb-vectors", "imdb-unlabelled"):
        assert [run["seed"] for run in seeds(name)] == [0, 1, 2]
    linear = results("imdb")["baseline"]["test_accuracy"]
    again = [results(f"imdb-vectors-again-seed-{seed}") for seed in (1, 2)]
    assert all(run["alone"]["head"]["test_accuracy"] > linear for run in again)
    assert few["data"]["train"] + few["data"]["validation"] == 1000
    assert few["weights"]["head"] == 0.05  # as little as may be
    assert sum(minutes(results(name)) for name in ("imdb-mlm", "imdb-mlm-classifier")) < 120


def test_what_is_kept_of_the_ninth_and_tenth_round_is_the_best_by_itself():
    found = results("recipe-rounds")
    ninth = found["ninth_round"]["distilled"]
    assert min(ninth, key=lambda row: row["with_network"]["log_loss"]) is ninth[-1]
    rows = found["tenth_round"]["distilled"]
    for seed in ("1", "2"):
        assert (
            min(rows, key=lambda row: row[seed]["alone"]["log_loss"])["name"] == ninth[-1]["name"]
        )
        assert max(rows, key=lambda row: row[seed]["alone"]["auc"])["name"] == ninth[-1]["name"]
