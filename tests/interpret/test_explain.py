"""`explain`: its numbers are those of `predict` and add up, on a terminal, pipe and page."""

import io
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx

from tests.cli.test_html import Page
from tests.helpers.run_folders import save_run
from transformer_jax.__main__ import main
from transformer_jax.cli.explain import coloured, report
from transformer_jax.cli.word_colours import BLUES, ORANGES, rgb
from transformer_jax.inference.classify import predict
from transformer_jax.interpret.attribution import Attribution
from transformer_jax.interpret.explain import Explanation, explain
from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    TextEncoderConfig,
)
from transformer_jax.models.text_classifier import TextClassifier
from transformer_jax.models.text_encoder import EncoderClassifier
from transformer_jax.nn.config import StackConfig
from transformer_jax.nn.parameters import AbstractRngs
from transformer_jax.parallel.axes import named_parameters
from transformer_jax.serialization.run_folder import load_classifier
from transformer_jax.serialization.specification import ClassifierSpec, EncoderClassifierSpec
from transformer_jax.text.pretrained_tokenizer import load_pretrained_tokenizer
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.text.words import Piece

TEXT = "A fine film, not a DULL one"
LEARNED = "a fine film, not a dull"
CLASSES = ("bad", "fair", "good")
STACK = StackConfig(num_layers=1, embed_dim=12, num_heads=2, hidden_dim=4)


def save(folder, kind, spec, tokenizer):
    shapes = nnx.state(nnx.eval_shape(lambda: kind(spec.config, rngs=AbstractRngs())), nnx.Param)
    random = np.random.default_rng(3)
    params = jax.tree.map(lambda leaf: random.standard_normal(leaf.shape, np.float32) / 2, shapes)
    folder.mkdir()
    save_run(folder, params, tokenizer, spec)


@pytest.fixture(scope="module")
def runs(tmp_path_factory, request):
    """Classifiers that have learned nothing: one of patches with an own vocabulary, one that was a
    published encoder.
    """
    folder = tmp_path_factory.mktemp("runs")
    own = train_tokenizer("word:100", [LEARNED])
    config = ClassifierConfig(
        own.vocab_size, 16, 3, STACK, region_width=3, region_features=5, patch_width=2
    )
    save(folder / "own", TextClassifier, ClassifierSpec(config, CLASSES, "head-tail", "x"), own)
    published = load_pretrained_tokenizer(
        request.config.rootpath / "tests/data/tokenizers/wordpiece"
    )
    config = EncoderClassifierConfig(TextEncoderConfig(published.vocab_size, 16, STACK), 3)
    spec = EncoderClassifierSpec(config, CLASSES, "head", "x", 16)
    save(folder / "published", EncoderClassifier, spec, published)
    return folder


@pytest.fixture(scope="module")
def own(runs):
    return load_classifier(runs / "own")


