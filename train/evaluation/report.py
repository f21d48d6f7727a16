"""What a result says: from the scores of the test texts to `report.json` and `report.md`.

Everything in the Markdown stands in the JSON. What the caller does not give is left out of both:
nothing here is assumed, and no number is made up for want of one.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import jax
import numpy as np

from train.evaluation.metrics import BINS
from transformer_jax.runtime.files import write_text

SIGNIFICANT = 0.05
SAMPLE = "sample"  # Dataset.name of train/data/sample_reviews.py
SAMPLE_NOTE = "NUMBERS OF THE BUILT-IN SYNTHETIC SAMPLE, NOT OF IMDb."
ORDER = (  # of report.json and of "How it was made"; what is not named here follows
    "data", "split_rule", "test_accuracy", "test_accuracy_interval", "baseline", "mcnemar", "alone", "test",
    "recipe", "tokenizer", "seed", "parameters", "compute_dtype", "freed_memory_kept", "steps", "epochs", "best_epoch",
    "validation_accuracy", "weights", "train_seconds", "evidence_seconds", "guess_seconds", "guess_weights",
    "guess_validation_accuracy", "checkpoint_seconds", "tokens_per_second", "command",
    "versions", "machine", "date",
)  # fmt: skip
SHOWN_ABOVE = {"task", "data", "test_accuracy", "test_accuracy_interval", "baseline", "mcnemar", "alone", "test",
               "command", "settings"}  # fmt: skip


def write_report(run: Path, report: dict[str, Any]) -> None:
    """Write `report.json` and, from the same numbers, `report.md` into the run folder.

    Floats keep 6 significant digits; NaN and infinities, which JSON cannot hold, become null. Each
    file is replaced whole or not at all. The date (UTC) is added where the report has none.
    """
    report = _plain({"date": datetime.now(UTC).date().isoformat()} | report)
    rank = {key: i for i, key in enumerate(ORDER)}
    report = dict(sorted(report.items(), key=lambda item: rank.get(item[0], len(rank))))
    run.mkdir(parents=True, exist_ok=True)
    as_json = json.dumps(report, indent=2, ensure_ascii=False, allow_nan=False)
    for name, text in (("report.md", markdown(report)), ("report.json", as_json + "\n")):
        write_text(run / name, text)


def finished(run: Path, epochs: int) -> dict[str, Any] | None:
    """The report of a run that was trained for at least so many epochs and scored, or None."""
    try:
        report = json.loads((run / "report.json").read_text(encoding="utf-8"))
        return report if report["settings"]["fit"]["epochs"] >= epochs else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def summary(report: dict[str, Any], run: Path | None = None) -> str:
    """The last lines of a training program: both accuracies, the verdict, where the files are."""
    lines = [SAMPLE_NOTE] if _is_sample(report) else []
    baseline = report.get("baseline") or {}
    models = [("test accuracy", report)]
    models += [(name.removeprefix("its "), part) for name, part in _parts(report)]
    for name, model in (*models, ("linear baseline", baseline)):
        accuracy, interval = _accuracy(model)
        if accuracy is not None:
            lines.append(f"{name:<17}{accuracy:.2%}{_interval(interval)}")
    lines += [said.replace("**", "") for said in (_verdict(report), _gain(report))]
    if run is not None:
        lines.append(f"written: {run / 'report.md'}, {run / 'report.json'}")
    return "\n".join(line for line in lines if line)


def markdown(report: dict[str, Any]) -> str:
    """The report for a reader who has not seen the program."""
    data, test = report.get("data") or {}, report.get("test") or {}
    name, task = data.get("name"), report.get("task", "Text classification")
    parts = [
        f"> # ⚠ {SAMPLE_NOTE}" if _is_sample(report) else "",
        f"# {task} on {name}" if name else f"# {task}",
        _verdict(report),
        _gain(report),
        _both_models(report),
        _per_class(test),
        _confusion(test),
        _calibration(test),
        _made(report),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _verdict(report: dict[str, Any]) -> str:
    """One sentence: better, worse, or not to be told apart from the baseline. Empty without a
    number.
    """
    ours, interval = _accuracy(report)
    theirs, _ = _accuracy(report.get("baseline") or {})
    if ours is None:
        return ""
    if theirs is None:
        return f"**{ours:.2%} of the test texts are classified correctly**{_interval(interval)}."
    return _compared(ours, theirs, report.get("mcnemar") or {}, "the linear baseline")


def _gain(report: dict[str, Any]) -> str:
    """The same of its n-grams alone: whether the network adds to them. Empty where there are none."""
    ours, _ = _accuracy(report)
    ngrams = (report.get("alone") or {}).get("evidence") or {}
    theirs, _ = _accuracy(ngrams)
    if ours is None or theirs is None:
        return ""
    return _compared(ours, theirs, ngrams.get("mcnemar") or {}, "its n-grams alone")


def _compared(ours: float, theirs: float, mcnemar: Mapping[str, Any], name: str) -> str:
    points, p_value = 100 * (ours - theirs), mcnemar.get("p_value")
    numbers = f"{ours:.2%} against {theirs:.2%} on the test texts"
    if p_value is None:
        return f"{numbers} of {name}, {points:+.2f} points (significance not tested)."
    if p_value >= SIGNIFICANT or points == 0:
        return (
            f"**Not distinguishable from {name} at p < {SIGNIFICANT}**: "
            f"{numbers}, {points:+.2f} points (McNemar p = {p_value:.2g})."
        )
    side = "Better" if points > 0 else "Worse"
    return (
        f"**{side} than {name} by {abs(points):.2f} points**: {numbers} "
        f"(McNemar p = {p_value:.2g})."
    )


def _parts(report: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What the parts of the model are called, and what they do by themselves."""
    alone = report.get("alone") or {}
    names = (("its n-grams alone", "evidence"), ("its network alone", "head"))
    return [(name, alone[part]) for name, part in names if part in alone]


