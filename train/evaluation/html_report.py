"""`report.html`: a page of a run for a browser, made from the other files of the run folder.

It has the style of the pages of `python -m transformer_jax` (`transformer_jax/cli/html.py`): one
file, without a script, that fetches nothing and follows the light or dark mode of the browser.
"""

import io
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from train.evaluation.curves import FRAME, GRID, INK, LINE, MARK, RAW, curves, style
from train.evaluation.mistakes import LIMIT, MISTAKES
from train.evaluation.report import (
    ALONE,
    SAMPLE_NOTE,
    SIGNIFICANT,
    class_notes_of,
    commands_of,
    comparison,
    facts_of,
    interval_text,
    is_sample,
    models_of,
    notes_of,
)
from transformer_jax.cli import html
from transformer_jax.runtime.counted import counted
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.texts import read_text

PAGE = "report.html"
# Variables of the style of a page, by the colour of a plot that they replace.
VARIABLES = {
    RAW: "pale", LINE: "curve", MARK: "mark", INK: "ink", GRID: "line", FRAME: "soft"
}  # fmt: skip
NO_METADATA = dict.fromkeys(("Creator", "Date", "Format", "Type"))


def write_page(folder: Path, result: str) -> None:
    """Write `report.html` from `report.json` and, if it has them, the other files of a run.

    `result` is the main result as a short phrase, for reports without a test accuracy.
    """
    report = json.loads(read_text(folder / "report.json"))
    try:
        found = json.loads(read_text(folder / MISTAKES))
    except (OSError, ValueError):  # another program has none, nor has an earlier version
        found = None
    write_text(folder / PAGE, page(report, folder / "metrics.jsonl", result, found))


def page(
    report: dict[str, Any],
    metrics_jsonl: Path,
    result: str,
    mistakes: Sequence[Mapping[str, Any]] | None,
) -> str:
    """Return the page of a report as HTML, with the sections that the report has entries for."""
    name, task = (report.get("data") or {}).get("name"), report.get("task", "Text classification")
    test = report.get("test") or {}
    sections = [
        [html.paragraph(SAMPLE_NOTE, "alert")] if is_sample(report) else [],
        [html.paragraph(sentence(report) or f"Result: {result}.")],
        _comparison(report),
        _curves(metrics_jsonl),
        _confusion(test),
        _per_class(test, class_notes_of(report)),
        _calibration(test),
        _mistakes(mistakes),
        _made(report),
    ]
    title = f"{task} on {name}" if name else task
    return html.page(title, *(part for section in sections for part in section))


def sentence(report: dict[str, Any]) -> str:
    """Return the result of a classifier in one sentence, or "" if the report has no accuracy."""
    models = {model.label: model for model in models_of(report)}
    if (ours := models.get("test accuracy")) is None:
        return ""
    texts = (report.get("test") or {}).get("texts")
    count = "the test texts" if texts is None else f"the {counted(texts, 'test text')}"
    text = f"{ours.accuracy:.2%} of {count} are classified correctly{interval_text(ours.interval)}"
    if (other := models.get("linear baseline")) is None:
        return f"{text}; it was compared with no linear baseline."
    points, p = 100 * (ours.accuracy - other.accuracy), other.mcnemar.get("p_value")
    against = f"the linear baseline with {other.accuracy:.2%}"
    if p is None:
        return f"{text}, against {against} (significance not tested)."
    against += f" (McNemar p = {p:.2g})"
    if p >= SIGNIFICANT or points == 0:
        return f"{text}: no significant difference from {against}."
    return f"{text}: {abs(points):.2f} points {'above' if points > 0 else 'below'} {against}."


def _comparison(report: dict[str, Any]) -> list[str]:
    header, rows, note = comparison(report)
    if not rows:
        return []
    header = [*header[:-1], "McNemar p"]  # "against ours" is too wide for a phone
    parts = [row for row in rows if row[0].endswith(ALONE)]
    sections = [
        html.heading("Compared with the baseline"),
        _models(header, [row for row in rows if row not in parts]),
        *([html.paragraph(note, "soft")] if note else []),
    ]
    if parts:
        sections += [
            html.heading("What each part does alone"),
            _models(header, parts),
            html.paragraph(
                "The classifier adds the log odds of its parts. McNemar's test compares each part "
                "with the whole.",
                "soft",
            ),
        ]
    return sections


def _models(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return f'<div class="models">\n{html.text_table(header, rows)}\n</div>'


def _curves(metrics_jsonl: Path) -> list[str]:
    if not metrics_jsonl.exists():
        return []
    figures = [figure(title, draw) for title, draw in curves(metrics_jsonl)]
    return [html.heading("Training"), *figures]


def _confusion(test: dict[str, Any]) -> list[str]:
    matrix, classes = test.get("confusion_matrix"), test.get("classes")
    if not matrix or not classes:
        return []
    head = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in classes)
    rows = (
        f'<tr><th scope="row">{html.escape(name)}</th>'
        + "".join(f'<td style="--a:{100 * x / max(sum(row), 1):.0f}%">{x:,}</td>' for x in row)
        + "</tr>"
        for name, row in zip(classes, matrix, strict=True)
    )
    return [
        html.heading("Confusion matrix"),
        html.paragraph("Rows are the true class, columns the predicted one.", "soft"),
        f'<div class="wide">\n<table>\n<thead><tr><td class="gap"></td>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(rows)}\n</tbody>\n</table>\n</div>",
        html.paragraph("colour: the share of the texts of a class", "soft"),
    ]


