"""Claims about what a result says. The numbers are worked out by hand, from the equations."""

import json
import math

import numpy as np
import pytest

from train.evaluation.curves import draw_curves, smooth
from train.evaluation.html_report import sentence
from train.evaluation.metrics import compared, mcnemar, score
from train.evaluation.provenance import machine, versions
from train.evaluation.report import SAMPLE_NOTE, summary, write_report

CLASSES = ("negative", "positive")


def one_hot(predicted, classes):
    return np.eye(classes)[predicted]


def a_report(**changes):
    """A report of 10 texts: 8 right by ours, 5 by the baseline."""
    report = {
        "data": {"name": "imdb", "source": "a file", "notes": ["cleaned"], "test": 10},
        "seed": 1234,
        "parameters": 1234567,
        "command": "python -m train.imdb",
        "train_seconds": 61.25,
        "test_accuracy": 0.8,
        "test_accuracy_interval": [0.49016, 0.94332],
        "baseline": {"name": "linear", "test_accuracy": 0.5, "seconds": 2.5},
        "mcnemar": {"b": 9, "c": 1, "p_value": 22 / 1024},
    }
    return {**report, **changes}


def read(run):
    text = (run / "report.json").read_text()
    return json.loads(text), (run / "report.md").read_text()


# score


def test_wilson_interval_of_eight_in_ten():
    # z^2 = 3.841459: (0.8 + 0.192073 -+ 1.959964 sqrt(0.016 + 0.00960365)) / 1.3841459
    result = score(one_hot([0] * 10, 2), np.array([0] * 8 + [1] * 2), CLASSES)
    assert result["accuracy"] == 0.8
    np.testing.assert_allclose(result["accuracy_interval"], [0.49016, 0.94332], atol=1e-5)


def test_interval_of_a_perfect_result_stays_inside_one():
    low, high = score(one_hot([0, 1, 0, 1], 2), np.array([0, 1, 0, 1]), CLASSES)[
        "accuracy_interval"
    ]
    z2 = 3.841459
    assert high == pytest.approx(1.0) and high <= 1.0
    assert low == pytest.approx(1 / (1 + z2 / 4), abs=1e-6)


def test_rows_of_the_confusion_matrix_are_the_true_class():
    # two negative texts called positive, no positive text called negative
    result = score(one_hot([0, 1, 1, 1], 2), np.array([0, 0, 0, 1]), CLASSES)
    assert result["confusion_matrix"] == [[1, 2], [0, 1]]
    assert result["confusion_matrix_axes"][0].startswith("true")
    assert result["classes"] == ["negative", "positive"]


def test_precision_recall_and_f1_by_class():
    result = score(one_hot([0, 1, 1, 1], 2), np.array([0, 0, 0, 1]), CLASSES)["per_class"]
    assert result["negative"] == pytest.approx(
        {"precision": 1.0, "recall": 1 / 3, "f1": 1 / 2, "support": 3}
    )
    assert result["positive"] == pytest.approx(
        {"precision": 1 / 3, "recall": 1.0, "f1": 1 / 2, "support": 1}
    )


def test_calibration_error_of_a_hand_made_example():
    # bin (8/15, 9/15]: 0.55 wrong, 0.59 right: |1 - 1.14| = 0.14; bin (13/15, 14/15]: 0.9 and 0.9
    # right: |2 - 1.8| = 0.2; so (0.14 + 0.2) / 4
    sure = np.array([0.55, 0.59, 0.9, 0.9])
    probabilities = np.stack([sure, 1 - sure], axis=1)
    result = score(probabilities, np.array([1, 0, 0, 0]), CLASSES)
    assert result["calibration_error"] == pytest.approx(0.34 / 4)
    assert result["mean_confidence"] == pytest.approx(2.94 / 4)


def test_confidence_of_one_belongs_to_the_last_bin():
    result = score(one_hot([0, 0], 2), np.array([0, 1]), CLASSES)
    assert result["calibration_error"] == 0.5


