"""Train the tutorial's classifier in PyTorch, against the clock: the opponent of `train.imdb`.

    python -m bench.tutorial_torch --data PATH --log FILE    as the tutorial trains it
    python -m bench.tutorial_torch --data PATH --log FILE --attention sdpa --bfloat16 --fused

It follows the listings of "The Transformers, a complete architectural breakdown" (2026); the model
is in bench/peers/tutorial_model.py:

    1.22        on a GPU where there is one
    1.24-1.26   GPT-2's tokens, [CLS] and [SEP] around the first 254, filled up with [PAD] to 256
    1.29        batches of 16, shuffled anew in each epoch, the last of an epoch smaller
    1.38, 1.39  100 epochs; every loss is read as it comes; the last step's weights are scored

Some things differ from the text. Texts are tokenized once, before the clock starts, where 1.28 does
it at every access. `<br />` is replaced by a space, as everywhere here. Training rows that repeat a
test text are left out, and a tenth of the others (no movie in common) is held out for validation,
the same as in `train.imdb` for the same seed; batches come in the same order too. The test texts
are scored only with --test, once, at the end.

The log is lines of JSON, each on disk when it is written: first the settings, then {step, epoch,
seconds, loss} and {step, epoch, seconds, validation_accuracy, validation_seconds}. `seconds` is the
time of training without validation, from before the first step. `python -m bench.imdb_race
--tutorial LOG` compares it with ours.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np

from bench.measure.command_line import without_paths
from train.data.dataset import DataError, Split
from train.data.load import load, split_validation
from transformer_jax.runtime.errors import InputError, TokenizerError
from transformer_jax.text.batching import Batches, epoch_plans, evaluation_plans
from transformer_jax.text.tokenizer import Tokenizer, train_tokenizer

try:
    from bench.peers.tutorial_model import (
        TutorialClassifier,
        make_inference,
        make_optimizer,
        make_step,
        to_tensors,
    )
except ModuleNotFoundError as error:
    if __name__ != "__main__" or error.name != "torch":
        raise
    print(f"bench.tutorial_torch: error: {error}", file=sys.stderr)
    sys.exit(2)
import torch
from torch import Tensor

PROGRAM = "bench.tutorial_torch"
VALIDATION_FRACTION = 0.1
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def accuracy(infer: Callable, batches: Iterable[tuple[Tensor, Tensor, Tensor]]) -> float:
    right = total = 0
    for tokens, is_token, labels in batches:
        right += int((infer(tokens, is_token).argmax(dim=1) == labels).sum())
        total += len(labels)
    return right / total


@dataclass(frozen=True)
class Feed:
    """Batches of texts as tensors, all padded to one length."""

    tokenizer: Tokenizer
    batch: int
    length: int

    def encode(self, split: Split) -> list[np.ndarray]:
        return self.tokenizer.encode(split.texts, self.length)

    def epochs(
        self, examples: list[np.ndarray], labels: np.ndarray, epochs: int, seed: int
    ) -> Iterator[tuple[int, bool, tuple[Tensor, ...]]]:
        """Yield (epoch, whether the epoch ends here, batch) over all epochs."""
        lengths, shape = [len(ids) for ids in examples], (self.length,)
        for epoch in range(epochs):
            plans = epoch_plans(lengths, shape, self.batch * self.length, seed=seed, epoch=epoch)
            for k, batch in enumerate(self._batches(examples, labels, plans), 1):
                yield epoch + 1, k == len(plans), batch

    def in_order(
        self, examples: list[np.ndarray], labels: np.ndarray
    ) -> Iterator[tuple[Tensor, ...]]:
        lengths = [len(ids) for ids in examples]
        plans = evaluation_plans(lengths, (self.length,), self.batch * self.length)
        return self._batches(examples, labels, plans)

    def _batches(
        self, examples: list[np.ndarray], labels: np.ndarray, plans: list
    ) -> Iterator[tuple[Tensor, ...]]:
        for batch in Batches(plans, examples, labels, self.tokenizer.pad_id):
            yield to_tensors(batch, DEVICE)


def write_line(file: TextIO, **line) -> None:
    """Write a line of JSON to the log, and show it."""
    file.write(json.dumps(line, allow_nan=False) + "\n")
    print("  ".join(f"{name} {value}" for name, value in line.items()), flush=True)


def fit(
    options: argparse.Namespace,
    stream: Iterator[tuple[int, bool, tuple[Tensor, ...]]],
    step_once: Callable[..., Tensor],
    score: Callable[[], float],
    write: Callable[..., None],
) -> int:
    """Make the steps and write losses and scores, until --until; return the last step."""
    started, validating, losses, step = time.perf_counter(), 0.0, [], 0
    for step, (epoch, ends, batch) in enumerate(stream, 1):
        losses.append(float(step_once(*batch)))  # waits for the step, as the tutorial does
        seconds = time.perf_counter() - started - validating
        line = {"step": step, "epoch": epoch, "seconds": round(seconds, 3)}
        if ends or step % options.log_every == 0:
            mean = sum(losses) / len(losses)
            write(**line, loss=mean if math.isfinite(mean) else None)
            losses.clear()
        if ends or (options.validate_every and step % options.validate_every == 0):
            begun = time.perf_counter()
            found = score()
            validating += time.perf_counter() - begun
            write(**line, validation_accuracy=found, validation_seconds=round(validating, 3))
            if options.until is not None and found >= options.until:
                break
    return step


def train(options: argparse.Namespace, arguments: list[str]) -> None:
    """Load the data, train the model, and score the test split if --test asks for it."""
    data = load(options.data, seed=options.seed)
    train_split, validation, split_rule = split_validation(
        data.train, VALIDATION_FRACTION, options.seed
    )
    tokenizer = train_tokenizer(options.tokenizer, train_split.texts, gpt2_files=options.gpt2_files)
    feed = Feed(tokenizer, options.batch, options.length)
    examples, held = feed.encode(train_split), feed.encode(validation)
    torch.manual_seed(options.seed)
    model = TutorialClassifier(
        tokenizer.vocab_size,
        pad_id=tokenizer.pad_id,
        max_length=options.length,
        attention=options.attention,
    ).to(DEVICE)
    optimizer = make_optimizer(model, fused=options.fused)
    step_once = make_step(model, optimizer, bfloat16=options.bfloat16)
    infer = make_inference(model, bfloat16=options.bfloat16)

    def score(split: Split, examples: list[np.ndarray]) -> float:
        return accuracy(infer, feed.in_order(examples, split.labels))

    with open(options.log, "x", buffering=1, encoding="utf-8") as file:
        write = partial(write_line, file)
        for note in data.notes:
            print(f"note  {note}")
        write(
            command=without_paths(["python", "-m", PROGRAM, *arguments]),
            data=data.name,
            split_rule=split_rule,
            train=len(train_split),
            validation=len(validation),
            tokenizer=tokenizer.spec,
            parameters=sum(parameter.numel() for parameter in model.parameters()),
            attention=options.attention,
            dtype="bfloat16" if options.bfloat16 else "float32",
            fused=options.fused,
            batch=options.batch,
            length=options.length,
            seed=options.seed,
            torch=torch.__version__,
            device=DEVICE,
            threads=torch.get_num_threads(),
        )
        stream = feed.epochs(examples, train_split.labels, options.epochs, options.seed)
        step = fit(options, stream, step_once, lambda: score(validation, held), write)
        if options.test:
            write(step=step, test_accuracy=score(data.test, feed.encode(data.test)))


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"python -m {PROGRAM}",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", required=True, metavar="WHAT", help="as for train.imdb: a path, imdb, sample")
    add("--log", required=True, metavar="FILE", help="new file for the lines of JSON")
    add("--epochs", type=int, default=100, metavar="E", help="default: 100")
    add("--batch", type=int, default=16, metavar="B", help="texts in a batch (default: 16)")
    add("--length", type=int, default=256, metavar="T", help="tokens of a text (default: 256)")
    add("--tokenizer", default="gpt2", metavar="SPEC", help="gpt2 (default), bpe:N or word:N")
    add("--gpt2-files", metavar="DIR", help="of encoder.json and vocab.bpe, if tiktoken has none")
    add("--attention", choices=("eager", "sdpa"), default="eager", help="default: eager")
    add("--bfloat16", action="store_true", help="products in bfloat16, by autocast")
    add("--fused", action="store_true", help="PyTorch's fused AdamW")
    add("--seed", type=int, default=0, metavar="S", help="of all random numbers (default: 0)")
    add("--log-every", type=int, default=10, metavar="N", help="steps per line (default: 10)")
    add("--validate-every", type=int, metavar="N", help="also after every N steps, not only epochs")
    add("--until", type=float, metavar="A", help="stop at this validation accuracy")
    add("--test", action="store_true", help="score the test split, once, at the end")
    return parser


def check(options: argparse.Namespace) -> None:
    """Raise InputError for options out of range, before anything is read."""
    for name, least in (
        ("epochs", 1), ("batch", 1), ("length", 3), ("seed", 0), ("log_every", 1),
        ("validate_every", 1),
    ):  # fmt: skip
        value = getattr(options, name)
        if value is not None and not least <= value < 2**31:
            raise InputError(
                f"--{name.replace('_', '-')} must be {least} or more and less than {2**31}; got "
                f"{value}"
            )
    if options.until is not None and not 0 <= options.until <= 1:
        raise InputError(f"--until must be an accuracy from 0 to 1; got {options.until}")
    log = Path(options.log)
    if log.exists() or not log.parent.is_dir():
        problem = "exists already" if log.exists() else "is in a folder that does not exist"
        raise InputError(f"--log {log} {problem}; name a new file")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser().parse_args(arguments)
    try:
        check(options)
        train(options, arguments)
    except (InputError, DataError, TokenizerError, OSError) as error:
        print(f"{PROGRAM}: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"\nstopped; the measurements so far are in {options.log}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
