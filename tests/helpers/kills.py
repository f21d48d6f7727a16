"""Kills a real training run again and again, and compares what comes out with a run that nobody
touched.

    python -m tests.helpers.kills --kills 100 --out docs/results/kills.json

SIGKILL, at a moment drawn over the whole life of a process, or as a checkpoint is being written.
After every kill the run goes on with --resume (or begins anew where nothing was written yet). In
the end every array, every line of metrics and the report must be those of the uninterrupted run,
but for what is a time.
"""

import argparse
import json
import os
import random
import runpy
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from tests.helpers.forked import forked

ROOT = Path(__file__).parents[2]
TIMES = {
    "tokens_per_second", "train_seconds", "step_seconds", "save_seconds", "losses_seconds",
    "checkpoint_seconds", "evidence_seconds", "guess_seconds", "peak_memory_gib", "command",
    "earlier_commands", "date", "metrics_bytes",
}  # fmt: skip


def write_reviews(path: Path) -> Path:
    """300 texts whose label one word tells."""
    rng = np.random.default_rng(0)
    words = {"good": ("fine", "superb", "lovely"), "bad": ("dull", "poor", "awful")}
    rows = ["text,label"]
    for i in range(300):
        label = ("bad", "good")[i % 2]
        filler = " ".join(rng.choice(["the", "film", "plot", "was", "it"], rng.integers(3, 12)))
        rows.append(f"{filler} {rng.choice(words[label])} {i},{label}")
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


class Training:
    """A process that runs `python -m train.imdb`, with what `subprocess.Popen` has of it."""

    def __init__(self, arguments: list[str], folder: Path, error: Path):
        self.error = error
        self.process = forked(_train, arguments, folder, error)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.join()

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def send_signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def finish(self) -> str:
        """Wait for its end and return what it said on stderr."""
        self.process.join()
        return self.error.read_text(encoding="utf-8")


