"""Matrices, attention maps and scatter plots as one self-contained HTML page.

A page has no script, fetches nothing, and follows the light or dark mode of the browser. Signed
values are coloured from orange (negative) to blue (positive), values without a sign from no colour
to blue. The functions of this file, and no others, escape the text of users.
"""

import base64
import math
import struct
import zlib
from collections.abc import Sequence
from html import escape as _escape

import numpy as np

from transformer_jax.cli.matrix_text import clip, elision, matrices, number, shown, width
from transformer_jax.cli.word_colours import colour_of, rgb
from transformer_jax.walkthrough.step import Step

ROWS, COLUMNS = 24, 24  # shown in a table; a larger matrix shows its first and last ones
NAMED = 48  # a map of at most this many rows labels every row, a larger one every few rows

STYLE = """
:root { color-scheme: light dark; --page: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d0d7de;
  --plus: #6cb0ff; --minus: #ffa45c; --curve: #1f5fa8; --pale: #9fc2e8; --mark: #c22f43; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --ink: #e6e8ea; --soft: #9aa4ae;
  --line: #353b42; --plus: #1f5fae; --minus: #9c4d0c; --curve: #7db3f0; --pale: #34577e;
  --mark: #ff8896; } }
body { background: var(--page); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
  margin: 2rem auto; padding: 0 1rem; max-width: 76rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .3rem; }
h1, h2, figcaption { overflow-wrap: anywhere; }
p { margin: .3rem 0; max-width: 48rem; overflow-wrap: anywhere; }
.soft, figcaption { color: var(--soft); }
.wide { overflow-x: auto; } figure { margin: 1rem 0; display: inline-block; vertical-align: top; }
table { border-collapse: collapse; font: 13px/1.4 ui-monospace, monospace; margin: .4rem 0; }
td, th { padding: .15rem .5rem; text-align: right; white-space: nowrap;
  border: 1px solid var(--line); font-weight: 400; }
th { color: var(--soft); border: 0; max-width: 11rem; overflow: hidden; text-overflow: ellipsis; }
thead th { vertical-align: bottom; }
td { background: color-mix(in srgb, var(--plus) var(--a, 0%), var(--page)); }
td.m { background: color-mix(in srgb, var(--minus) var(--a, 0%), var(--page)); }
td.gap { border: 0; }
mark { background: none; color: inherit; } mark[style] { color: #000; }
mark.u { text-decoration: underline dotted; } .text { white-space: pre-wrap; }
code { font: 14px ui-monospace, monospace; }
pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; }
svg text { fill: var(--ink); font: 12px ui-monospace, monospace; }
svg .axis { stroke: var(--line); fill: none; }
svg circle { fill: #3b82f6; } svg image { image-rendering: pixelated; }
.facts td { white-space: normal; text-align: left; overflow-wrap: anywhere; vertical-align: top; }
.facts td:first-child { overflow-wrap: normal; min-width: 6rem; }
@media (min-width: 40rem) { .facts td:first-child { white-space: nowrap; }
  .facts wbr { display: none; } }
.facts ul { margin: 0; padding-left: 1.2rem; }
.models td:first-child { white-space: normal; text-align: left; min-width: 8rem; }
.case { margin: .9rem 0; } .alert { border: 2px solid var(--mark); padding: .3rem .6rem; }
"""


def escape(text: str) -> str:
    """Escape a text for HTML.

    Lone surrogates, which cannot be written to a file, become "?". Control characters become
    spaces.
    """
    text = text.encode("utf-8", "replace").decode()
    return _escape("".join(c if c.isprintable() or c == " " else " " for c in text))


def escape_lines(text: str) -> str:
    """Escape a text for HTML and keep its line breaks."""
    return "\n".join(map(escape, text.split("\n")))


def page(title: str, *sections: str) -> str:
    """Format a complete HTML document from a title (text) and sections (HTML)."""
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width">\n<title>{escape(title)}</title>\n'
        f"<style>{STYLE}</style>\n</head>\n<body>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(sections)
        + "\n</body>\n</html>\n"
    )


def paragraph(text: str, style: str = "") -> str:
    return f'<p class="{style}">{escape(text)}</p>' if style else f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    return f"<h2>{escape(text)}</h2>"


