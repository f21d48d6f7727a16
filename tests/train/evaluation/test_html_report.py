"""The page of a run is whole, fetches nothing, lets no markup in, and has what it is made from."""

import json
import re

import numpy as np
import pytest

from tests.cli.test_html import MARKUP, Page
from train.evaluation import mistakes as mistakes_module
from train.evaluation.html_report import PAGE, page, sentence, write_page
from train.evaluation.metrics import score
from train.evaluation.mistakes import MISTAKES, confident_mistakes
from train.evaluation.report import write_report
from transformer_jax.serialization.run_folder import load_classifier

CLASSES = ("no", MARKUP)
RUN = "tests/data/run_folders/imdb"


def a_report(**changes):
    """A report of 10 texts: 8 right by ours, 5 by the baseline, whose names are markup."""
    probabilities = np.full((10, 2), [0.9, 0.1])
    part = {"test_accuracy": 0.7, "mcnemar": {"b": 1, "c": 0, "p_value": 1.0}}
    report = {
        "data": {"name": MARKUP, "source": "a file", "test": 10},
        "command": "python -m train.imdb --resume run",
        "earlier_commands": [f"python -m train.imdb --data '{MARKUP}'"],
        "test_accuracy": 0.8,
        "test_accuracy_interval": [0.49016, 0.94332],
        "test": score(probabilities, np.array([0] * 8 + [1] * 2), CLASSES),
        "baseline": {"name": "linear", "test_accuracy": 0.5, "seconds": 2.5},
        "mcnemar": {"b": 9, "c": 1, "p_value": 22 / 1024},
        "alone": {"head": part},
        "settings": {"fit": {"epochs": 3, "optimizer": {"b2": 0.99}}, "name": "fast"},
        "seed": 5,
    }
    return report | changes


MISTAKE = {
    "label": "no",
    "predicted": MARKUP,
    "probability": 0.975,
    "pieces": [["a ", None, False], [MARKUP, 0.5, True], ["dull", -1.0, False]],
}


@pytest.fixture
def run(tmp_path):
    """The files of a finished run that its page is made from."""
    write_report(tmp_path, a_report())
    lines = [{"step": i, "epoch": 0, "loss": 1 / i} for i in range(1, 9)]
    lines.append({"step": 8, "epoch": 1, "validation_accuracy": 0.5, "validation_loss": 1.0})
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (tmp_path / MISTAKES).write_text(json.dumps([MISTAKE]))
    return tmp_path


def test_the_page_is_well_formed_fetches_nothing_and_lets_no_markup_in(run):
    write_page(run, "")
    html = (run / PAGE).read_text(encoding="utf-8")
    found = Page(html)
    assert not {"script", "link", "img", "iframe", "object"} & set(found.tags)
    fetched = [value for name, value in found.attributes if name in ("src", "href", "xlink:href")]
    assert fetched and all(value.startswith("#") for value in fetched)
    assert "@import" not in html and not re.search(r"url\((?!#)", html)
    assert "".join(found.text).count(MARKUP) == 9
    ids = [value for name, value in found.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for value in fetched} <= set(ids)


def test_the_page_has_every_section(run):
    write_page(run, "")
    html = (run / PAGE).read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", html)
    assert headings == [
        "Compared with the baseline", "What each part does alone", "Training", "Confusion matrix",
        "Calibration", "The most confident mistakes", "How it was made", "Settings",
    ]  # fmt: skip
    assert html.count("<svg") == html.count('role="img" aria-label="') == 3
    text = " ".join(" ".join(Page(html.replace("<wbr>", "")).text).split())
    for part in (
        "network alone 70.00%", "fit.optimizer.b2 0.99", "seed 5", "(97.5%), but labelled no",
        "best: 50.00% (epoch 1)",
    ):  # fmt: skip
        assert part in text, part


def test_the_notes_are_a_list_and_those_on_classes_alerts_beside_the_scores_of_each_class(tmp_path):
    data = {"notes": ["first <note>", "few texts are of bad", "second"]}
    report = a_report(data=data, class_notes=["few texts are of bad"])
    html = page(report, tmp_path / "none", "", None)
    assert "<ul><li>first &lt;note&gt;</li><li>second</li></ul>" in html
    alert = '<p class="alert">few texts are of bad</p>\n<div class="wide">\n<table>\n<thead>'
    assert html.count("few texts are of bad") == 1 and alert in html
    assert html.index(alert) < html.index('<th scope="col">precision</th>')


