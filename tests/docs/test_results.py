"""The numbers of the written pages are those of the files of results."""

import copy
import sys
from statistics import mean

import pytest

from bench.pages.race import OURS, TUTORIAL
from docs.build import results as stored
from docs.build import tables
from docs.build.filled import TABLES, TEXTS, filled
from docs.build.results import (
    DOCS,
    accuracy,
    earlier_run,
    fitting_seconds,
    interval,
    results,
    seeds,
)
from docs.build.tables import PAGES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_table_is_out_of_date(page):
    """`python -m docs.build.tables` changes nothing."""
    text = page.read_text(encoding="utf-8")
    assert filled(text) == text


def test_every_table_and_text_is_on_one_page_and_changes_with_its_results():
    pages = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    assert all(pages.count(f"<!-- table: {name} -->\n|") == 1 for name in TABLES)
    assert all(pages.count(f"<!-- filled: {name} -->\n") == 1 for name in TEXTS)
    assert filled("<!-- filled: writing -->\n1 nat.<!-- end -->\nAfter it.").count("nats") == 1
    page = "<!-- table: few labels -->\n| a |\n| --- |\n| 1 |\n\nAfter it."
    assert filled(page).endswith("%** |\n\nAfter it.") and "| a |" not in filled(page)


@pytest.mark.parametrize("lacks", ["Hugging Face", "a batch of 8"])
def test_a_number_that_the_results_lack_is_one_line_and_no_page_is_written(
    lacks, monkeypatch, capsys
):
    generation = copy.deepcopy(results("generation"))
    for row in generation["decode"]:
        row["ratios"].pop(lacks, None)
    if lacks == "a batch of 8":
        generation["decode"] = [row for row in generation["decode"] if row["batch"] != 8]
    contents = stored._contents
    monkeypatch.setattr(
        stored, "_contents", lambda name: generation if name == "generation" else contents(name)
    )
    monkeypatch.setattr(tables, "write_text", lambda *_: pytest.fail("a page was written"))
    monkeypatch.setattr(sys, "argv", ["tables"])
    assert tables.main() == 2
    said = capsys.readouterr().err
    assert said.startswith("error: the text 'measured' cites ") and said.count("\n") == 1


# Sentences ----------------------------------------------------------------------------------------


def percent(run):
    return f"{100 * run['test_accuracy']:.2f}"


def four_digits(run):
    return f"{run['test_accuracy']:.4f}"


def gain(run):
    """The gain of the whole classifier over its n-grams, in points."""
    return f"{100 * (run['test_accuracy'] - run['alone']['evidence']['test_accuracy']):.2f}"


def of_three(of, runs):
    return "{}, {} and {}".format(*map(of, runs))


def part(name):
    return [run["alone"][name] for run in seeds("imdb")]


def minutes(run):
    return round(run["train_seconds"] / 60)


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
    DOCS / f"research/{says.__name__}.md": says
    for says in (experiments, finetuning, pretraining, translation, unlabelled)
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