def _both_models(report: dict[str, Any]) -> str:
    baseline, compared = report.get("baseline") or {}, report.get("mcnemar") or {}
    linear = baseline.get("name", "linear baseline")
    header = "model | test accuracy | 95% interval | seconds to train | McNemar p (against ours)"
    rows = []
    parts = [
        (name, part, None, (part.get("mcnemar") or {}).get("p_value"))
        for name, part in _parts(report)
    ]
    for name, model, seconds, p_value in (
        ("transformer (ours)", report, _seconds(report), None),
        *parts,
        (linear, baseline, baseline.get("seconds"), compared.get("p_value")),
    ):
        accuracy, interval = _accuracy(model)
        if accuracy is not None:
            time = "" if seconds is None else f"{seconds:,.1f}"
            p = "" if p_value is None else f"{p_value:.2g}"
            rows.append([name, f"{accuracy:.2%}", _interval(interval, "{}"), time, p])
    text = _table(header.split(" | "), rows) if rows else ""
    if "b" in compared and "c" in compared:
        text += (
            f"\n\n{compared['b']:,} texts are classified correctly by the transformer and not by "
            f"the baseline, {compared['c']:,} by the baseline alone. McNemar's exact test asks how likely a "
            "share so uneven is between equally good models."
        )
    return text


def _seconds(report: dict[str, Any]) -> float | None:
    """Of all that is fitted: the steps, the solver for n-grams and the vectors of texts, where
    there are any.
    """
    seconds = report.get("train_seconds")
    others = sum(report.get(key, 0.0) for key in ("evidence_seconds", "guess_seconds"))
    return None if seconds is None else seconds + others


def _per_class(test: dict[str, Any]) -> str:
    rows = []
    for name, row in (test.get("per_class") or {}).items():
        numbers = ["–"] * 3  # without a text of the class, they would say nothing
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
        "## Calibration\n\nThe model gives the class it predicts a probability of "
        f"{test['mean_confidence']:.2%} on average and is right in {test['accuracy']:.2%} of the "
        f"texts. Expected calibration error: **{test['calibration_error']:.4f}** ({BINS} bins; "
        f"0 is perfect). Log loss: **{test['log_loss']:.4f}**."
    )


def _made(report: dict[str, Any]) -> str:
    """Command, data, recipe, versions, machine: everything the sections above did not show."""
    parts = ["## How it was made"]
    if report.get("command"):
        parts.append(f"```sh\n{report['command']}\n```")
    data, baseline = report.get("data") or {}, report.get("baseline") or {}
    rows = [[f"data: {key}", _text(value, key)] for key, value in data.items()]
    facts = {key: value for key, value in report.items() if key not in SHOWN_ABOVE}
    facts["baseline_validation_accuracy"] = baseline.get("validation")
    rows += [[key.replace("_", " "), _text(value, key)] for key, value in facts.items()]
    rows = [row for row in rows if row[1]]
    if rows:
        parts.append(_table(["", ""], rows))
    return "\n\n".join(parts) if len(parts) > 1 else ""


def _table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table; the first column is text, the others of a wide one numbers."""
    rule = ["---", *(["---:"] if len(header) > 2 else ["---"]) * (len(header) - 1)]
    lines = [[_cell(x) for x in header], rule, *([_cell(x) for x in row] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(str(text).replace("\\", "\\\\").replace("|", "\\|").split())


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


def _is_sample(report: dict[str, Any]) -> bool:
    return (report.get("data") or {}).get("name") == SAMPLE


def _accuracy(model: dict[str, Any]) -> tuple[float | None, list[float] | None]:
    """Test accuracy and interval of our report or the baseline's, wherever they stand in it."""
    test = model.get("test") or {}
    return (
        model.get("test_accuracy", test.get("accuracy")),
        model.get("test_accuracy_interval", test.get("accuracy_interval")),
    )


def _interval(interval: Sequence[float] | None, form: str = " (95% interval {})") -> str:
    return "" if interval is None else form.format(f"{100 * interval[0]:.2f} to {interval[1]:.2%}")


def _plain(value: Any) -> Any:
    """The value as JSON knows it: NumPy gone, floats of 6 significant digits, null for NaN."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value
