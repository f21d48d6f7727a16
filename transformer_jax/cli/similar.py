"""Find the texts that are most similar to a query.

    python -m transformer_jax similar MODEL "a film about the sea" texts.txt

prints the most similar lines of the file with their similarity, the most similar first. It is the
cosine unless the model's files name another one. All texts are embedded first.
"""

import argparse

from transformer_jax.cli.arguments import add_dtype
from transformer_jax.cli.terminal import read_lines, writable
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="folder or Hugging Face Hub name of a model")
    parser.add_argument("query", metavar="QUERY", help="text to compare with")
    parser.add_argument("file", metavar="FILE", help="texts, one per line; - is standard input")
    parser.add_argument(
        "--top", type=int, default=5, metavar="K", help="number of texts shown (default: 5)"
    )
    add_dtype(parser)


def run(options: argparse.Namespace) -> None:
    if options.top < 1:
        raise InputError(f"--top must be 1 or more; got {options.top}")
    texts = read_lines(options.file)
    folder = folder_of(options.model)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.embed import SentenceEncoder, most_similar

    encoder = SentenceEncoder.load(folder, dtype=options.dtype)
    found = encoder([options.query, *texts], progress=True)
    similarity = encoder.pooling.similarity
    for i, value in most_similar(found[0], found[1:], options.top, similarity):
        print(writable(f"{value:7.4f}  {' '.join(texts[i].split())}"))
