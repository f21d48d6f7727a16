"""Results are measured again when their code has changed, and a stopped command resumes."""

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from bench import figures
from bench.compile_time import PROGRAMS
from bench.figures import COMMANDS, RECORDS, main
from bench.measure.sources import packages
from docs.build.older_code import cited, with_notice
from docs.build.results import DOCS

SMALL = {
    "attention": "bench.attention --lengths 16",
    "race": "bench.imdb_race --data {imdb}",
    "imdb": "train.imdb --data {imdb}",
    "mistakes": "bench.mistakes {run:imdb} --data {imdb}",
}


@pytest.fixture
def started(tmp_path, monkeypatch):
    """The commands that were started, in an empty project; `codes` are their exit codes."""
    found = SimpleNamespace(commands=[], codes={}, absent=())

    def run(words, **options):
        assert words[:2] == [sys.executable, "-m"]
        words = list(map(str, words[2:]))
        if "--page" in words or words[0].startswith("docs."):
            return subprocess.CompletedProcess(words, 0)
        found.commands.append(words)
        for option in ("--out", "--resume"):
            if option in words and not found.codes.get(words[0]):
                (tmp_path / words[-1]).mkdir(parents=True, exist_ok=True)
                (tmp_path / words[-1] / "report.json").write_text('{"test_accuracy": 0.5}')
        return subprocess.CompletedProcess(words, found.codes.get(words[0], 0))

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(figures, "COMMANDS", SMALL)
    monkeypatch.setattr(figures, "find_spec", lambda name: None if name in found.absent else name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "results").mkdir(parents=True)
    return found


def programs(started):
    return [words[0] for words in started.commands]


def test_what_is_measured_is_not_measured_again(started, capsys, tmp_path):
    assert main(["--imdb", "reviews"]) == 0
    assert programs(started) == [text.split()[0] for text in SMALL.values()]
    assert started.commands[0] == ["bench.attention", "--lengths", "16"]
    run = started.commands[2][-1]
    assert started.commands[2] == ["train.imdb", "--data", "reviews", "--out", run]
    assert started.commands[3] == ["bench.mistakes", run, "--data", "reviews"]
    report = json.loads((tmp_path / "docs/results/imdb.json").read_text())
    assert report == {"test_accuracy": 0.5}
    started.commands.clear()
    assert main(["--imdb", "reviews"]) == 0 and started.commands == []
    assert main(["race", "--imdb", "reviews"]) == 0 and programs(started) == ["bench.imdb_race"]
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.count("the code of today") == len(SMALL)


def test_a_changed_package_is_named_and_measured_again(started, capsys, tmp_path):
    assert main(["--imdb", "reviews"]) == 0
    path = tmp_path / "docs/results/sources.json"
    sources = json.loads(path.read_text())
    sources["race"]["train/data"] = "another"
    path.write_text(json.dumps(sources))
    capsys.readouterr()
    assert main(["--list"]) == 0
    assert "race                     changed since: train/data\n" in capsys.readouterr().out
    started.commands.clear()
    assert main(["--imdb", "reviews"]) == 0 and programs(started) == ["bench.imdb_race"]


def test_what_is_absent_keeps_its_numbers(started, capsys):
    assert main([]) == 0
    assert programs(started) == ["bench.attention"]
    said = capsys.readouterr().out
    assert "race                     not measured: give --imdb: IMDb reviews" in said
    started.codes["bench.imdb_race"] = 2  # one line said what it lacks
    assert main(["race", "--imdb", "reviews"]) == 1
    assert (
        "race                     not measured: its last line says why" in capsys.readouterr().out
    )
    assert main(["mistakes", "--imdb", "reviews"]) == 1
    assert "imdb must be measured first" in capsys.readouterr().out


def test_without_the_package_to_compare_with_nothing_is_measured(started, capsys):
    started.absent = ("torch",)
    assert main(["attention"]) == 1 and started.commands == []
    said = "attention                not measured: it compares with others: pip install torch\n"
    assert said in capsys.readouterr().out