def step_section(step: Step) -> str:
    """Format a step as HTML: name, equation and shape; the matrix as a coloured table; the note."""
    shape = " × ".join(map(str, step.array.shape)) or "a number"
    axes = f"[{step.axes}] " if step.axes else ""
    parts = [
        heading(step.name),
        f"<p><code>{escape(step.name)} = {escape(step.equation)}</code> "
        f'<span class="soft">{escape(axes + shape)}</span></p>',
    ]
    for title, matrix in matrices(step):
        if title:
            parts.append(paragraph(title))
        parts.append(table(matrix, step.rows, step.columns))
    if step.note:
        parts.append(paragraph(step.note))
    return "\n".join(["<section>", *parts, "</section>"])


def table(matrix: np.ndarray, rows: Sequence[str] = (), columns: Sequence[str] = ()) -> str:
    """Format a matrix as an HTML table of values, each on a background coloured by its value.

    Integers have no colour, because they are ids or counts.
    """
    down, across = shown(matrix.shape[0], ROWS), shown(matrix.shape[1], COLUMNS)
    largest, low = _scale(matrix)
    lines = ['<div class="wide">', "<table>"]
    if columns:
        head = "".join(f'<th scope="col">{_label(columns, j)}</th>' for j in across)
        corner = '<td class="gap"></td>' if rows else ""
        lines.append(f"<thead><tr>{corner}{head}</tr></thead>")
    lines.append("<tbody>")
    for i in down:
        head = f'<th scope="row">{_label(rows, i)}</th>' if rows else ""
        cells = (
            '<td class="gap">…</td>' if i is None or j is None else _cell(matrix[i, j], largest)
            for j in across
        )
        lines.append(f"<tr>{head}{''.join(cells)}</tr>")
    lines += ["</tbody>", "</table>", "</div>"]
    notes = [elision(matrix.shape, ROWS, COLUMNS)]
    if largest:
        notes.append(f"colour: {number(low)} to {number(largest)}")
    if any(notes):
        lines.append(paragraph("; ".join(filter(None, notes)), "soft"))
    return "\n".join(lines)


def details(summary: str, text: str) -> str:
    """Format a collapsible section: a summary (HTML), and a text whose line breaks are kept."""
    return f"<details><summary>{summary}</summary><pre>{escape_lines(text)}</pre></details>"


def text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format a table of text without colours."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return (
        f'<div class="wide">\n<table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{body}\n</tbody>\n</table>\n</div>"
    )


def marked_text(pieces: Sequence[tuple[str, float | None, bool]]) -> str:
    """Format a text from its pieces (text, value, is unknown), with its line breaks.

    A piece with a value has the background that it has in a terminal (`word_colours`). A dotted
    line underlines unknown pieces.
    """
    largest = max((abs(value) for _, value, _ in pieces if value is not None), default=0.0)
    return f'<p class="text">{"".join(_mark(*piece, largest) for piece in pieces)}</p>'


