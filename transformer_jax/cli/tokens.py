"""Compare word, character and subword tokens of a text.

    python -m transformer_jax tokens "The unbelievable tokenisation"
    python -m transformer_jax tokens "A film" --corpus reviews.txt --merges 1000

prints, for each of the three, the size of its vocabulary, the length of the sequence and the
tokens, and then the tokens of an unknown word and of a misspelling. [UNK] is the token of anything
outside the vocabulary, </w> marks the end of a word and _ is a space. The vocabularies are learnt
from a short built-in text or from --corpus, lower-cased. Subwords are learnt by byte-pair encoding
with the readable but slow code of transformer_jax/text/bpe.py. For real corpora use
train_tokenizer("bpe:N") of transformer_jax/text/tokenizer.py.
"""

import argparse
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from transformer_jax.cli.terminal import read_lines, writable
from transformer_jax.runtime.errors import InputError
from transformer_jax.text.bpe import Pair, apply_merges, train_bpe, vocabulary

COLUMNS = 100
UNKNOWN = "[UNK]"
SPACE = "_"  # shown for the space between two words
WORD = re.compile(r"\w+(?:'\w+)*|[^\w\s]")

# The stems, prefixes and endings recur in different words, so that subwords can be learnt from it.
TEXT = """
The reader reads and the writer writes. A token is a piece of text; tokens make words, and words
make sentences. It is believable that the models believe what they read, and they are able to read
the whole text. Nobody believes that a readable text is unreadable, that a likely story is
unlikely, or that an able writer is unable to write. The organisation of the words and the
realisation of the idea: organisation and realisation take reading and writing. An undone thing is
not done, an unseen thing is not seen. The tokeniser cuts the words into tokens; the modeller
models the tokens. Some words are common, some are rare; the rare words share their pieces with
the common words: a walker walks and walked, a talker talks and talked, a painter paints and
painted, and the oldest, the newest, the lowest and the finest share their ending. Reading is
enjoyable, writing is enjoyable, and believing what they read is enjoyable.
"""


@dataclass(frozen=True)
class Strategy:
    """A way to tokenize a text, and the size of its vocabulary, [UNK] included."""

    name: str
    size: int
    cut: Callable[[str], list[str]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", help="text to tokenize")
    parser.add_argument(
        "--corpus", metavar="FILE", help="text to learn the vocabularies from; - is standard input"
    )
    parser.add_argument(
        "--merges", type=int, default=100, metavar="N", help="number of BPE merges (default: 100)"
    )


def run(options: argparse.Namespace) -> None:
    if options.merges < 0:
        raise InputError(f"--merges must be 0 or more, got {options.merges}")
    corpus = "\n".join(read_lines(options.corpus)) if options.corpus is not None else TEXT
    counts = Counter(words(corpus))
    if not counts:
        raise InputError(f"{options.corpus} holds no words to learn from")
    if not words(options.text):
        raise InputError('no words in the text; pass one such as "The unbelievable tokenisation"')
    source = options.corpus or "the built-in text"
    for line in report(options.text, source, counts, train_bpe(counts, options.merges)):
        print(writable(line))


def words(text: str) -> list[str]:
    """Split a text into lower-cased words and punctuation marks."""
    return WORD.findall(text.lower())


def strategies(counts: Mapping[str, int], merges: Sequence[Pair]) -> list[Strategy]:
    """Return the three ways to tokenize a text: words, characters and subwords.

    `counts` are the words of the corpus that the vocabularies are taken from.
    """
    characters = {*"".join(counts), SPACE}
    subwords = vocabulary(counts, merges)

    def cut_characters(text: str) -> list[str]:
        return _known(SPACE.join(words(text)), characters)

    def cut_subwords(text: str) -> list[str]:
        cut = [token for word in words(text) for token in apply_merges(word, merges)]
        return _known(cut, subwords)

    return [
        Strategy("word", len(counts) + 1, lambda text: _known(words(text), counts)),
        Strategy("character", len(characters) + 1, cut_characters),
        Strategy("subword", len(subwords) + 1, cut_subwords),
    ]


def report(
    text: str, source: str, counts: Mapping[str, int], merges: Sequence[Pair]
) -> Iterator[str]:
    """Format the comparison as lines of at most 100 columns."""
    ways = strategies(counts, merges)
    total = sum(counts.values())
    yield (
        f"Learnt from {source}: {total:,} words, {len(counts):,} of them different; "
        f"{len(merges)} merges."
    )
    yield ""
    yield f"{'':<12}{'vocabulary':>10}{'length':>8}   tokens"
    for way in ways:
        tokens = way.cut(text)
        yield from _row(f"{way.name:<12}{way.size:>10,}{len(tokens):>8,}   ", tokens)

    unknown = unknown_word(text, counts)
    right, wrong = misspelling(text, counts)
    for title, word in (("Unknown word", unknown), (f"Misspelling of '{right}'", wrong)):
        yield ""
        yield f"{title}: {word}"
        for way in ways:
            yield from _row(f"  {way.name:<12}", way.cut(word))


def unknown_word(text: str, counts: Mapping[str, int]) -> str:
    """Return the longest word of the text that is not in the corpus.

    If all words are, return the longest one with "ology" appended.
    """
    unknown = [word for word in words(text) if word not in counts]
    return max(unknown, key=len) if unknown else max(words(text), key=len) + "ology"


def misspelling(text: str, counts: Mapping[str, int]) -> tuple[str, str]:
    """Return a known word, and the same word with its middle letter doubled.

    The word is the longest known word of the text, else the longest of the corpus.
    """
    known = [word for word in words(text) if word in counts and len(word) > 3]
    right = max(known or counts, key=len)
    middle = len(right) // 2
    return right, right[: middle + 1] + right[middle:]


def _known(tokens, vocabulary) -> list[str]:
    return [token if token in vocabulary else UNKNOWN for token in tokens]


def _row(head: str, tokens: list[str]) -> list[str]:
    """Format the tokens behind `head`, separated by spaces and wrapped under each other."""
    return textwrap.wrap(
        " ".join(tokens),
        COLUMNS,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_on_hyphens=False,
    )
