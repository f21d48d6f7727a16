"""Embed texts as vectors with a pretrained encoder.

    python -m transformer_jax embed MODEL texts.txt -o vectors.npy

texts.txt has one text per line; - is standard input.
MODEL is a folder or a name on the Hugging Face Hub, such as sentence-transformers/all-MiniLM-L6-v2.
vectors.npy has one row per text, and gets its name once all are written. Pooling and normalisation
are read from the model's files.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

from transformer_jax.cli.arguments import add_dtype
from transformer_jax.cli.terminal import read_lines, writable
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.files import write


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder or Hugging Face Hub name of a model")
    parser.add_argument("file", metavar="FILE", help="texts, one per line; - is standard input")
    parser.add_argument(
        "-o", "--out", metavar="OUT", required=True, help=".npy file for the float32 vectors"
    )
    add_dtype(parser)


def run(options: argparse.Namespace) -> None:
    if not options.out.endswith(".npy"):
        raise InputError(f"--out must end with .npy, got {options.out}")
    texts = read_lines(options.file)
    folder = folder_of(options.model)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.embed import SentenceEncoder

    encoder = SentenceEncoder.load(folder, dtype=options.dtype)
    shape = len(texts), encoder.embed_dim

    def save(beside: Path) -> None:
        with open(beside, "wb") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            start = file.tell()
            for rows, vectors in encoder.stream(texts, progress=True):
                for row, vector in zip(rows.tolist(), vectors.astype("<f4"), strict=True):
                    file.seek(start + row * vector.nbytes)
                    file.write(vector.tobytes())

    try:
        write(Path(options.out), save)
    except OSError as error:
        raise InputError(f"{options.out} cannot be written: {error.strerror}") from None
    print(
        writable(f"wrote {options.out}: {shape[0]} vectors of length {shape[1]}"),
        file=sys.stderr,
    )