def heat_map(weights: np.ndarray, labels: Sequence[str], title: str) -> str:
    """Draw an attention map as a picture, with queries down and keys across.

    A larger weight has a deeper colour.
    """
    size = len(weights)
    cell = 18 if size <= NAMED else max(3, 720 // size)
    every = 1 if size <= NAMED else -(-14 // cell)
    names = {i: clip(labels[i], 14) for i in range(0, size, every)}
    left = top = math.ceil(7.5 * max(map(width, names.values()))) + 10
    extent = size * cell
    middle = cell / 2
    rows = (
        f'<text x="{left - 5}" y="{top + i * cell + middle + 4:g}" text-anchor="end">'
        f"{escape(name)}</text>"
        for i, name in names.items()
    )
    columns = (
        f'<text transform="translate({left + i * cell + middle + 4:g} {top - 5}) rotate(-90)">'
        f"{escape(name)}</text>"
        for i, name in names.items()
    )
    picture = base64.b64encode(png(weights / max(float(weights.max()), 1e-12))).decode()
    wide, high = left + extent + 2, top + extent + 2
    return (
        f"<figure>\n<figcaption>{escape(title)}; colour: 0 to {weights.max():.2f}</figcaption>\n"
        f'<svg role="img" aria-label="{escape(title)}" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}">\n{"".join(rows)}\n{"".join(columns)}\n'
        f'<image x="{left}" y="{top}" width="{extent}" height="{extent}" '
        f'preserveAspectRatio="none" href="data:image/png;base64,{picture}"/>\n'
        f'<rect class="axis" x="{left}" y="{top}" width="{extent}" height="{extent}"/>\n'
        "</svg>\n</figure>"
    )


def scatter(points: np.ndarray, labels: Sequence[str], title: str) -> str:
    """Draw a scatter plot of labelled points. Equal points with equal labels are drawn once.

    A label is placed right, left, above or below its point, wherever it covers no other label. If
    there is no such place, the label is only shown as the tooltip of the point.
    """
    wide, high, edge, room = 560, 420, 24, 130  # room: of a label at the right edge
    low, spread = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-6)
    scale = min((wide - edge - room) / spread[0], (high - 2 * edge) / spread[1])
    places = np.round((points - low) * scale, 1)
    drawn, taken = [], []
    for (x, y), label in dict.fromkeys(zip(map(tuple, places.tolist()), labels, strict=True)):
        x, y, text = edge + x, high - edge - y, clip(label, 14)
        drawn.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"><title>{escape(label)}</title></circle>'
        )
        size = 7.3 * width(text)
        for left, middle in (
            (x + 6, y),
            (x - 6 - size, y),
            (x - size / 2, y - 11),
            (x - size / 2, y + 11),
        ):
            box = left, middle - 5, left + size, middle + 5
            if left > 4 and not any(_meet(box, other) for other in taken):
                taken.append(box)
                drawn.append(f'<text x="{left:.1f}" y="{middle + 4:.1f}">{escape(text)}</text>')
                break
    return (
        f"<figure>\n<figcaption>{escape(title)}</figcaption>\n"
        f'<svg role="img" aria-label="{escape(title)}" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}">\n<rect class="axis" x="1" y="1" width="{wide - 2}" '
        f'height="{high - 2}"/>\n' + "\n".join(drawn) + "\n</svg>\n</figure>"
    )


def png(alpha: np.ndarray) -> bytes:
    """Encode values from 0 to 1 as a PNG image, one pixel each.

    A pixel is blue with the value as its opacity, so that it is visible on light and dark pages.
    """
    pixels = np.empty((*alpha.shape, 4), np.uint8)
    pixels[..., :3] = (59, 130, 246)
    pixels[..., 3] = np.rint(np.clip(alpha, 0, 1) * 255)
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", alpha.shape[1], alpha.shape[0], 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines))
        + chunk(b"IEND", b"")
    )


def _meet(a: tuple[float, ...], b: tuple[float, ...]) -> bool:
    """Whether two boxes (left, top, right, bottom) overlap."""
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def _scale(matrix: np.ndarray) -> tuple[float, float]:
    """Return the value of full colour, and the start of the scale: its negative if signed, or 0."""
    if not np.issubdtype(matrix.dtype, np.floating):
        return 0.0, 0.0
    finite = matrix[np.isfinite(matrix)]
    largest = float(np.abs(finite).max(initial=0.0))
    return largest, -largest if (finite < 0).any() else 0.0


def _cell(value, largest: float) -> str:
    if not largest or not np.isfinite(value) or value == 0:
        return f"<td>{number(value)}</td>"
    share = abs(float(value)) / largest * 100
    sign = ' class="m"' if value < 0 else ""
    return f'<td{sign} style="--a:{share:.0f}%">{number(value)}</td>'


def _mark(text: str, value: float | None, is_unknown: bool, largest: float) -> str:
    text = escape_lines(text)
    if value is None:
        return text
    sign = ' class="u"' if is_unknown else ""
    if (colour := colour_of(value, largest)) is not None:
        sign += f' style="background: rgb{rgb(colour)}"'
    return f'<mark{sign} title="{value:+.3f}">{text}</mark>'


def _label(labels: Sequence[str], i: int | None) -> str:
    return "…" if i is None else escape(labels[i]) if i < len(labels) else ""
