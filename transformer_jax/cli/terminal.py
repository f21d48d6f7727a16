"""Input and output of commands: text files, HTML pages, spelling suggestions, safe printing."""

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path

from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.files import write_text


def writable(line: str) -> str:
    """Escape the characters of a line that standard output cannot encode.

    These are lone surrogates and, in some locales, all characters outside ASCII.
    """
    encoding = sys.stdout.encoding or "utf-8"
    return line.encode(encoding, "backslashreplace").decode(encoding)


def read_lines(file: str) -> list[str]:
    """Read the lines of a UTF-8 file; - is standard input.

    Lines end at line feeds only, because other line separators such as U+0085 occur inside real
    reviews. Raises InputError if the file cannot be read or is not UTF-8.
    """
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