def test_log_loss_is_the_mean_surprise_and_finite_when_sure_and_wrong():
    probabilities = np.array([[0.5, 0.5], [0.25, 0.75]])
    result = score(probabilities, np.array([0, 0]), CLASSES)
    assert result["log_loss"] == pytest.approx((math.log(2) + math.log(4)) / 2)
    wrong = score(one_hot([0], 2), np.array([1]), CLASSES)["log_loss"]
    assert wrong == pytest.approx(52 * math.log(2))


def test_class_that_never_occurs_is_defined():
    result = score(one_hot([0, 1], 3), np.array([0, 1]), ("a", "b", "c"))
    assert result["per_class"]["c"] == {"precision": 0, "recall": 0, "f1": 0, "support": 0}
    assert result["confusion_matrix"] == [[1, 0, 0], [0, 1, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("probabilities", "labels", "what"),
    [
        (np.full((2, 3), 1 / 3), [0, 1], "shape"),
        (np.full((0, 2), 0.5), [], "at least one text"),
        (np.array([[0.2, 0.2]]), [0], "sum to 1"),
        (np.array([[np.nan, np.nan]]), [0], "diverged"),
        (np.array([[0.5, 0.5]]), [2], "labels"),
    ],
)
def test_what_cannot_be_scored_is_an_error_that_says_why(probabilities, labels, what):
    with pytest.raises(ValueError, match=what):
        score(probabilities, np.array(labels, int), CLASSES)


# McNemar


def test_mcnemar_p_is_that_of_the_binomial_table():
    # ours alone right 9 times, theirs once: 2 (C(10, 0) + C(10, 1)) / 2^10
    ours = np.array([True] * 9 + [False] + [True] * 5 + [False] * 5)
    theirs = np.array([False] * 9 + [True] + [True] * 5 + [False] * 5)
    result = mcnemar(ours, theirs)
    assert (result["b"], result["c"]) == (9, 1)
    assert result["p_value"] == pytest.approx(22 / 1024)


def test_mcnemar_of_models_that_never_differ_is_one():
    same = np.array([True, False, True])
    assert mcnemar(same, same) == {"b": 0, "c": 0, "p_value": 1.0}


def test_mcnemar_takes_the_same_texts_only():
    with pytest.raises(ValueError, match="same texts"):
        mcnemar(np.ones(3, bool), np.ones(4, bool))


def test_another_model_is_judged_on_the_same_texts():
    # right: the whole in 0, 1, 2 of five texts, "a" in 0, 1, "b" in 2, 3, 4
    labels = np.array([0, 1, 2, 0, 1])
    whole, a, b = (one_hot(said, 3) for said in ([0, 1, 2, 1, 2], [0, 1, 0, 1, 2], [1, 2, 2, 0, 1]))
    a, b = (compared(whole, part, labels, ("x", "y", "z")) for part in (a, b))
    assert (a["test_accuracy"], b["test_accuracy"]) == (0.4, 0.6)
    assert a["mcnemar"] == {"b": 1, "c": 0, "p_value": 1.0}
    assert (b["mcnemar"]["b"], b["mcnemar"]["c"]) == (2, 2)
    low, high = b["test_accuracy_interval"]
    assert 0 < low < 0.6 < high < 1


# report.json and report.md


def test_not_a_number_is_written_as_null(tmp_path):
    write_report(tmp_path, {"x": np.float32("nan"), "y": [np.inf, 1], "z": np.arange(2)})
    text = (tmp_path / "report.json").read_text()
    written = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert (written["x"], written["y"], written["z"]) == (None, [None, 1], [0, 1])


def test_floats_keep_nine_significant_digits(tmp_path):
    write_report(tmp_path, {"small": 1.23456789012e-7, "large": 123456.7891, "whole": 1234567890})
    written, _ = read(tmp_path)
    assert (written["small"], written["large"]) == (1.23456789e-7, 123456.789)
    assert written["whole"] == 1234567890


def test_an_interval_reads_the_same_on_the_screen_and_in_the_files(tmp_path):
    report = a_report(test_accuracy_interval=[0.8602503, 0.959])
    write_report(tmp_path, report)
    written, text = read(tmp_path)
    for said in (summary(report), text, sentence(written)):
        assert "86.03 to 95.90%" in said


def test_notes_are_lines_and_those_on_classes_stand_beside_the_result(tmp_path):
    rare, other = "few texts are of\nbad", "dropped 1 row"
    data = {"name": "imdb", "notes": [other, rare]}
    write_report(tmp_path, a_report(data=data, class_notes=[rare]))
    before, made = read(tmp_path)[1].split("## How it was made")
    assert before.index("> **Note:** few texts are of bad\n") < before.index("| model |")
    assert f"\n- {other}\n" in made and "few texts" not in made


def test_one_table_holds_both_models(tmp_path):
    write_report(tmp_path, a_report())
    _, text = read(tmp_path)
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| model |"))
    assert lines[start] == (
        "| model | test accuracy | 95% interval | seconds to train | McNemar p (against ours) |"
    )
    assert lines[start + 2] == "| transformer (ours) | 80.00% | 49.02 to 94.33% | 61.2 |  |"
    assert lines[start + 3] == "| linear | 50.00% |  | 2.5 | 0.021 |"
    # the solver's are training too, and the vectors'
    for more, seconds in (({}, 71.2), ({"guess_seconds": 100.0}, 171.2)):
        write_report(tmp_path, a_report(evidence_seconds=10.0, **more))
        assert f"| 80.00% | 49.02 to 94.33% | {seconds} |  |" in read(tmp_path)[1]


@pytest.mark.parametrize(
    ("ours", "p_value", "verdict"),
    [
        (0.8, 0.021, "Better than the linear baseline by 30.00 points"),
        (0.4, 0.021, "Worse than the linear baseline by 10.00 points"),
        (0.8, 0.2, "No significant difference from the linear baseline at the 0.05 level"),
    ],
)
def test_verdict_says_better_worse_or_not_distinguishable(tmp_path, ours, p_value, verdict):
    report = a_report(test_accuracy=ours, mcnemar={"b": 0, "c": 0, "p_value": p_value})
    write_report(tmp_path, report)
    assert verdict in read(tmp_path)[1]
    assert verdict in summary(report)


def alone(evidence, p_value):
    part = {"test_accuracy": evidence, "test_accuracy_interval": [0.4, 0.9]}
    network = {"test_accuracy": 0.625, "mcnemar": {"b": 2, "c": 1, "p_value": 0.25}}
    return {"evidence": {**part, "mcnemar": {"b": 1, "c": 1, "p_value": p_value}}, "head": network}


def test_the_parts_stand_between_the_whole_and_the_linear_model(tmp_path):
    report = a_report(alone=alone(0.75, 0.01))
    write_report(tmp_path, report)
    lines = read(tmp_path)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| transformer (ours)"))
    assert lines[start + 1 : start + 4] == [
        "| n-grams alone | 75.00% | 40.00 to 90.00% |  | 0.01 |",
        "| network alone | 62.50% |  |  | 0.25 |",
        "| linear | 50.00% |  | 2.5 | 0.021 |",
    ]
    assert "| alone |" not in "\n".join(lines)
    said = summary(report).splitlines()
    assert said[1] == "n-grams alone    75.00% (95% interval 40.00 to 90.00%)"
    assert said[2] == "network alone    62.50%"


@pytest.mark.parametrize(
    ("ngrams", "p_value", "sentence"),
    [
        (0.75, 0.01, "Better than the n-grams alone by 5.00 points: 80.00% against 75.00%"),
        (0.85, 0.01, "Worse than the n-grams alone by 5.00 points: 80.00% against 85.00%"),
        (
            0.75,
            0.2,
            "No significant difference from the n-grams alone at the 0.05 level: 80.00%",
        ),
        (
            0.80,
            0.01,
            "No significant difference from the n-grams alone at the 0.05 level: 80.00%",
        ),
    ],
)
def test_what_the_network_adds_to_its_n_grams_is_said(ngrams, p_value, sentence, tmp_path):
    report = a_report(alone=alone(ngrams, p_value))
    write_report(tmp_path, report)
    assert sentence in summary(report)
    assert sentence in read(tmp_path)[1].replace("**", "")
    assert "n-grams" not in summary(a_report())


def test_sample_is_announced_on_the_first_line_and_imdb_is_not(tmp_path):
    write_report(tmp_path, a_report(data={"name": "sample"}))
    assert SAMPLE_NOTE in read(tmp_path)[1].splitlines()[0]
    assert SAMPLE_NOTE in summary(a_report(data={"name": "sample"}))
    write_report(tmp_path, a_report())
    assert SAMPLE_NOTE not in read(tmp_path)[1] + summary(a_report())


def test_nothing_is_invented(tmp_path):
    write_report(tmp_path, {"seed": 3})
    written, text = read(tmp_path)
    assert set(written) == {"seed", "date"}
    assert "%" not in text and "baseline" not in text and "Confusion" not in text
    assert "| seed | 3 |" in text


def test_everything_given_reaches_the_reader(tmp_path):
    test = score(one_hot([0, 1, 1, 1], 3), np.array([0, 0, 0, 1]), ("a|b", "c", "never"))
    write_report(tmp_path, a_report(test=test, recipe={"layers": 2, "rate": 3e-4}, best_epoch=2))
    _, text = read(tmp_path)
    for part in ("python -m train.imdb", "| seed | 1234 |", "1,234,567", "layers 2, rate 0.0003",
                 "\n- cleaned\n", "| best epoch | 2 |", "Expected calibration error",
                 "| a\\|b | 1 | 2 | 0 |", "| never | – | – | – | 0 |"):  # fmt: skip
        assert part in text


def test_writing_again_replaces_both_files_and_leaves_nothing_beside(tmp_path):
    write_report(tmp_path, {"seed": 1})
    write_report(tmp_path, {"seed": 2})
    assert read(tmp_path)[0]["seed"] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["report.json", "report.md"]


def test_report_that_cannot_be_written_leaves_the_old_one(tmp_path):
    write_report(tmp_path, {"seed": 1})
    with pytest.raises(TypeError):
        write_report(tmp_path, {"seed": object()})
    assert read(tmp_path)[0]["seed"] == 1
    assert "| seed | 1 |" in read(tmp_path)[1]


def test_summary_names_the_numbers():
    text = summary(a_report())
    assert "test accuracy    80.00% (95% interval 49.02 to 94.33%)" in text
    assert "linear baseline  50.00%" in text
    assert len(text.splitlines()) == 3


def test_versions_and_machine_are_known_without_a_host_name():
    import platform

    assert {"python", "jax", "flax", "optax", "numpy"} <= set(versions())
    here = machine()
    assert here["cores"] >= 1 and sum(here["accelerators"].values()) >= 1
    assert platform.node() not in json.dumps(here) or not platform.node()


# curves


def test_smoothing_averages_fewer_values_at_the_ends():
    np.testing.assert_allclose(smooth(np.array([1.0, 2, 6, 4]), 3), [1.5, 3, 4, 5])


@pytest.mark.parametrize("evaluations", [0, 1, 3])
def test_curves_are_drawn_from_any_number_of_evaluations(tmp_path, evaluations):
    lines = [{"step": i, "epoch": 0, "loss": 1 / i, "learning_rate": 0.1} for i in range(1, 9)]
    lines += [
        {"step": 9, "epoch": i, "validation_accuracy": 0.5, "validation_loss": None}
        for i in range(evaluations)
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 10, "lo'  # killed while writing
    (tmp_path / "metrics.jsonl").write_text(text)
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["curves.png", "metrics.jsonl"]


def test_curves_of_an_empty_file_are_an_empty_picture(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 0
