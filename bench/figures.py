"""Measure again what the pages cite, and write all pages, figures and tables from the results.

    python -m bench.figures --list          what is stored, and which code has changed since
    python -m bench.figures attention plan  measure these results again
    python -m bench.figures --imdb PATH     measure all whose code has changed; hours, or days
    python -m bench.figures --pages         measure nothing, write the pages

Every measurement is a process of its own, with the command that docs/results/README.md names.
After each, docs/results/sources.json gets a hash of every package that it ran. A result whose
packages have not changed is not measured again, so the same command resumes after a stop. A
training is resumed from its folder below runs/figures. What needs data, a GPU or a package that is
absent keeps its numbers and its date.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from bench.measure.sources import changed, packages
from transformer_jax.runtime.errors import InputError, one_line
from transformer_jax.runtime.files import write_text

RUNS = Path("runs/figures")
# What the commands need from a user: the option of that name, and what it is.
INPUTS = {
    "imdb": "IMDb reviews, as train.imdb --data takes them",
    "few": "1,000 labelled reviews (docs/research/unlabelled.md)",
    "multi30k": "folder of Multi30k",
    "shakespeare": "file of tinyshakespeare",
    "minilm": "folder of all-MiniLM-L6-v2",
    "reviews": "reviews to embed, a .parquet file with the column text",
    "tutorial": "log of python -m bench.tutorial_torch",
}
SEEDS = ("", "-seed-1", "-seed-2")
UNLABELLED = "train.imdb --data {imdb} --unlabelled"
# The command of each file in docs/results, in the order in which they are measured. A training has
# no file of its own: its report.json is copied.
COMMANDS = {
    "plan": "bench.plan",
    "attention": "bench.attention",
    "bench": "bench.report",
    "training_step": "bench.training_step",
    "compile_time": "bench.compile_time",
    "generation": "bench.generation",
    "pretrained": "bench.pretrained --model {minilm} --data {reviews}",
    "mesh": "bench.mesh",
    "claims": "bench.claims",
    "gpu": "bench.gpu",
    "programs": "bench.programs",
    "kills": "tests.helpers.kills --kills 100 --out docs/results/kills.json",
    "scaling": "bench.scaling --data {shakespeare}",
    "loss_curves": "bench.loss_curves --data {imdb}",
    "sample": "train.imdb --data sample",
    "sample-mlm": "train.mlm --data sample",
    "sample-mlm-classifier": "train.imdb --data sample --pretrained {run:sample-mlm}",
    "translate-sample": "train.translate --data sample",
    "shakespeare": "train.lm --data {shakespeare} --heads 2 --epochs 5",
    "multi30k": "train.translate --data {multi30k} --source en --target de",
    "multi30k-fr": "train.translate --data {multi30k} --source en --target fr",
    **{f"imdb{end}": f"train.imdb --data {{imdb}}{end.replace('-seed-', ' --seed ')}"
       for end in SEEDS},
    **{f"imdb-unlabelled{end}": UNLABELLED + end.replace("-seed-", " --seed ") for end in SEEDS},
    **{f"imdb-vectors{end}": f"{UNLABELLED} --vectors" + end.replace("-seed-", " --seed ")
       for end in SEEDS},
    "imdb-few": "train.imdb --data {few} --epochs 12",
    "imdb-few-unlabelled": "train.imdb --data {few} --unlabelled",
    "imdb-mlm": "train.mlm --data {imdb}",
    "imdb-mlm-classifier": "train.imdb --data {imdb} --pretrained {run:imdb-mlm} --seed 0",
    "finetune-imdb": "train.imdb --data {imdb} --pretrained {minilm} --learning-rate 2e-4"
    " --epochs 1",
    "mistakes": "bench.mistakes {run:imdb} --data {imdb}",
    "ablation": "bench.ablation --data {imdb}",
    "calibration": "bench.calibration --data {imdb}",
    "row_order": "bench.row_order --data {imdb}",
    "race": "bench.imdb_race --data {imdb} --tutorial {tutorial}",
}  # fmt: skip
# Nobody measures these again: they are records of earlier versions, or written by hand.
RECORDS = ("earlier-runs", "recipe-rounds", "mistakes-reasons", "imdb-vectors-again-seed-1",
           "imdb-vectors-again-seed-2")  # fmt: skip
TRAINING = ("train.imdb", "train.lm", "train.mlm", "train.translate")
# What these programs start in other processes.
STARTED = {
    "bench.compile_time": (
        *TRAINING, "bench.measure.compile_clock",
        *(f"transformer_jax.cli.{name}" for name in ("predict", "generate", "embed", "translate")),
    ),
    "bench.programs": TRAINING,
    "bench.report": (
        "bench.conftest",
        *(f"bench.micro.{path.stem}" for path in Path(__file__).parent.glob("micro/test_*.py")),
    ),
    "tests.helpers.kills": ("train.imdb",),
}  # fmt: skip
# The packages that a program compares with where they are installed. The pages cite these numbers.
PEERS = {
    "bench.attention": ("torch",),
    "bench.report": ("torch",),
    "bench.generation": ("torch", "transformers"),
}
PAGES = ("docs.build.tables", "docs.build.errata", "docs.build.architecture")
DOCS, SOURCES = Path("docs"), "results/sources.json"


def program(name: str) -> str:
    """Return the module that measures a result."""
    return COMMANDS[name].partition(" ")[0]


@cache
def code(module: str) -> dict[str, str]:
    """Return the packages that a module runs, as they are now."""
    return packages(module, *STARTED.get(module, ()))


def recorded(docs: Path) -> dict[str, dict[str, str]]:
    """Return the packages of each stored result as they were when it was measured."""
    path = docs / SOURCES
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as problem:
        raise InputError(f"{path}: {one_line(problem)}") from None


def changes(name: str, docs: Path) -> list[str] | None:
    """Return the packages that changed since a result was measured; None if it never was."""
    before = recorded(docs).get(name)
    return None if before is None else changed(before, code(program(name)))


def state(name: str, docs: Path) -> str:
    """Return a sentence on whether the code of a result is that of today."""
    since = changes(name, docs)
    if since is None:
        return "never measured with a record of its code"
    return f"changed since: {', '.join(since)}" if since else "the code of today"


def folder(name: str) -> Path:
    """Return the run folder of a training, which is another one when its code changes."""
    text = json.dumps(code(program(name)))
    return RUNS / f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def words(name: str, given: dict[str, str | None]) -> list[str]:
    """Return the words of a command.

    Raises LookupError, with a sentence, if an input or a package is absent.
    """
    found = []
    if absent := [peer for peer in PEERS.get(program(name), ()) if find_spec(peer) is None]:
        raise LookupError(f"it compares with others: pip install {' '.join(absent)}")
    for word in COMMANDS[name].split():
        kind, _, other = word.strip("{}").partition(":")
        if not word.startswith("{"):
            found.append(word)
        elif kind == "run":
            if not (folder(other) / "report.json").exists():
                raise LookupError(f"{other} must be measured first, for its run folder")
            found.append(str(folder(other)))
        elif given.get(kind) is None:
            raise LookupError(f"give --{kind}: {INPUTS[kind]}")
        else:
            found.append(given[kind])
    return found


def measure(name: str, given: dict[str, str | None], docs: Path) -> str:
    """Measure one result, and return a sentence on what came of it."""
    try:
        command = words(name, given)
    except LookupError as missing:
        return f"not measured: {missing.args[0]}"
    ran = code(program(name))
    is_training = program(name).startswith("train.")
    if is_training:
        run = folder(name)
        if (run / "options.json").exists():
            command = [command[0], "--resume", str(run)]
        else:
            command += ["--out", str(run)]
    print(f"{name}: python -m {' '.join(command)}", flush=True)
    exit_code = subprocess.run([sys.executable, "-m", *command], check=False).returncode
    if exit_code == 130:
        raise KeyboardInterrupt
    if exit_code == 2:  # it lacks data, a device or a package
        return "not measured: its last line says why"
    if exit_code != 0:
        return f"failed: exit code {exit_code}"
    if is_training:
        report = (run / "report.json").read_text(encoding="utf-8")
        write_text(docs / f"results/{name}.json", report)
    sources = recorded(docs) | {name: ran}
    write_text(docs / SOURCES, json.dumps(dict(sorted(sources.items())), indent=1) + "\n")
    return "measured"


def write_pages() -> list[str]:
    """Write every page, figure and table again; return the programs that failed."""
    pages = {program(name) for name in COMMANDS if program(name).startswith("bench.")}
    commands = [[module, "--page"] for module in sorted(pages)] + [[module] for module in PAGES]
    done = {
        words[0]: subprocess.run(
            [sys.executable, "-m", *words], check=False, stdout=subprocess.DEVNULL
        ).returncode
        for words in commands
    }
    return [module for module, exit_code in done.items() if exit_code != 0]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.figures",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help="results to measure again, also if unchanged")
    add("--list", action="store_true", help="measure nothing, say which code has changed")
    add("--pages", action="store_true", help="measure nothing, write the pages")
    for name, what in INPUTS.items():
        add(f"--{name}", metavar="PATH", help=what)
    options = parser.parse_args(arguments)
    if unknown := sorted(set(options.names) - set(COMMANDS)):
        parser.error(f"no result is called {', '.join(unknown)}; --list names them")
    try:
        return run(options)
    except (InputError, OSError) as problem:
        print(f"error: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        said = "stopped; what is measured is stored, and the same command resumes"
        print(f"\n{said}", file=sys.stderr)
        return 130


def run(options: argparse.Namespace) -> int:
    """Measure, list or write what the options ask for, and return the exit code.

    It is 1 if a measurement or a page failed, or if a result that is named was not measured.
    """
    if options.list:
        for name in options.names or COMMANDS:
            print(f"{name:<24} {state(name, DOCS)}")
        return 0
    outcomes = {}
    if not options.pages:
        for name in options.names or [name for name in COMMANDS if changes(name, DOCS) != []]:
            outcomes[name] = measure(name, vars(options), DOCS)
    failed = write_pages()
    for name, outcome in outcomes.items():
        print(f"{name:<24} {outcome}")
    for module in failed:
        print(f"error: python -m {module} failed", file=sys.stderr)
    wrong = [
        name
        for name, outcome in outcomes.items()
        if outcome.startswith("failed") or (name in options.names and outcome != "measured")
    ]
    return int(bool(failed or wrong))


if __name__ == "__main__":
    sys.exit(main())
