"""`python -m transformer_jax runs`: a table of the run folders in a folder."""

import json
import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from train.trainer.folder_lock import held
from train.trainer.options import CommonOptions
from train.trainer.run import Run
from transformer_jax.__main__ import main


def a_run(folder, report=None, counts=None, steps=(), **options):
    """The files of a run that the table reads."""
    folder.mkdir()
    content = {"program": "train.imdb", "data_sha256": "", "options": options}
    (folder / "options.json").write_text(json.dumps(content))
    (folder / "metrics.jsonl").write_text("".join(f'{{"step": {n}}}\n' for n in steps) + '{"st')
    if report is not None:
        (folder / "report.json").write_text(json.dumps(report))
    save_file({"x": np.zeros(1, np.float32)}, folder / "model.safetensors", counts)


def listed(folder, capsys):
    assert main(["runs", str(folder)]) == 0
    return capsys.readouterr().out.splitlines()


def report(date, **entries):
    made = {"data": {"name": "reviews"}, "recipe": "fast", "train_seconds": 1000.25}
    return {"date": date, **made, **entries}


def test_a_run_is_a_row_and_rows_are_in_the_order_of_their_dates(tmp_path, capsys):
    good = {"test_accuracy": 0.92064, "test_accuracy_interval": [0.9172, 0.9239]}
    a_run(tmp_path / "b", report("2026-03-01", **good, evidence_seconds=10.0))
    a_run(tmp_path / "c", report("2025-12-31", bleu=12.3456))
    a_run(tmp_path / "a", {"date": "2026-02-01", "bits_per_byte": 1.5}, recipe=None)
    assert listed(tmp_path, capsys) == [
        "run  data     recipe              accuracy         interval  seconds  date",
        "c    reviews  fast              12.35 BLEU                   1,000.2  2025-12-31",
        "a                     1.5000 bits per byte                            2026-02-01",
        "b    reviews  fast                  92.06%  91.72 to 92.39%  1,010.2  2026-03-01",
    ]


def test_the_runs_of_one_day_are_in_the_order_in_which_they_ended(tmp_path, capsys):
    for name, seconds in (("a", 30), ("b", 10), ("c", 20)):
        a_run(tmp_path / name, report("2026-03-01", test_accuracy=0.5))
        for file in (tmp_path / name).iterdir():
            os.utime(file, (seconds, seconds))
    assert [line[0] for line in listed(tmp_path, capsys)[1:]] == ["b", "c", "a"]


def test_a_run_without_a_result_has_the_step_after_which_it_stopped(tmp_path, capsys):
    a_run(tmp_path / "a", counts={"step": "20", "steps": "184"}, data="x.csv", recipe="fast")
    a_run(tmp_path / "b", steps=(10, 17))  # of a version that did not save the number of all steps
    a_run(tmp_path / "c", report("2026-01-01", bleu=1.0), counts={"step": "8", "steps": "9"})
    found = {line[0]: line for line in listed(tmp_path, capsys)[1:]}
    assert "x.csv" in found["a"] and "stopped after step 20 of 184" in found["a"]
    assert "stopped after step 17" in found["b"] and " of " not in found["b"]
    assert "stopped after step 8 of 9" in found["c"]  # extended, and stopped again


def test_the_name_of_a_program_stands_for_a_recipe_only_if_it_has_none(tmp_path, capsys):
    a_run(tmp_path / "a", data="x.csv", recipe=None)
    a_run(tmp_path / "b", data="sample")
    found = [line.split()[:4] for line in listed(tmp_path, capsys)[1:]]
    assert found == [["a", "x.csv", "stopped", "after"], ["b", "sample", "imdb", "stopped"]]


def test_a_run_that_another_process_trains_has_not_stopped(tmp_path, capsys):
    folder = tmp_path / "run"
    with held(folder, new=True):
        Run("train.imdb", folder, CommonOptions()).begin("")
        assert "is training, after step 0" in listed(tmp_path, capsys)[1]
    assert "stopped after step 0" in listed(tmp_path, capsys)[1]


@pytest.mark.parametrize("damaged", ["", "[]", '{"program": 3}', '{"program": "x"}', "{" * 9999])
def test_what_is_no_run_is_skipped(damaged, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "damaged").mkdir()
    (tmp_path / "damaged" / "options.json").write_text(damaged)
    assert listed(tmp_path, capsys) == [f"{tmp_path} has no run of a training program"]


def test_a_run_whose_files_are_damaged_is_listed(tmp_path, capsys):
    a_run(tmp_path / "\x1b[31mrun", {"data": [], "test_accuracy": "x", "train_seconds": None})
    (tmp_path / "\x1b[31mrun" / "model.safetensors").write_bytes(b"\xff" * 20)
    assert listed(tmp_path, capsys)[1].split() == ["[31mrun", "imdb"]


def test_a_folder_that_cannot_be_listed_is_one_line(tmp_path, capsys):
    assert main(["runs", str(tmp_path / "no")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and "pass the folder that has the run folders" in error
