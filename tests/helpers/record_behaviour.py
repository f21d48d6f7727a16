"""Record what the programs compute and accept, for the comparison in test_behaviour.py.

    python -m tests.helpers.record_behaviour                    write tests/data/behaviour/*.json
    python -m tests.helpers.record_behaviour commands names     write some of them

A change that alters a record on purpose writes it anew, and its commit says why.
"""

import argparse
import contextlib
import importlib
import inspect
import io
import json
import shutil
import tempfile
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from safetensors import safe_open

import transformer_jax as tj

# Only these imports name the files of the library and of the programs.
from tests.helpers.compiled import compiled
from tests.helpers.reports import without_figures
from train.lm import main as train_lm
from train.trainer import fit
from transformer_jax.__main__ import main as use
from transformer_jax.serialization.run_folder import load_model

ROOT, DATA = Path(tj.__file__).parents[1], Path(__file__).parents[1] / "data"
FOLDER, RUN_FOLDERS = DATA / "behaviour", DATA / "run_folders"

# Training -----------------------------------------------------------------------------------------

# Samples, explanations and checkpoints: nothing of them is recorded, and they take long.
NOT_RECORDED: dict[str, Callable] = {
    "train.tasks.language_modeling.sample_text": lambda *_: "",
    "train.tasks.translation.translated": lambda _model, _tokenizer, texts, **_: texts,
    "train.tasks.classification.write_mistakes": lambda *_, **__: None,
    "train.trainer.checkpoints.save": lambda *_: None,
}
STEPS = 8
COMMON = {
    "--max-steps": STEPS, "--dtype": "float32", "--seed": 0, "--checkpoint-minutes": 1000,
}  # fmt: skip
SIZES = {"--layers": 1, "--embed-dim": 16, "--heads": 2, "--dropout": 0.1}
REVIEWS = {"--data": "reviews", "--text-column": "text", "--label-column": "label", "--classes": 2}
CLASSIFIER = COMMON | REVIEWS | {
    "--max-length": 16, "--truncate": "head-tail", "--learning-rate": 0.002, "--epochs": 2,
    "--batch-tokens": 512, "--no-baseline": True,
}  # fmt: skip

# {name: (the program, its options)}. The paths are those of `write_data` and of the runs before.
RUNS: dict[str, tuple[str, dict[str, Any]]] = {
    "lm": (
        "train.lm",
        COMMON | SIZES | {
            "--data": "book.txt", "--tokenizer": "char", "--length": 16, "--positions": "alibi",
            "--window": 9, "--learning-rate": 0.005, "--muon-rate": 0.04, "--batch-tokens": 128,
            "--epochs": 1,
        },
    ),
    "mlm": (
        "train.mlm",
        COMMON | SIZES | REVIEWS | {
            "--tokenizer": "word:200", "--length": 8, "--positions": "rotary",
            "--mask-rate": 0.2, "--learning-rate": 0.005, "--muon-rate": 0.0,
            "--batch-tokens": 256, "--epochs": 1,
        },
    ),
    "translate": (
        "train.translate",
        COMMON | SIZES | {
            "--data": "pairs.tsv", "--source": "en", "--target": "de", "--tokenizer": "char",
            "--max-length": 16, "--norm": "pre", "--label-smoothing": 0.1, "--beams": 1,
            "--alpha": 0.6, "--learning-rate": 0.004, "--muon-rate": 0.0, "--batch-tokens": 192,
            "--epochs": 2,
        },
    ),
    "imdb": (
        "train.imdb",
        CLASSIFIER | {"--recipe": "fast", "--tokenizer": "word:200", "--unlabelled": True},
    ),
    "imdb-finetune": (
        "train.imdb",
        CLASSIFIER | {
            "--recipe": "finetune", "--pretrained": "mlm", "--pooling": "mean",
            "--layer-decay": 0.8, "--unfreeze": 0.3, "--lora": 2,
        },
    ),
}  # fmt: skip


