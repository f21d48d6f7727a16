"""Pages are well-formed and self-contained, hold every value that they should, and let no markup
in; text fits.
"""

import base64
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser

import numpy as np
import pytest

from transformer_jax.cli import html as pages
from transformer_jax.cli.matrix_text import clip, number, show_step, width
from transformer_jax.walkthrough.step import Step

RANDOM = np.random.default_rng(0)
MARKUP = '<script>alert("1")</script>&\'<b>'
VOID = {"meta", "wbr"}


class Page(HTMLParser):
    """The elements that a browser would find; one closed in the wrong order is an error."""

    def __init__(self, html):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.attributes, self.text, self.cells = [], [], [], [], []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)
        if tag == "td":
            self.cells.append(dict(attributes))

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def step(array, axes="T D", rows=(), columns=(), note=""):
    return Step("Q", "X W_Q", np.asarray(array), axes, rows, columns, note)


def whole_page():
    array = RANDOM.normal(size=(3, 4)).astype(np.float32)
    return array, pages.page(
        f"title {MARKUP}",
        pages.paragraph(MARKUP),
        pages.heading(MARKUP),
        pages.step_section(step(array, rows=(MARKUP, "世界", "x"), note=MARKUP)),
        pages.text_table(["a", MARKUP], [["1", MARKUP]]),
        pages.marked_text([(MARKUP, 1.0, False), (MARKUP, None, False), ("x", -0.5, True)]),
        pages.heat_map(np.eye(3, dtype=np.float32), [MARKUP, "b", "c"], MARKUP),
        pages.scatter(array[:, :2], [MARKUP, "b", "c"], MARKUP),
    )


def test_a_page_is_well_formed_and_fetches_nothing():
    page = Page(whole_page()[1])
    assert not {"script", "link", "iframe", "object", "b"} & set(page.tags)
    for name, value in page.attributes:
        assert not name.startswith("on"), name
        if name in ("src", "href"):
            assert value.startswith("data:image/png;base64,")
    assert "url(" not in pages.STYLE and "@import" not in pages.STYLE


def test_text_of_a_user_stays_text():
    _, html = whole_page()
    assert "alert" in html and "<script" not in html and "<b>" not in html
    shown = " ".join(Page(html).text)
    assert (
        shown.count('alert("1")') >= 9
    )  # title twice, paragraph, heading, label, note, cells, text, captions


def test_a_table_holds_every_value_and_colours_by_sign_and_size():
    matrix = np.array([[0.5, -1.0], [0.0, -np.inf]])
    page = Page(pages.table(matrix, ("a", "b"), ("x", "y")))
    values = [text for text in page.text if text.strip()]
    assert values == [
        "x",
        "y",
        "a",
        "0.500",
        "-1.000",
        "b",
        "0.000",
        "-∞",
        "colour: -1.000 to 1.000",
    ]
    corner, half, largest, zero, infinite = page.cells
    assert half == {"style": "--a:50%"}
    assert largest == {"class": "m", "style": "--a:100%"}
    assert (corner, zero, infinite) == ({"class": "gap"}, {}, {})


def test_whole_numbers_have_no_colour():
    page = Page(pages.table(np.array([[5, 70000]])))
    assert page.cells == [{}, {}]


def test_a_large_matrix_is_cut_and_says_so():
    matrix = np.arange(200.0 * 30).reshape(200, 30)
    page = Page(pages.table(matrix, [f"r{i}" for i in range(200)]))
    text = " ".join(page.text)
    assert "the first and last 12 of 200 rows and the first and last 12 of 30 columns" in text
    assert "r11" in text and "r188" in text and "r12 " not in text
    assert len(page.cells) == 25 * 25