def _per_class(test: dict[str, Any], notes: Sequence[str]) -> list[str]:
    """Return the notes on classes as alerts, and the table of the scores of each class."""
    header = ["class", "precision", "recall", "F1", "texts"]
    rows = [
        [name, *(f"{row[key]:.4f}" for key in ("precision", "recall", "f1")), f"{row['support']:,}"]
        for name, row in (test.get("per_class") or {}).items()
    ]
    alerts = [html.paragraph(note, "alert") for note in notes]
    return [*alerts, html.text_table(header, rows)] if rows else alerts


def _calibration(test: dict[str, Any]) -> list[str]:
    if not (bins := test.get("calibration_bins")):
        return []
    rows = [[f"{b['confidence']:.2%}", f"{b['accuracy']:.2%}", f"{b['texts']:,}"] for b in bins]
    return [
        html.heading("Calibration"),
        html.paragraph(
            f"The predicted class has a mean probability of {test['mean_confidence']:.2%} and is "
            f"correct for {test['accuracy']:.2%} of the texts. Expected calibration error: "
            f"{test['calibration_error']:.4f} (0 is perfect); log loss: {test['log_loss']:.4f}."
        ),
        figure("Accuracy by the probability of the predicted class", partial(_draw_bins, bins)),
        html.text_table(["mean probability", "accuracy", "texts"], rows),
    ]


def _draw_bins(bins: Sequence[Mapping[str, float]], axes: Axes) -> None:
    axes.set_xlabel("probability of the predicted class")
    axes.set_ylabel("accuracy")
    most = max(each["texts"] for each in bins)
    x, y = ([each[key] for each in bins] for key in ("confidence", "accuracy"))
    low = min(0.5, *x)
    axes.plot([low, 1], [low, 1], "--", color=FRAME, linewidth=1, label="perfect")
    axes.plot(x, y, color=LINE, linewidth=1.5, label="this classifier")
    # The area of a point is the number of texts.
    axes.scatter(x, y, [9 + 150 * each["texts"] / most for each in bins], color=LINE)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.legend(frameon=False)


def _mistakes(mistakes: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if mistakes is None:
        return []
    parts = [html.heading("The most confident mistakes")]
    if not mistakes:
        return [*parts, html.paragraph("No test text is classified wrongly.")]
    parts.append(
        html.paragraph(
            "Blue words support the predicted class, orange words are against it; a dotted "
            "underline marks an out-of-vocabulary word. The values are integrated gradients of at "
            f"most {LIMIT} nodes; python -m transformer_jax explain computes more accurate ones. A "
            "text without colours was left out to save time; a long text is cut.",
            "soft",
        )
    )
    for each in mistakes:
        title = f"{each['predicted']} ({each['probability']:.1%}), but labelled {each['label']}"
        text = html.marked_text([tuple(piece) for piece in each["pieces"]])
        parts.append(f'<div class="case">\n{html.paragraph(title, "soft")}\n{text}\n</div>')
    return parts


def _made(report: dict[str, Any]) -> list[str]:
    settings = [[key, str(value)] for key, value in _flat(report.get("settings") or {})]
    parts = [html.heading("How it was made")]
    if commands := commands_of(report):
        lines = "\n".join(map(html.escape, commands))
        parts.append(f'<p class="text"><code>{lines}</code></p>')
    parts.append(_facts(facts_of(report), notes_of(report)))
    return [*parts, html.heading("Settings"), _facts(settings)]


def _flat(settings: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every setting by its dotted name."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value


def _facts(rows: Sequence[Sequence[str]], notes: Sequence[str] = ()) -> str:
    """Return a table of names and values; notes are its last row, a list."""
    cells = [(_breakable(name), html.escape(value)) for name, value in rows]
    if notes:
        items = "".join(f"<li>{html.escape(note)}</li>" for note in notes)
        cells.append(("notes", f"<ul>{items}</ul>"))
    body = "\n".join(f"<tr><td>{name}</td><td>{value}</td></tr>" for name, value in cells)
    return f'<div class="wide facts">\n<table>\n<tbody>\n{body}\n</tbody>\n</table>\n</div>'


def _breakable(name: str) -> str:
    """Return a dotted name as HTML that a narrow page may break between its words."""
    return re.sub("([._])", r"\1<wbr>", html.escape(name))


def figure(title: str, draw: Callable[[Axes], None]) -> str:
    """Return a plot as inline SVG, with the colours of the style of a page and a caption."""
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": title, "font.size": 9}):
        plot = Figure(figsize=(4.4, 3.2), layout="constrained")
        axes = plot.subplots()
        draw(axes)
        axes.set_title("", loc="left")  # the caption has it
        style(axes)
        plot.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    svg = file.getvalue()
    svg = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    size = re.search(r'viewBox="[^"]*"', svg)
    name = re.sub(r"\W+", "-", title.lower())  # ids are of the whole page
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:)?href="#', f'href="#{name}-', svg).replace("url(#", f"url(#{name}-")
    for colour, variable in VARIABLES.items():
        svg = svg.replace(colour, f"var(--{variable})")
    svg = re.sub(r"<svg.*?>", "", svg, count=1, flags=re.DOTALL)
    return (
        f"<figure>\n<figcaption>{html.escape(title)}</figcaption>\n"
        f'<svg role="img" aria-label="{html.escape(title)}" width="440" {size[0]}>\n'
        f"<title>{html.escape(title)}</title>\n{svg.strip()}\n</figure>"
    )