def test_every_command_line_is_listed_the_first_one_first(run):
    write_page(run, "")
    text = "".join(Page((run / PAGE).read_text(encoding="utf-8")).text)
    first, last = f"python -m train.imdb --data '{MARKUP}'", "python -m train.imdb --resume run"
    assert f"{first}\n{last}" in text
    assert f"```sh\n{first}\n{last}\n```" in (run / "report.md").read_text(encoding="utf-8")


def test_plots_take_their_colours_from_the_style_of_the_page(run):
    write_page(run, "")
    drawings = re.findall("<svg.*?</svg>", (run / PAGE).read_text(encoding="utf-8"), re.DOTALL)
    for drawing in drawings:
        assert "var(--curve)" in drawing
        assert not re.search('#[0-9a-f]{6}[;"]', drawing)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "30.00 points above the linear baseline with 50.00% (McNemar p = 0.021)."),
        (
            {"mcnemar": {"p_value": 0.2}},
            "no significant difference from the linear baseline with 50.00% (McNemar p = 0.2).",
        ),
        ({"test_accuracy": 0.4}, "10.00 points below the linear baseline with 50.00%"),
        ({"mcnemar": {}}, "against the linear baseline with 50.00% (significance not tested)."),
        ({"baseline": {}}, "it was compared with no linear baseline."),
    ],
)
def test_the_result_is_one_sentence(changes, expected):
    found = sentence(a_report(**changes))
    assert "of the 10 test texts are classified correctly (95% interval 49.02 to 94.33%)" in found
    assert expected in found and found.count(". ") == 0


def test_a_report_without_an_accuracy_has_its_own_result_and_no_empty_section(tmp_path):
    html = page({"task": "Translation", "seed": 3}, tmp_path / "none", "12.5 BLEU", None)
    Page(html)
    assert "<p>Result: 12.5 BLEU.</p>" in html
    assert re.findall("<h2>(.*?)</h2>", html) == ["How it was made", "Settings"]


# The most confident mistakes


def chosen(labels, probabilities, texts=None, **options):
    trained = load_classifier(RUN)
    texts = [f"text {i}" for i in range(len(labels))] if texts is None else texts
    return confident_mistakes(
        trained, texts, np.array(labels), np.array(probabilities), **{"tokens": 0, **options}
    )


def test_the_most_probable_wrong_labels_come_first_and_at_most_twenty():
    sure = np.linspace(0.51, 0.99, 50)
    labels = np.arange(50) % 2  # every second one is right
    found = chosen(labels, np.stack([sure, 1 - sure], axis=1))
    assert len(found) == 20
    assert [each["probability"] for each in found] == sorted(sure[1::2], reverse=True)[:20]
    assert found[0]["pieces"] == [("text 49", None, False)]
    assert (found[0]["label"], found[0]["predicted"]) == ("positive", "negative")
    assert chosen([0, 0], [[0.9, 0.1]] * 2) == []


def test_words_have_values_while_there_are_tokens_to_compute():
    texts = ["the film was fine", "the film was dull"]
    found = chosen([0, 0], [[0.1, 0.9], [0.2, 0.8]], texts, tokens=2 * 32 * 16)
    values = [[piece[1] for piece in each["pieces"] if piece[1] is not None] for each in found]
    assert len(values[0]) == 4 and values[1] == []
    assert "".join(piece[0] for piece in found[0]["pieces"]) == texts[0]


def test_a_long_text_is_cut(monkeypatch):
    monkeypatch.setattr(mistakes_module, "CHARACTERS", 9)
    (found,) = chosen([0], [[0.1, 0.9]], ["a rather long text"])
    assert found["pieces"] == [("a rather  ...", None, False)]
    (found,) = chosen([0], [[0.1, 0.9]], ["a rather long text"], tokens=10**6)
    assert "".join(piece[0] for piece in found["pieces"]) == "a rather  ..."