def test_every_peer_is_of_a_program():
    assert set(figures.PEERS) <= {figures.program(name) for name in COMMANDS}


def test_a_failure_is_an_exit_code_and_the_rest_is_measured(started, capsys):
    started.codes["bench.attention"] = 1
    assert main(["attention", "race", "--imdb", "reviews"]) == 1
    assert programs(started) == ["bench.attention", "bench.imdb_race"]
    assert "attention                failed: exit code 1" in capsys.readouterr().out


def test_ctrl_c_stops_and_a_training_is_resumed(started, capsys, tmp_path):
    started.codes["train.imdb"] = 130
    assert main(["imdb", "race", "--imdb", "reviews"]) == 130
    assert programs(started) == ["train.imdb"] and "resumes" in capsys.readouterr().err
    run = started.commands[0][-1]
    (tmp_path / run).mkdir(parents=True)
    (tmp_path / run / "options.json").write_text("{}")
    started.codes.clear()
    assert main(["imdb", "--imdb", "reviews"]) == 0
    assert started.commands[1] == ["train.imdb", "--resume", run]


@pytest.mark.parametrize("words", [["--list"], ["race", "--imdb", "reviews"]])
def test_a_damaged_record_is_one_line_and_stays(started, capsys, tmp_path, words):
    path = tmp_path / "docs/results/sources.json"
    path.write_text("{")
    assert main(words) == 2 and path.read_text() == "{"
    said = capsys.readouterr().err
    assert said.startswith("error: docs/results/sources.json: ") and said.count("\n") == 1


def test_an_unknown_name_is_one_line(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["nobody"])
    assert stopped.value.code == 2 and "no result is called nobody" in capsys.readouterr().err


def test_every_results_file_has_a_command_or_is_a_record():
    files = {path.stem for path in (DOCS / "results").glob("*.json")} - {"sources"}
    assert files == {*COMMANDS, *RECORDS}
    programs = {figures.program(name) for name in COMMANDS}
    assert packages(*programs.union(*figures.STARTED.values()))  # an error for what is no module


def test_the_code_of_the_benchmarks_is_that_of_their_files():
    """`bench.report` runs pytest on them and imports none."""
    assert {"bench/micro", "transformer_jax/attention/kernels"} <= set(figures.code("bench.report"))


def test_every_program_whose_compile_time_is_measured_is_known():
    first, second = zip(*(command.split()[:2] for command in PROGRAMS.values()), strict=True)
    started = {f"transformer_jax.cli.{name}" for name in second if not name.startswith("-")}
    started |= {name for name in first if name != "transformer_jax"}
    assert started <= set(figures.STARTED["bench.compile_time"])


def test_pages_cite_their_results():
    found = {name: cited((DOCS / name).read_text(encoding="utf-8")) for name in PAGES}
    assert found == PAGES


PAGES = {
    "benchmarks/attention.md": ["attention"],
    "research/translation.md": ["multi30k", "multi30k-fr"],
    "guides/masks.md": [],
}


def test_a_page_says_which_code_has_changed(tmp_path):
    (tmp_path / "results").mkdir()
    page = "# T\n\nAll numbers: results/race.json.\n\n## A\n\n## B\n"
    sources = {"race": dict(figures.code("bench.imdb_race"))}
    path = tmp_path / "results" / "sources.json"
    path.write_text(json.dumps(sources))
    assert with_notice(page, tmp_path) == page
    sources["race"] |= {"train/data": "another"}
    path.write_text(json.dumps(sources))
    noticed = with_notice(page, tmp_path)
    assert "- `race.json`: measured before a change of `train/data`.\n" in noticed
    before, _, after = noticed.partition("<details markdown>")
    assert before == "# T\n\nAll numbers: results/race.json.\n\n"
    assert after.endswith("</details>\n\n## A\n\n## B\n")
    sources["race"] = dict.fromkeys("abcdefg", "")
    path.write_text(json.dumps(sources))
    assert "other packages." in with_notice(page, tmp_path)
    path.unlink()
    assert "before its code was recorded" in with_notice(page, tmp_path)
