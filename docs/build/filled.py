"""Tables and sentences that a page gets from the files in docs/results.

A function that is decorated with `table` or `text` makes one of them. A page has a table below
a line `<!-- table: NAME -->`, and a text between a line `<!-- filled: NAME -->` and the next
`<!-- end -->`.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from bench.pages import markdown
from transformer_jax.runtime.errors import InputError

TABLE = re.compile(r"(<!-- table: ([^\n]*) -->\n)((?:\|.*\n)*)")
TEXT = re.compile(r"(<!-- filled: ([^\n]*) -->\n)(.*?)(<!-- end -->\n)", re.DOTALL)

Table = tuple[Sequence[str], Iterable[Sequence[Any]]]
TABLES: dict[str, Callable[[], Table]] = {}
TEXTS: dict[str, Callable[[], list[str]]] = {}


def table(name: str) -> Callable[[Callable[[], Table]], Callable[[], Table]]:
    """Return a decorator for a function that returns the header and rows of this table."""
    return lambda make: TABLES.setdefault(name, make)


def text(name: str) -> Callable[[Callable[[], list[str]]], Callable[[], list[str]]]:
    """Return a decorator for a function that returns the lines of this text, unwrapped."""
    return lambda make: TEXTS.setdefault(name, make)


def filled(page: str) -> str:
    """Return a page with its tables and texts made again.

    Raises InputError if the results lack a number that one of them cites.
    """
    page = TABLE.sub(lambda found: found[1] + _table(found[2]), page)
    return TEXT.sub(lambda found: found[1] + _text(found[2]) + found[4], page)


def _made(kind: str, name: str, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except KeyError as missing:
        raise InputError(
            f"the {kind} {name!r} cites {missing}, which the files in docs/results lack; run their "
            "commands with all parts, and with the packages that they compare with"
        ) from missing


def _table(name: str) -> str:
    lines = _made("table", name, lambda: markdown.table(*TABLES[name]()))
    return "\n".join(lines) + "\n"


def _text(name: str) -> str:
    text = markdown.written(_made("text", name, TEXTS[name])).rstrip("\n")
    last = text.split("\n")[-1]
    # Behind the last line, where there is room: README is short.
    fits = len(last) + len("<!-- end -->") <= markdown.WIDTH and last != "```"
    return text if fits else text + "\n"
