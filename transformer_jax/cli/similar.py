"""Find the texts that are most like a query.

    python -m transformer_jax similar MODEL "a film about the sea" texts.txt

prints the best lines of the file with their cosine, best first.
"""

import argparse

from transformer_jax.cli.arguments import add_dtype
from transformer_jax.cli.terminal import read_lines, writable
from transformer_jax.inference.embed import SentenceEncoder, most_similar
from transformer_jax.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a folder or a name on the hub")
    parser.add_argument("query", metavar="QUERY", help="what to look for")
    parser.add_argument("file", metavar="FILE", help="texts, one a line; - is standard input")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="so many (default: 5)")
    add_dtype(parser)


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise InputError(f"--top must be 1 or more; got {options.top}")
    texts = read_lines(options.file)
    if not texts:
        raise InputError(f"{options.file} holds no text")
    encoder = SentenceEncoder.load(options.model, dtype=options.dtype)
    found = encoder([options.query, *texts], progress=True)
    for i, cosine in most_similar(found[0], found[1:], options.top):
        print(writable(f"{cosine:7.4f}  {' '.join(texts[i].split())}"))
