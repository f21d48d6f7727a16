"""Token files: texts as one row of token ids on disk, memory-mapped to save memory."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from train.data.dataset import DataError
from transformer_jax.runtime.progress import ProgressBar
from transformer_jax.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class TokenFile:
    """The token ids of some texts, and the size of these texts."""

    tokens: np.ndarray  # memory-mapped, [n]
    bytes: int  # of the texts in UTF-8
    texts: int
    sha256: str  # of the ids


@contextmanager
def token_files(
    folder: Path,
    tokenizer: Tokenizer,
    parts: Mapping[str, Callable[[], Iterator[Iterator[str]]]],
    *,
    framed: bool,
) -> Iterator[dict[str, TokenFile]]:
    """Write a token file for each part, and remove the folder at the end of the context.

    It is removed after an error too, since the files can be made again from the texts.
    """
    try:
        yield {
            name: write_tokens(folder / f"{name}.bin", read(), tokenizer, framed=framed)
            for name, read in parts.items()
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def write_tokens(
    path: Path, texts: Iterator[Iterator[str]], tokenizer: Tokenizer, *, framed: bool
) -> TokenFile:
    """Write the token ids of every text; with `framed`, each text is [CLS] ... [SEP].

    Raises DataError if all texts are empty.
    """
    dtype = np.uint16 if tokenizer.vocab_size <= 2**16 else np.uint32
    digest, size, number = hashlib.sha256(), 0, 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        open(path, "wb") as file,
        ProgressBar(desc="tokenizing", unit="B", unit_scale=True, leave=False) as bar,
    ):

        def write(ids: np.ndarray) -> None:
            content = ids.astype(dtype).tobytes()
            digest.update(content)
            file.write(content)

        for text in texts:
            number += 1
            if framed:
                write(np.array([tokenizer.cls_id]))
            for piece in text:
                (ids,) = tokenizer.pieces([piece])
                write(ids)
                taken = len(piece.encode("utf-8", "replace"))
                size += taken
                bar.update(taken)
            if framed:
                write(np.array([tokenizer.sep_id]))
        if not size:
            raise DataError("the texts are empty: there is nothing to train on")
    return TokenFile(np.memmap(path, dtype, "r"), size, number, digest.hexdigest())
