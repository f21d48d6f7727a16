"""Input and output of commands: text files, HTML pages, spelling suggestions, safe printing."""

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError, one_line
from transformer_jax.runtime.files import write_text
from transformer_jax.runtime.texts import EncodingError, decode, lines_of


def writable(line: str) -> str:
    """Escape the characters of a line that standard output cannot encode.

    These are lone surrogates and, in some locales, all characters outside ASCII.
    """
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def read_lines(file: str) -> list[str]:
    """Read the lines of a UTF-8 file, empty ones too; - is standard input.

    Raises InputError if the file cannot be read, is not UTF-8 or is empty.
    """
    where = "standard input" if file == "-" else file
    try:
        content = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"{file} cannot be read: {reason}") from None
    try:
        lines = lines_of(decode(content, where))
    except EncodingError as error:
        raise InputError(str(error)) from None
    if not lines:
        raise InputError(f"{where} holds no text")
    return lines


def write_page(file: str, html: str) -> None:
    """Write an HTML page and print its path. Raises InputError if it cannot be written."""
    try:
        write_text(Path(file), html)
    except (OSError, ValueError) as error:
        raise InputError(
            f"{file} cannot be written: {getattr(error, 'strerror', None) or error}"
        ) from None
    print(writable(f"wrote {file}"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "did you mean NAME? " with the known names similar to `name`, or "" without any."""
    close = difflib.get_close_matches(name.lower(), list(known), n=3)
    return f"did you mean {', '.join(close)}? " if close else ""