def lines(capsys, *arguments):
    assert main(["explain", *map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def values(found):
    return [piece.value for piece in found.pieces if piece.value is not None]


@pytest.mark.parametrize("name", ["own", "published"])
def test_every_class_has_the_probability_of_predict_and_numbers_that_add_up(name, runs):
    classifier = load_classifier(runs / name)
    (predicted,) = predict(classifier, [TEXT])
    for label in (None, *CLASSES):
        found = explain(classifier, TEXT, name=label)
        assert found.label == predicted.label and found.name == (label or predicted.label)
        assert found.probabilities == pytest.approx(predicted.probabilities, rel=1e-4)
        p, a = found.probabilities[found.name], found.attribution
        assert a.f_of_all == pytest.approx(np.log(p / (1 - p)), rel=1e-3, abs=1e-4)
        assert a.is_complete
        whole = sum(values(found)) + sum(value for _, value in found.frame)
        assert whole == pytest.approx(a.total) == pytest.approx(a.values.sum())
        assert [token for token, _ in found.frame] == ["[CLS]", "[SEP]"]
        assert "".join(piece.text for piece in found.pieces) == TEXT
        assert len(values(found)) == 8


def test_padding_to_a_given_length_changes_no_number(own):
    usual, longer = (explain(own, "a fine dull", length=length) for length in (None, 13))
    values = [[piece.value for piece in found.pieces] for found in (usual, longer)]
    np.testing.assert_allclose(*([v for v in row if v is not None] for row in values), atol=1e-4)
    for length in (3, 17):
        with pytest.raises(ValueError, match=rf"length must be 5 .* to 16 .*; got {length}$"):
            explain(own, "a fine dull", length=length)


def test_a_word_that_the_decision_hangs_on_has_the_largest_number(own):
    """Weights by hand: regions of one that see "dull" alone, and a head that reads them."""
    graph, params = nnx.split(own.model, nnx.Param)
    leaves = []
    for path, leaf in named_parameters(params):
        leaf = np.zeros(leaf.shape, np.float32)
        if path == "regions.region.embedding":
            leaf[1, own.tokenizer.id_of("dull"), 0] = 1
        if path == "head.kernel":
            leaf[0, CLASSES.index("bad")] = 3
        leaves.append(jax.numpy.asarray(leaf))
    by_hand = replace(
        own, model=nnx.merge(graph, jax.tree.unflatten(jax.tree.structure(params), leaves))
    )
    found = explain(by_hand, TEXT)
    assert found.label == found.name == "bad"
    numbers = {piece.text: piece.value for piece in found.pieces if piece.value is not None}
    assert numbers.pop("DULL") == pytest.approx(3, abs=1e-5)
    assert [*numbers.values(), *(value for _, value in found.frame)] == pytest.approx([0] * 9)
    against = explain(by_hand, TEXT, name="good")
    (worst,) = (piece for piece in against.pieces if piece.value and abs(piece.value) > 1e-6)
    # log(1 / (1 + e^3)) at the end, log(1 / 2) at the beginning.
    assert worst.text == "DULL"
    assert worst.value == pytest.approx(-np.log(1 + np.exp(3)) + np.log(2), rel=1e-3)


def explained(pieces, **changes):
    a = Attribution(np.array([1.0, -0.5]), 1.5, 1.0, 8, 0.01)
    parts = {"label": "good", "name": "good", "probabilities": {"good": 0.75, "bad": 0.25}}
    parts |= {"frame": [("[CLS]", 0.25)], "attribution": a, "tokens_cut": 0}
    return Explanation(pieces=pieces, **(parts | changes))


PIECES = [
    Piece("Great", 2.0),
    Piece(" "),
    Piece("it", 0.1),
    Piece("\n"),
    Piece("is<br />\nnot", -1.0),
    Piece(" \x1b[31m"),
    Piece("zz", 0.0, True),
    Piece("good", -2.0, True),
]


def test_half_of_the_words_out_of_the_vocabulary_are_most_of_them():
    assert not explained(PIECES).is_mostly_unknown  # 2 of 5 with a value
    assert explained(PIECES[-2:] + PIECES[:3]).is_mostly_unknown  # 2 of 4
    assert not explained([]).is_mostly_unknown


def test_colours_are_green_for_and_red_against_and_full_for_the_largest():
    shown = coloured(explained(PIECES))
    ink = "\x1b[38;5;16m"
    assert shown == (
        f"{ink}\x1b[48;5;{BLUES[4]}mGreat\x1b[0m it\n"
        f"{ink}\x1b[48;5;{ORANGES[1]}mis<br />\x1b[0m\n{ink}\x1b[48;5;{ORANGES[1]}mnot\x1b[0m"
        f"  [31m\x1b[4mzz\x1b[0m\x1b[4m{ink}\x1b[48;5;{ORANGES[4]}mgood\x1b[0m"
    )


def test_the_report_has_the_strongest_words_of_both_kinds_and_what_is_missing():
    shown = list(report(explained(PIECES), 1, in_colour=False))
    assert shown == [
        "good        75.0%",
        "",
        "for good         |  against good",
        "  +2.000  Great  |    -2.000  good (unknown)",
        "",
        "special tokens: [CLS] +0.250",
        "log odds of good: text 1.500, empty baseline 1.000; "
        "attributions sum to 0.500 of 0.500 (gap +0.0e+00, 8 nodes)",
    ]
    short = Attribution(np.array([1.0]), 1.5, 0.0, 8, 0.01)
    shown = list(report(explained(PIECES, attribution=short, name="bad"), 5, in_colour=False))
    assert shown[1] == "bad         25.0%  (explained)"
    assert any("sum to 1.000 of 1.500 (gap -5.0e-01, 8 nodes)" in line for line in shown)
    assert shown[-1].startswith("NOT COMPLETE: the gap is above 1% after 8 nodes")
    shown = list(report(explained([Piece(" ")]), 5, in_colour=False))
    assert "no word has a nonzero attribution" in shown


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("environment", "is_terminal", "has_colour"),
    [
        ({}, True, True),
        ({"NO_COLOR": ""}, True, True),  # by no-color.org: "and not an empty string"
        ({"NO_COLOR": "1"}, True, False),
        ({"TERM": "dumb"}, True, False),
        ({}, False, False),
    ],
)
def test_colours_are_for_terminals_where_nobody_asked_for_none(
    environment, is_terminal, has_colour, runs, monkeypatch
):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    out = Terminal() if is_terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["explain", str(runs / "own"), TEXT]) == 0
    assert ("\x1b[48;5;" in out.getvalue()) == has_colour
    # The table stands there either way.
    assert re.search(r"^  [+-]\d\.\d{3}  DULL|  [+-]\d\.\d{3}  DULL$", out.getvalue(), re.MULTILINE)


