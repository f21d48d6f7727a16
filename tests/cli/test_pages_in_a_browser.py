"""The pages of the commands are read in a browser: on a phone, in the light and in the dark."""

import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.helpers.browser import PHONE, started
from train.evaluation.html_report import write_page
from transformer_jax.__main__ import main
from transformer_jax.cli import explain
from transformer_jax.cli.word_colours import BLUES

pytestmark = pytest.mark.slow

RUNS = Path(__file__).parents[1] / "data" / "run_folders"
TEXT = f"The film was quite superb, <b>lovely</b> {'wide' * 40}; music dull, cast awful, plot fine"


def written(*command: str) -> Callable[[Path], None]:
    """Return a maker of a page: the command with --html."""

    def make(page: Path) -> None:
        assert main([*command, "--html", str(page)]) == 0

    return make


def report(page: Path) -> None:
    """Write the page of a run that has curves, mistakes and a baseline."""
    run = shutil.copytree(RUNS / "imdb", page.parent / "run")
    found = json.loads((run / "report.json").read_text()) | {
        "baseline": {
            "name": "TF-IDF (words and bigrams) + logistic regression",
            "test_accuracy": 0.5,
            "seconds": 2.5,
        },
        "mcnemar": {"b": 9, "c": 1, "p_value": 0.02},
        "command": f"python -m train.imdb --data {'folder/' * 40}",
        "class_notes": ["fewer than 5% of the training texts are of neutral"],
    }
    found["data"]["notes"] = ["dropped 1 row of reviews.csv " * 20, f"{'wide' * 40}"]
    found["settings"]["fit"]["optimizer"]["a_name_longer_than_any_other"] = "wide" * 40
    (run / "report.json").write_text(json.dumps(found))
    steps = [{"step": i, "epoch": 0, "loss": 1 / i} for i in range(1, 9)]
    steps.append({"step": 8, "epoch": 1, "validation_accuracy": 0.5, "validation_loss": 1.0})
    (run / "metrics.jsonl").write_text("\n".join(map(json.dumps, steps)))
    pieces = [("<b>Fine</b>", 1.0, False), (f" {'wide' * 40} ", None, False), ("dull", -0.5, True)]
    mistake = {"label": "negative", "predicted": "positive", "probability": 0.9, "pieces": pieces}
    (run / "mistakes.json").write_text(json.dumps([mistake] * 2))
    write_page(run, "")
    (run / "report.html").rename(page)


# Every page that a user gets; each is made by a function of the path to write.
PAGES = {
    "attention, patches": written("attention", str(RUNS / "imdb"), TEXT),
    "explain": written("explain", str(RUNS / "imdb"), TEXT),
    "walk": written("walk", "money bank grows " * 12, "--beside", "river bank flows"),
    "walk, run": written("walk", TEXT, "--run", str(RUNS / "imdb")),
    "walk, worked": written("walk", "--worked", "cat_sat"),
    "report": report,
}


@pytest.fixture(scope="module")
def browser():
    with started() as browser:
        yield browser


@pytest.fixture(scope="module")
def page_of(tmp_path_factory):
    """Return the address of a page by its name; each is written once for all tests of this file."""

    @functools.cache
    def address(name: str) -> str:
        path = tmp_path_factory.mktemp("page") / "page.html"
        PAGES[name](path)
        return path.as_uri()

    return address


@pytest.fixture(scope="module", params=PAGES)
def page(request, browser, page_of):
    return page_of(request.param)


def test_the_page_says_nothing_on_the_console_and_fetches_nothing(browser, page):
    visit = browser.open(page)
    assert visit.complaints() == []
    assert visit.requests() == {page}


def test_no_text_is_wider_than_a_phone(browser, page):
    visit = browser.open(page)
    assert [text for text in visit.texts() if text["width"] > PHONE[0]] == []
    assert visit.width <= PHONE[0]  # what is wider scrolls in a box of its own


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_can_be_read(browser, page, scheme):
    """The contrast of WCAG 2.2, level AA: 4.5."""
    texts = browser.open(page, scheme).texts()
    assert len(texts) > 10
    assert [text for text in texts if text["contrast"] < 4.5] == []
    is_dark = sum(texts[0]["background"]) < 3 * 128
    assert is_dark == (scheme == "dark")


@pytest.mark.parametrize("screen", [PHONE, (1200, 800)], ids=["phone", "desk"])
def test_no_name_in_the_tables_of_a_report_is_broken(browser, page_of, screen):
    visit = browser.open(page_of("report"), screen=screen)
    assert visit.broken_words(".facts td:first-child") == []
    assert visit.width <= screen[0]


def test_words_have_the_colours_that_they_have_in_a_terminal(
    browser, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(explain, "wants_colour", lambda: True)
    path = tmp_path / "words.html"
    assert main(["explain", str(RUNS / "imdb"), TEXT, "--html", str(path)]) == 0
    printed = re.findall(r"\x1b\[38;5;16m\x1b\[48;5;(\d+)m([^\x1b]+)", capsys.readouterr().out)
    assert {int(colour) in BLUES for colour, _ in printed} == {True, False}
    for scheme in ("light", "dark"):
        shown = [
            (text["background"], text["text"])
            for text in browser.open(path.as_uri(), scheme).texts()
            if text["tag"] == "mark" and text["ink"] == [0, 0, 0]
        ]
        assert shown == [(levels(int(colour)), word) for colour, word in printed]


def levels(colour: int) -> list[int]:
    """Red, green and blue of a terminal of 256 colours, from its cube of 6 x 6 x 6."""
    return [(0, 95, 135, 175, 215, 255)[(colour - 16) // 6**i % 6] for i in (2, 1, 0)]