def _train(arguments: list[str], folder: Path, error: Path) -> None:
    """Run the program in this process."""
    os.chdir(folder)
    sys.path.insert(0, str(ROOT))
    for number, path in ((1, os.devnull), (2, error)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    import jax

    # A process lives for seconds: what XLA compiled is kept for the next one.
    jax.config.update("jax_compilation_cache_dir", str(folder / "compiled"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_disable_most_optimizations", True)
    sys.argv = ["train.imdb", *arguments]
    runpy.run_module("train.imdb", run_name="__main__", alter_sys=True)


class Runner:
    """Starts `train.imdb` on the reviews, in a process of its own."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.data = write_reviews(folder / "reviews.csv")
        self.started = 0

    def start(self, run: Path, *more: str) -> Training:
        """A new run, or the next process of one that was begun."""
        arguments = [
            "--data", str(self.data), "--out", str(run), "--epochs", "5", "--max-length", "32",
            "--batch-tokens", "64", "--dtype", "float32", "--no-baseline",
            "--checkpoint-minutes", "0.005",
        ]  # fmt: skip
        if (run / "options.json").exists():
            arguments = ["--resume", str(run)]
        return self.train(*arguments, *more)

    def train(self, *arguments: str) -> Training:
        """`train.imdb` with these arguments."""
        self.started += 1
        error = self.folder / f"stderr-{self.started}.txt"
        return Training(list(arguments), self.folder, error)

    def finish(self, run: Path, *more: str) -> str:
        """Train to the end undisturbed and return what was said on stderr."""
        with self.start(run, *more) as process:
            error = process.finish()
        assert process.returncode == 0, error
        return error


def timeless(value):
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in TIMES}
    return value


def outcome(run: Path) -> dict:
    """All of a run that must not depend on whether it was stopped."""
    newest = max((run / "checkpoints").glob("step-*"))
    return {
        "checkpoint": newest.name,
        "progress": timeless(json.loads((newest / "progress.json").read_text())),
        "metrics": [
            timeless(json.loads(line)) for line in (run / "metrics.jsonl").read_text().splitlines()
        ],
        "report": timeless(json.loads((run / "report.json").read_text())),
        "config": (run / "config.json").read_text(),
        "tokenizer": (run / "tokenizer.json").read_text(),
    }


def differences(run: Path, reference: Path) -> list[str]:
    """Return the files and values of a run that differ from the reference."""
    ours, theirs = outcome(run), outcome(reference)
    found = [name for name in theirs if ours[name] != theirs[name]]
    for read in (weights, state_arrays):
        ours, theirs = read(run), read(reference)
        if set(ours) != set(theirs):
            found.append("names of arrays")
        found += [k for k in theirs if k in ours and not np.array_equal(ours[k], theirs[k])]
    return found


def weights(run: Path) -> dict[str, np.ndarray]:
    return load_file(run / "model.safetensors")


def state_arrays(run: Path) -> dict[str, np.ndarray]:
    """Every array of the last checkpoint: parameters, average, optimizer, best."""
    import jax
    from orbax.checkpoint import v1 as ocp

    newest = max((run / "checkpoints").glob("step-*"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the shapes are taken from the files is what we want
        flat, _ = jax.tree_util.tree_flatten_with_path(ocp.load((newest / "state").absolute()))
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in flat}


def kill(process: Training, run: Path, rng: random.Random, seconds: float) -> str | None:
    """Kills at a drawn moment; in which phase that was, or None if the process was done before."""
    if rng.random() < 0.5:
        deadline = time.monotonic() + rng.uniform(0, seconds)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.005)
    else:  # as one of the next checkpoints is written
        for _ in range(rng.randint(1, 4)):
            before = writing(run)
            while process.poll() is None and writing(run) in (before, set()):
                time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.05))
    if process.poll() is not None:
        return None
    process.send_signal(signal.SIGKILL)
    process.finish()
    if not (run / "options.json").exists():
        return "before training"
    if (run / "report.json").exists():
        return "after the report"
    return "while a checkpoint was written" if writing(run) else "between checkpoints"


def writing(run: Path) -> set[str]:
    return {path.name for path in (run / "checkpoints").glob(".*.part")}


def kill_runs(folder: Path, kills: int, seed: int = 0, say=lambda line: None) -> dict:
    """Kills until there were `kills`, over as many runs as that takes, and compares every run that
    ended.
    """
    rng, runner = random.Random(seed), Runner(folder)
    reference = folder / "reference"
    runner.finish(reference)
    begun = time.monotonic()
    runner.finish(folder / "timed")  # with everything compiled
    seconds = time.monotonic() - begun
    lost = differences(folder / "timed", reference)
    assert not lost, f"two undisturbed runs differ in {lost}"
    phases, lost, runs = Counter(), [], 0
    while sum(phases.values()) < kills:
        run = folder / f"run-{runs}"
        runs += 1
        ended = False
        while not ended and sum(phases.values()) < kills:
            with runner.start(run) as process:
                phase = kill(process, run, rng, seconds)
                if phase is None:
                    error = process.finish()
                    ended = True
                    if process.returncode != 0:
                        lost.append(f"{run.name}: {error.strip()[-500:]}")
                else:
                    phases[phase] += 1
                    say(f"{sum(phases.values())}/{kills} {phase}")
        if not ended:
            runner.finish(run)
        lost += [f"{run.name}: {name}" for name in differences(run, reference)]
    return {"kills": sum(phases.values()), "runs": runs, "phases": dict(phases), "lost": lost}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begun = time.monotonic()
        result = kill_runs(Path(folder), options.kills, options.seed, say=print)
    result |= {"seconds": round(time.monotonic() - begun), "seed": options.seed}
    command = f"python -m tests.helpers.kills --kills {options.kills} --seed {options.seed}"
    text = json.dumps({"command": command} | result, indent=2) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    sys.exit(bool(result["lost"]))


if __name__ == "__main__":
    main()