def decoded(data):
    """The alpha of a PNG as `png` writes it."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    wide, high = (int.from_bytes(data[16 + 4 * i : 20 + 4 * i]) for i in range(2))
    size = int.from_bytes(data[33:37])
    lines = np.frombuffer(zlib.decompress(data[41 : 41 + size]), np.uint8).reshape(
        high, 1 + 4 * wide
    )
    return lines[:, 1:].reshape(high, wide, 4)[..., 3]


def test_a_map_is_drawn_a_pixel_a_weight():
    weights = RANDOM.dirichlet(np.ones(5), 5)
    html = pages.heat_map(weights, list("abcde"), "head")
    (picture,) = re.findall(r"base64,([^\"]+)", html)
    alpha = decoded(base64.b64decode(picture))
    np.testing.assert_allclose(alpha / 255, weights / weights.max(), atol=1 / 255)
    assert [text for text in Page(html).text if text in "abcde"] == list("abcde") * 2


def test_pictures_are_read_by_another_library(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "x.png").write_bytes(pages.png(np.array([[0.0, 0.5, 1.0]])))
    with image.open(tmp_path / "x.png") as picture:
        picture.load()
        assert picture.size == (3, 1)
        assert [picture.getpixel((i, 0))[3] for i in range(3)] == [0, 128, 255]


def test_points_lie_inside_and_as_far_apart_as_they_should():
    points = RANDOM.normal(size=(20, 2)) * [3, 1]
    page = Page(pages.scatter(points, [f"w{i}" for i in range(20)], "points"))
    xs, ys = ([float(v) for k, v in page.attributes if k == key] for key in ("cx", "cy"))
    assert min(xs) > 0 and max(xs) < 560 and min(ys) > 0 and max(ys) < 420
    ratio = np.ptp(xs) / np.ptp(points[:, 0])
    np.testing.assert_allclose(np.ptp(ys) / np.ptp(points[:, 1]), ratio, rtol=1e-2)
    assert np.argmax(xs) == np.argmax(points[:, 0])
    assert np.argmin(ys) == np.argmax(points[:, 1])  # up is more


def test_equal_points_are_drawn_once():
    page = Page(pages.scatter(np.zeros((3, 2)), ["bank", "bank", "money"], "points"))
    assert page.tags.count("circle") == 2
    assert page.text.count("bank") == page.text.count("money") == 2  # tooltip and label


def test_labels_do_not_cover_each_other_and_every_point_has_its_tooltip():
    words = [f"word{i:02d}" for i in range(60)]
    page = Page(pages.scatter(RANDOM.normal(size=(60, 2)), words, "points"))
    assert all(word in page.text for word in words)
    values = [[float(v) for k, v in page.attributes if k == key] for key in ("x", "y")]
    places = list(zip(*values, strict=True))[1:]  # without the frame
    assert 15 < len(places) == page.tags.count("text") < 60
    for i, (x, y) in enumerate(places):
        for other_x, other_y in places[:i]:
            assert abs(x - other_x) > 6 * 7 or abs(y - other_y) > 9


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("word", 4, "word"),
        ("words", 4, "wor…"),
        ("世界世界", 6, "世界…"),
        ("e\u0301e\u0301e\u0301", 2, "e\u0301…"),
        ("a\nb", 3, "a b"),
    ],
)
def test_a_text_is_clipped_to_the_columns_that_there_are(text, most, shown):
    assert clip(text, most) == shown


STEPS = {
    "number": step(np.float64(3), ""),
    "row": step(np.arange(4.0), "D"),
    "one": step([[1.0]]),
    "heads": step(RANDOM.normal(size=(2, 3, 4)), "N T D", ("a", "b", "c")),
    "large": step(RANDOM.normal(size=(300, 300)), "T S", ("w",) * 300, ("w" * 40,) * 300),
    "wide labels": step(np.eye(2), "T S", ("世界世界世界世界世界", "e\u0301" * 20), ("👩", "\t\n")),
    "no rows": step(np.zeros((0, 3))),
    "nan": step([[np.nan, np.inf, -1.2e-05, 2097152.0, 1e30]]),
    "truths": step([[True, False]]),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_fits_a_terminal_of_100_columns_and_a_page(name):
    lines = list(show_step(STEPS[name]))
    assert max(map(width, lines)) <= 100
    assert len({width(line) for line in lines if line.startswith("  ") and "(" not in line}) <= 3
    Page(pages.page("x", pages.step_section(STEPS[name])))


def test_heads_are_shown_one_by_one():
    lines = list(show_step(STEPS["heads"]))
    assert [line.strip() for line in lines if "N =" in line] == ["N = 0", "N = 1"]
    assert "N = 1" in " ".join(Page(pages.step_section(STEPS["heads"])).text)


def test_columns_stand_under_each_other():
    _, header, *rows = show_step(
        step([[1.0, -2.5], [0.25, 1000.0]], "T S", ("世", "bb"), ("x", "y"))
    )
    assert header == "            x        y"
    assert rows == ["  世    1.000   -2.500", "  bb    0.250   1000.0"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0, "0.000"), (-0.0, "0.000"), (-1e-12, "-1.0e-12"), (0.00099999, "0.001"),
        (0.000518, "5.18e-04"), (999.9999, "1000.000"), (12345.67, "12345.7"),
        (2097152.0, "2097152"), (1e9, "1.00e+09"), (7, "7"), (np.True_, "1"), (np.nan, "nan"),
        (-np.inf, "-∞"), (np.float32(0.5), "0.500"), (np.int32(-3), "-3"),
    ],
)  # fmt: skip
def test_numbers_are_short_and_true(value, shown):
    assert number(value) == shown and len(shown) <= 8


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no browser here")
def test_a_browser_draws_the_page_and_nothing_sticks_out(tmp_path):
    """It is asked for the page as it stands after layout, where a style shows whether anything
    overflows.
    """
    (tmp_path / "page.html").write_text(whole_page()[1])
    quiet = (
        "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
        "--disable-background-networking --disable-component-update --window-size=800,2000"
    )
    command = [
        "chromium",
        *quiet.split(),
        f"--user-data-dir={tmp_path / 'profile'}",
        f"--screenshot={tmp_path / 'page.png'}",
        f"file://{tmp_path / 'page.html'}",
    ]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    pixels = pytest.importorskip("matplotlib.image").imread(tmp_path / "page.png")[..., :3]
    assert pixels.shape[:2] == (2000, 800)
    ink = (pixels != pixels[1, 1]).any(axis=-1)
    assert ink.any(axis=1).sum() > 600  # rows of pixels with anything on them
    assert not ink[:, :8].any() and not ink[:, 780:].any()  # the margins are free
    blue = (pixels[..., 2] > pixels[..., 0] + 0.2).sum()
    assert blue > 3 * 18 * 18 - 50  # the three full cells of the map at the least
