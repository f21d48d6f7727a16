"""Reports of a run: `report.json`, and `report.md` made from it.

Everything in the Markdown is also in the JSON. Entries that the caller does not give are left out
of both; no value is assumed.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from train.evaluation.metrics import BINS
from transformer_jax.runtime.files import write_text

SIGNIFICANT = 0.05
ALONE = " alone"  # behind the name of a part in the table of models
SAMPLE = "sample"  # Dataset.name of train/data/sample_reviews.py
SAMPLE_NOTE = "NUMBERS OF THE BUILT-IN SYNTHETIC SAMPLE, NOT OF IMDb."
# Order of the entries in report.json and in "How it was made"; other entries follow.
ORDER = """
    data split_rule test_accuracy test_accuracy_interval baseline mcnemar alone test recipe
    tokenizer seed parameters compute_dtype freed_memory_kept steps epochs best_epoch
    validation_accuracy weights train_seconds evidence_seconds guess_seconds guess_weights
    guess_validation_accuracy checkpoint_seconds tokens_per_second command
    earlier_commands versions machine date
""".split()
SHOWN_ABOVE = """
    task data test_accuracy test_accuracy_interval baseline mcnemar alone test command
    earlier_commands settings class_notes
""".split()


def write_report(run: Path, report: dict[str, Any]) -> None:
    """Write `report.json` and, from the same numbers, `report.md` into the run folder.

    Floats keep 9 significant digits; NaN and infinities, which JSON cannot represent, become null.
    Each file is replaced atomically. The date (UTC) is added if the report has none.
    """
    report = _plain({"date": datetime.now(UTC).date().isoformat()} | report)
    rank = {key: i for i, key in enumerate(ORDER)}
    report = dict(sorted(report.items(), key=lambda item: rank.get(item[0], len(rank))))
    run.mkdir(parents=True, exist_ok=True)
    as_json = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    for name, text in (("report.md", markdown(report)), ("report.json", as_json + "\n")):
        write_text(run / name, text)


class _Model(NamedTuple):
    """A model that a report compares with others."""

    label: str  # in the summary
    name: str  # in the table
    accuracy: float
    interval: Sequence[float] | None
    seconds: float | None  # to train
    mcnemar: Mapping[str, Any]  # of ours against this one


def summary(report: dict[str, Any]) -> str:
    """Return the lines that train.imdb prints at its end: accuracies and comparisons."""
    lines = [SAMPLE_NOTE] if is_sample(report) else []
    for model in models_of(report):
        lines.append(f"{model.label:<17}{model.accuracy:.2%}{interval_text(model.interval)}")
    lines += [sentence.replace("**", "") for sentence in _verdicts(report)]
    return "\n".join(lines)


def markdown(report: dict[str, Any]) -> str:
    """Return the report as Markdown, for a reader who does not know the program."""
    data, test = report.get("data") or {}, report.get("test") or {}
    name, task = data.get("name"), report.get("task", "Text classification")
    parts = [
        f"> # ⚠ {SAMPLE_NOTE}" if is_sample(report) else "",
        f"# {task} on {name}" if name else f"# {task}",
        *_verdicts(report),
        "\n\n".join(f"> **Note:** {_line(note)}" for note in class_notes_of(report)),
        _comparison(report),
        _per_class(test),
        _confusion(test),
        _calibration(test),
        _made(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def models_of(report: dict[str, Any]) -> list[_Model]:
    """Return our model, its parts and the linear baseline, if the report has their accuracy."""
    alone, baseline = report.get("alone") or {}, report.get("baseline") or {}
    seconds = report.get("train_seconds")
    if seconds is not None:  # including the fits of n-grams and text vectors
        seconds += sum(report.get(key, 0.0) for key in ("evidence_seconds", "guess_seconds"))
    rows = [
        ("test accuracy", "transformer (ours)", report, seconds, None),
        *(
            (f"{part}{ALONE}", f"{part}{ALONE}", found, None, found.get("mcnemar"))
            for part, key in (("n-grams", "evidence"), ("network", "head"))
            if (found := alone.get(key))
        ),
        (
            "linear baseline",
            baseline.get("name", "linear baseline"),
            baseline,
            baseline.get("seconds"),
            report.get("mcnemar"),
        ),
    ]
    models = []
    for label, name, found, seconds, mcnemar in rows:
        test = found.get("test") or {}
        accuracy = found.get("test_accuracy", test.get("accuracy"))
        interval = found.get("test_accuracy_interval", test.get("accuracy_interval"))
        if accuracy is not None:
            models.append(_Model(label, name, accuracy, interval, seconds, mcnemar or {}))
    return models


def _verdicts(report: dict[str, Any]) -> list[str]:
    """Return a sentence each that compares ours with the linear baseline and its own n-grams."""
    models = {model.label: model for model in models_of(report)}
    if (ours := models.get("test accuracy")) is None:
        return []
    others = (("linear baseline", "the linear baseline"), ("n-grams alone", "the n-grams alone"))
    found = [_compared(ours, models[label], name) for label, name in others if label in models]
    if "linear baseline" in models:
        return found
    share = f"**{ours.accuracy:.2%} of the test texts are classified correctly**"
    return [f"{share}{interval_text(ours.interval)}.", *found]


def _compared(ours: _Model, other: _Model, name: str) -> str:
    points, p_value = 100 * (ours.accuracy - other.accuracy), other.mcnemar.get("p_value")
    numbers = f"{ours.accuracy:.2%} against {other.accuracy:.2%} on the test texts"
    if p_value is None:
        return f"{numbers} with {name}, {points:+.2f} points (significance not tested)."
    if p_value >= SIGNIFICANT or points == 0:
        return (
            f"**No significant difference from {name} at the {SIGNIFICANT} level**: "
            f"{numbers}, {points:+.2f} points (McNemar p = {p_value:.2g})."
        )
    side = "Better" if points > 0 else "Worse"
    verdict = f"**{side} than {name} by {abs(points):.2f} points**"
    return f"{verdict}: {numbers} (McNemar p = {p_value:.2g})."


def comparison(report: dict[str, Any]) -> tuple[list[str], list[list[str]], str]:
    """Return the header and the rows of the table of models, and the note below it."""
    header = "model | test accuracy | 95% interval | seconds to train | McNemar p (against ours)"
    rows = []
    for model in models_of(report):
        time = "" if model.seconds is None else f"{model.seconds:,.1f}"
        p = f"{model.mcnemar['p_value']:.2g}" if "p_value" in model.mcnemar else ""
        interval = interval_text(model.interval, "{}")
        rows.append([model.name, f"{model.accuracy:.2%}", interval, time, p])
    compared, note = report.get("mcnemar") or {}, ""
    if "b" in compared and "c" in compared:
        note = (
            f"{compared['b']:,} texts are classified correctly by the transformer only, "
            f"{compared['c']:,} by the linear baseline only. The p-value of McNemar's exact test "
            "is the probability of a split at least this uneven between equally good models."
        )
    return header.split(" | "), rows, note


def _comparison(report: dict[str, Any]) -> str:
    header, rows, note = comparison(report)
    return "\n\n".join(filter(None, [_table(header, rows) if rows else "", note]))


def _per_class(test: dict[str, Any]) -> str:
    rows = []
    for name, row in (test.get("per_class") or {}).items():
        numbers = ["–"] * 3  # undefined if no text is of the class
        if row["support"]:
            numbers = [f"{row[key]:.4f}" for key in ("precision", "recall", "f1")]
        rows.append([name, *numbers, f"{row['support']:,}"])
    header = ["class", "precision", "recall", "F1", "texts (support)"]
    return "## Per class\n\n" + _table(header, rows) if rows else ""


def _confusion(test: dict[str, Any]) -> str:
    matrix, classes = test.get("confusion_matrix"), test.get("classes")
    if not matrix or not classes:
        return ""
    rows = [[name, *(f"{x:,}" for x in row)] for name, row in zip(classes, matrix, strict=True)]
    return (
        "## Confusion matrix\n\nRows are the true class, columns the predicted one.\n\n"
        + _table(["true ↓ predicted →", *classes], rows)
    )


def _calibration(test: dict[str, Any]) -> str:
    if "calibration_error" not in test:
        return ""
    return (
        "## Calibration\n\nThe predicted class has a mean probability of "
        f"{test['mean_confidence']:.2%}; it is correct for {test['accuracy']:.2%} of the "
        f"texts. Expected calibration error: **{test['calibration_error']:.4f}** ({BINS} bins; "
        f"0 is perfect). Log loss: **{test['log_loss']:.4f}**."
    )


def commands_of(report: dict[str, Any]) -> list[str]:
    """Return the command lines of the run, those before it was resumed first."""
    command = report.get("command")
    return [*report.get("earlier_commands", ()), *([command] if command else [])]


def class_notes_of(report: dict[str, Any]) -> list[str]:
    """Return the notes on classes that have few texts, or none in a part of the data."""
    return report.get("class_notes") or []


def notes_of(report: dict[str, Any]) -> list[str]:
    """Return the other notes on the data."""
    notes = (report.get("data") or {}).get("notes") or []
    return [note for note in notes if note not in class_notes_of(report)]


def facts_of(report: dict[str, Any]) -> list[list[str]]:
    """Return the rows of "How it was made": data, recipe, versions, machine and other entries."""
    data, baseline = report.get("data") or {}, report.get("baseline") or {}
    rows = [[f"data: {key}", _text(value, key)] for key, value in data.items() if key != "notes"]
    facts = {key: value for key, value in report.items() if key not in SHOWN_ABOVE}
    facts["baseline_validation_accuracy"] = baseline.get("validation")
    rows += [[key.replace("_", " "), _text(value, key)] for key, value in facts.items()]
    return [row for row in rows if row[1]]


def _made(report: dict[str, Any]) -> str:
    """Return the last section: the command lines and all other entries."""
    commands, rows, notes = commands_of(report), facts_of(report), notes_of(report)
    parts = ["\n".join(["```sh", *commands, "```"])] if commands else []
    parts += [_table(["", ""], rows)] if rows else []
    parts += ["Notes:", "\n".join(f"- {_line(note)}" for note in notes)] if notes else []
    return "\n\n".join(["## How it was made", *parts]) if parts else ""


def _table(header: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table; columns after the first are numbers if there are more than two."""
    rule = ["---", *(["---:"] if len(header) > 2 else ["---"]) * (len(header) - 1)]
    lines = [[_cell(x) for x in header], rule, *([_cell(x) for x in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return _line(text.replace("\\", "\\\\").replace("|", "\\|"))


def _line(text: str) -> str:
    return " ".join(text.split())


def _text(value: Any, key: str = "") -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.2%}" if key.endswith("accuracy") else f"{value:,.6g}"
    if isinstance(value, int):
        return str(value) if key == "seed" else f"{value:,}"
    if isinstance(value, Mapping):
        return ", ".join(f"{k} {_text(v, str(k))}" for k, v in value.items() if v is not None)
    if isinstance(value, list | tuple):
        return "; ".join(_text(item, key) for item in value)
    return str(value)


def is_sample(report: dict[str, Any]) -> bool:
    return (report.get("data") or {}).get("name") == SAMPLE


def interval_text(interval: Sequence[float] | None, form: str = " (95% interval {})") -> str:
    return "" if interval is None else form.format(f"{100 * interval[0]:.2f} to {interval[1]:.2%}")


def _plain(value: Any) -> Any:
    """Return a value for JSON: no NumPy types, floats of 9 significant digits, None for NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else None
    return value
