"""Texts in and out of a command: files of lines, pages, misspelt names, terminals that cannot write
everything.
"""

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.files import write_text


def writable(line: str) -> str:
    """What standard output cannot write is escaped: half a character, and in some locales any but
    ASCII.
    """
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def read_lines(file: str) -> list[str]:
    """The lines of a UTF-8 file, split at line feeds alone: U+0085 stands inside real reviews."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
        lines = data.decode("utf-8").split("\n")
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{file} is not UTF-8 at byte {error.start}; convert it first") from None
    lines = [line.removesuffix("\r") for line in lines]
    return lines[:-1] if lines[-1] == "" else lines


def write_page(file: str, html: str) -> None:
    """Writes a page and says so."""
    try:
        write_text(Path(file), html)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from None
    print(writable(f"wrote {file}"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """The question "did you mean NAME? " for names that look alike, nothing where none does."""
    close = difflib.get_close_matches(name.lower(), list(known), n=3)
    return f"did you mean {', '.join(close)}? " if close else ""