def write_data(folder: Path) -> None:
    """Write small texts of all kinds, which no generator of random numbers decides."""
    words = "the film plot was it and a cast of play end music very quite".split()
    tells = {0: ("dull", "poor", "awful"), 1: ("fine", "superb", "lovely")}

    def review(part: int, i: int) -> str:
        some = [words[(part + i * 5 + j * (3 + i % 4)) % len(words)] for j in range(6 + i % 13)]
        return " ".join([*some, tells[i % 2][i // 2 % 3], tells[i % 2][i // 6 % 3], f"n{part}{i}"])

    (folder / "reviews").mkdir(parents=True)
    for part, (name, rows) in enumerate({"train": 160, "test": 40, "unsupervised": 160}.items()):
        table = {
            "text": [review(part, i) for i in range(rows)],
            "label": [i % 2 for i in range(rows)],
        }
        pd.DataFrame(table).to_parquet(folder / "reviews" / f"{name}.parquet")
    lines = (" ".join(words[(i * 3 + j * j) % len(words)] for j in range(7)) for i in range(240))
    (folder / "book.txt").write_text("".join(f"{line}.\n" for line in lines), encoding="utf-8")
    english = "one two six ten four five nine".split()
    german = dict(zip(english, "eins zwei sechs zehn vier fünf neun".split(), strict=True))
    rows = [[first, *second] for first in english for second in ([], *([x] for x in english))]
    pairs = (f"{' '.join(row)}\t{' '.join(german[name] for name in row)}" for row in rows)
    (folder / "pairs.tsv").write_text("\n".join(pairs), encoding="utf-8")


def arguments(name: str, folder: Path) -> list[str]:
    """The command line of a run, beside the data and the other runs in the folder."""
    given = dict(RUNS[name][1])
    for option in ("--data", "--pretrained"):
        if option in given:
            given[option] = folder / given[option]
    words = [[key] if value is True else [key, str(value)] for key, value in given.items()]
    return [word for option in words for word in option] + ["--out", str(folder / name)]


def trained(name: str, folder: Path) -> dict:
    """Train a run and return what is recorded of it."""
    main = importlib.import_module(RUNS[name][0]).main
    with losses_alone():
        code = main(arguments(name, folder))
    if code:
        raise RuntimeError(f"{name} ended with exit code {code}")
    lines = (folder / name / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    measured = [json.loads(line) for line in lines]
    return {
        "options": RUNS[name][1],
        "losses": [line["loss"] for line in measured if "loss" in line],
        "validation": [line for line in measured if "loss" not in line],
        "options.json": keys(folder / name / "options.json"),
        "config.json": keys(folder / name / "config.json"),
        "model.safetensors": tensors(folder / name / "model.safetensors"),
    }


@contextlib.contextmanager
def losses_alone():
    """Train with the loss of every step, without figures, samples and checkpoints."""
    with contextlib.ExitStack() as changed:
        changed.enter_context(quiet())
        changed.enter_context(without_figures())
        changed.enter_context(mock.patch.object(fit, "LOG_EVERY", 1))
        for place, function in NOT_RECORDED.items():
            changed.enter_context(mock.patch(place, function))
        yield


def keys(path: Path) -> list[str]:
    """The names in a JSON file, dotted, in order."""

    def names(value: object, at: str) -> list[str]:
        inner = value.items() if isinstance(value, dict) else ()
        return [at] * bool(at) + [n for k, v in inner for n in names(v, f"{at}.{k}" if at else k)]

    return sorted(names(json.loads(path.read_text(encoding="utf-8")), ""))


def tensors(path: Path) -> dict[str, list[int]]:
    """Names and shapes in a safetensors file."""
    with safe_open(path, "numpy") as file:
        return {name: file.get_slice(name).get_shape() for name in sorted(file.keys())}


@contextlib.contextmanager
def quiet():
    """Keep what a program prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        yield out


# Use ----------------------------------------------------------------------------------------------

TEXTS = ("a fine film and the cast was superb", "the plot was dull", "quite a poor play")


def printed(*words: object) -> list[str]:
    """The lines that `python -m transformer_jax` prints."""
    with quiet() as out:
        code = use([str(word) for word in words])
    if code:
        raise RuntimeError(f"{words} ended with exit code {code}")
    return out.getvalue().splitlines()


def batch(tokenizer: Any, texts: tuple[str, ...]) -> tuple[jax.Array, jax.Array]:
    """Texts as tokens and which of them are real, padded on the right."""
    rows = tokenizer.encode(list(texts), 14)
    tokens = np.full((len(rows), max(map(len, rows))), tokenizer.pad_id, np.int32)
    for at, row in zip(tokens, rows, strict=True):
        at[: len(row)] = row
    return jnp.asarray(tokens), jnp.asarray(tokens != tokenizer.pad_id)


def classified(folder: Path) -> dict:
    kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model"]
    run = load_model(folder, kind)
    tokens, is_token = batch(run.tokenizer, TEXTS)
    lines = [json.loads(line) for line in printed("predict", folder, *TEXTS, "", "--json")]
    return {
        "tokens": tokens.tolist(),
        "logits": compiled(run.model)(tokens, is_token).tolist(),
        "probabilities": [list(line["probabilities"].values()) for line in lines],
        "labels": [line["label"] for line in lines],
    }


def filled(folder: Path) -> dict:
    run = load_model(folder, "MaskedLanguageModel")
    tokens, is_token = batch(run.tokenizer, TEXTS)
    with tempfile.TemporaryDirectory() as beside:
        texts, vectors = Path(beside, "texts.txt"), Path(beside, "vectors.npy")
        texts.write_text("\n".join(TEXTS), encoding="utf-8")
        printed("embed", folder, texts, "-o", vectors)
        embedded = np.load(vectors).tolist()
    lines = printed("fill", folder, "the film was [MASK] and the [MASK] was it", "--top", 2)
    return {
        "tokens": tokens.tolist(),
        "logits": compiled(run.model)(tokens, is_token)[:, :4].tolist(),
        "embeddings": embedded,
        "fill": [line.split("%", 1)[1].split() for line in lines if line],
    }


def written(folder: Path) -> dict:
    run = load_model(folder, "LanguageModel")
    tokens, is_token = batch(run.tokenizer, TEXTS)
    prompt = ("generate", folder, "the film", "--tokens", 7)
    drawn = ("--seed", 3, "--temperature", 1.5)
    cut = ("--top-k", 9, "--top-p", 0.9, "--min-p", 0.05, "--repetition-penalty", 1.3)
    ways = {"greedy": ("--greedy",), "beams": ("--beams", 3), "drawn": drawn, "cut": (*drawn, *cut)}
    return {
        "tokens": tokens.tolist(),
        "logits": compiled(run.model)(tokens, is_token)[:, :8].tolist(),
        **{f"generate {name}": printed(*prompt, *options) for name, options in ways.items()},
        "next": [line.split("%", 1)[1] for line in printed("next", folder, "the fil")[:2]],
    }


def translated(folder: Path) -> dict:
    run = load_model(folder, "SequenceToSequence")
    texts = ("one two", "four", "nine ten")
    source, is_source = batch(run.tokenizer, texts)
    target = jnp.roll(source, 1, axis=1)
    return {
        "tokens": source.tolist(),
        "logits": compiled(run.model)(source, is_source, target, is_source)[:, :6].tolist(),
        "translate 1": printed("translate", folder, *texts, "", "--beams", 1),
        "translate 4": printed("translate", folder, *texts, "", "--beams", 4, "--alpha", 0.6),
    }


# {folder in RUN_FOLDERS: what is recorded of it}. The folders are never made anew: README.md there.
USES: dict[str, Callable[[Path], dict]] = {
    "imdb": classified,
    "imdb-finetune": classified,
    "mlm": filled,
    "lm": written,
    "translate": translated,
}


def gone_on(beside: Path) -> dict:
    """Go on with the run that was stopped at its eighth step, in a copy."""
    write_data(beside / "data")
    folder = beside / "run"
    shutil.copytree(RUN_FOLDERS / "lm-stopped", folder)
    options = ["--data", str(beside / "data" / "book.txt"), "--checkpoint-minutes", "1000"]
    with losses_alone():
        code = train_lm(["--resume", str(folder), *options])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    return {"exit code": code, "losses": losses, "validation": lines[-1]["validation_loss"]}


# Command lines ------------------------------------------------------------------------------------

# Those that import without PyTorch.
COMMANDS = (
    "train.classify", "train.imdb", "train.lm", "train.mlm", "train.translate", "transformer_jax",
    "bench.ablation", "bench.attention", "bench.calibration", "bench.claims", "bench.generation",
    "bench.gpu", "bench.imdb_race",
    "bench.loss_curves", "bench.mistakes", "bench.pretrained", "bench.programs",
    "bench.report",
    "bench.scaling", "bench.training_step", "bench.utilization",
)  # fmt: skip


class Parsed(BaseException):
    """A parser that is about to parse."""


def command_line(module: str) -> dict:
    """The options of `python -m MODULE`, by the parser that it comes to use."""

    def stop(parser: argparse.ArgumentParser, *_: object, **__: object) -> None:
        raise Parsed(parser)

    found = importlib.import_module(module)
    main = (
        importlib.import_module(f"{module}.__main__") if hasattr(found, "__path__") else found
    ).main
    with mock.patch.object(argparse.ArgumentParser, "parse_args", stop), quiet():
        try:
            main([])
        except Parsed as parsed:
            return described(parsed.args[0])
    raise RuntimeError(f"{module} did not parse its arguments")


def described(parser: argparse.ArgumentParser) -> dict:
    """The options and subcommands of a parser, without their wording."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return {name: described(command) for name, command in action.choices.items()}
        default = action.default
        if isinstance(default, Path):
            default = str(default.relative_to(ROOT) if default.is_absolute() else default)
        settings = {
            "dest": action.dest,
            "action": type(action).__name__.strip("_").removesuffix("Action"),
            "type": action.type.__name__ if action.type else None if action.nargs == 0 else "str",
            "choices": action.choices and [str(choice) for choice in action.choices],
            "nargs": action.nargs,
            "required": action.required or None,
            "default": default,
        }
        name = " ".join(action.option_strings) or action.dest
        found[name] = {key: value for key, value in settings.items() if value is not None}
    return found


# Public names -------------------------------------------------------------------------------------


def names() -> dict[str, list[str]]:
    """The public names of `transformer_jax`, with the parameters of what can be called."""
    values = {name: getattr(tj, name) for name in dir(tj) if not name.startswith("_")}
    return {
        name: parameters(value) if callable(value) else []
        for name, value in values.items()
        if not isinstance(value, types.ModuleType)
    }


def parameters(function: Callable) -> list[str]:
    """Each as "name" or "name=default", a star before those that are passed by name alone."""
    return [
        "*" * (p.kind is p.KEYWORD_ONLY)
        + p.name
        + ("" if p.default is p.empty else f"={p.default!r}")
        for p in inspect.signature(function).parameters.values()
    ]


# The records --------------------------------------------------------------------------------------


def in_folder(of: Callable[[Path], dict]) -> dict:
    """Return the result of a function that is called with an empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        return of(Path(folder))


def train_all(folder: Path) -> dict:
    write_data(folder)
    return {name: trained(name, folder) for name in RUNS}


RECORDS: dict[str, Callable[[], dict]] = {
    "training": lambda: in_folder(train_all),
    "outputs": lambda: {name: use_of(RUN_FOLDERS / name) for name, use_of in USES.items()},
    "resumed": lambda: in_folder(gone_on),
    "commands": lambda: {module: command_line(module) for module in COMMANDS},
    "names": names,
}


def recorded(name: str) -> dict:
    return json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def shortened(value: Any) -> Any:
    """Numbers with seven digits, of which float32 has no more."""
    if isinstance(value, dict):
        return {key: shortened(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [shortened(inner) for inner in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value


def text_of(record: dict) -> str:
    """JSON with a line for each entry of each part."""
    parts = []
    for name, part in record.items():
        if isinstance(part, dict):
            lines = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in part.items())
            parts.append(f" {json.dumps(name)}: {{\n" + ",\n".join(lines) + "\n }")
        else:
            parts.append(f" {json.dumps(name)}: {json.dumps(part)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("records", nargs="*", metavar="RECORD", help=", ".join(RECORDS))
    wanted = parser.parse_args(arguments).records
    if unknown := set(wanted) - set(RECORDS):
        parser.error(f"no record is called {', '.join(sorted(unknown))}: {', '.join(RECORDS)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_disable_most_optimizations", True)  # as the tests
    for name in wanted or RECORDS:
        text = text_of(shortened(RECORDS[name]()))
        (FOLDER / f"{name}.json").write_text(text, encoding="utf-8")
        print(f"wrote {FOLDER / name}.json")


if __name__ == "__main__":
    main()