def test_a_text_that_is_cut_says_so_and_unknown_words_are_named(runs, capsys):
    shown = lines(capsys, runs / "own", "film " * 30 + "zebra", "--top", 20)
    assert any("17 tokens of the text were not read" in line for line in shown)
    assert any("zebra (unknown)" in line for line in shown)
    assert sum(bool(re.search(r"[+-]\d\.\d{3}  film", line)) for line in shown) > 4


def test_a_limit_that_is_too_low_is_told_and_a_higher_one_helps(runs, capsys):
    rough = [lines(capsys, runs / "own", TEXT, "--class", name, "--steps", 8) for name in CLASSES]
    told = [shown for shown in rough if shown[-1].startswith("NOT COMPLETE")]
    assert told
    for name in CLASSES:
        assert not any(
            "NOT COMPLETE" in line for line in lines(capsys, runs / "own", TEXT, "--class", name)
        )


ODD = {
    "empty": "",
    "blank": " \t\n\u2003",
    "markup": "<script>alert('1')</script> & <b>film</b>",
    "100,000 words": "film " * 100_000,
    "one word of 100,000 letters": "x" * 100_000,
    "beyond the basic plane": "😀👩‍👩‍👧🇫🇷 𝒳 \U0010ffff e\u0301 世界",
    "half a character": "film \ud83d \udcff",
    "controls": "film\x1b[31m \x00dull\x85\u2028fine",
    "special tokens": "[PAD] [CLS] [SEP] film",
}


@pytest.mark.parametrize("text", ODD.values(), ids=ODD)
@pytest.mark.parametrize("name", ["own", "published"])
def test_odd_texts_are_explained_and_their_pages_let_no_markup_in(
    name, text, runs, capsys, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shown = lines(capsys, runs / name, text, "--html", "x.html")
    assert not any("\x1b" in line or "nan" in line for line in shown)
    html = Path("x.html").read_text(encoding="utf-8")
    page = Page(html)
    assert not {"script", "b"} & set(page.tags)
    assert "<script" not in html and not re.search(r"\bnan\b", html)
    if text == ODD["markup"]:
        assert "<script>alert(" in "".join(page.text)


def test_a_page_has_the_text_with_a_colour_for_every_word(own, runs, capsys, tmp_path):
    text = "A fine\n\nfilm, not <b>zebra</b>"
    lines(capsys, runs / "own", text, "--html", tmp_path / "x.html")
    html = (tmp_path / "x.html").read_text(encoding="utf-8")
    body = html[html.index('<p class="text">') : html.index("</p>", html.index('class="text"'))]
    assert "".join(Page(body + "</p>").text) == text
    found = explain(own, text)
    marks = re.findall(
        r'<mark( class="u")?(?: style="background: rgb(.*?)")? title="([^"]+)">', body
    )
    assert len(marks) == len(values(found))
    for (kind, colour, title), piece in zip(
        marks, (piece for piece in found.pieces if piece.value is not None), strict=True
    ):
        level = round(5 * abs(piece.value) / found.largest)
        colours = BLUES if piece.value > 0 else ORANGES
        assert colour == (str(rgb(colours[level - 1])) if level else "")
        assert ("u" in kind) == piece.is_unknown
        assert title == f"{piece.value:+.3f}"
    assert {colour for _, colour, _ in marks} >= {"", str(rgb(ORANGES[4]))}
    assert "attributions sum to" in html and "special tokens: [CLS]" in html


def test_a_dash_is_standard_input_and_what_it_says_is_the_same(runs, capsys, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(f"{TEXT}\n".encode())))
    assert lines(capsys, runs / "own", "-") == lines(capsys, runs / "own", TEXT)


MISTAKES = [
    (["nowhere", "a"], "nowhere is not a run folder"),
    (["own", "a", "--class", "god"], "there is no class 'god'; the classes are bad, fair, good"),
    (["own", "a", "--class", "x" * 9999], "there is no class 'xxx"),
    (["own", "a", "--top", "0"], "--top must be 1 or more; got 0"),
    (["own", "a", "--steps", "7"], "--steps must be 8 to 4096; got 7"),
    (["own", "a", "--steps", "99999"], "--steps must be 8 to 4096; got 99999"),
    (["own", "a", "--html", "nowhere/x"], "nowhere/x cannot be written"),
    (["own", "a", "--html", "own"], "own cannot be written: Is a directory"),
    (["own", "-"], "standard input, line 1: byte 0xe4 is not UTF-8"),
]


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(("call", "message"), MISTAKES, ids=[" ".join(c)[:60] for c, _ in MISTAKES])
def test_a_mistake_is_one_line_and_leaves_nothing(call, message, runs, capsys, monkeypatch):
    monkeypatch.chdir(runs)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"b\xe4d")))
    before = sorted(runs.rglob("*"))
    assert main(["explain", *call]) == 2
    out, err = capsys.readouterr()
    assert out == "" and message in err and err.count("\n") == 1 and len(err) < 300
    assert sorted(runs.rglob("*")) == before
    assert json.loads((runs / "own/config.json").read_text())
