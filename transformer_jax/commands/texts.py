"""Texts in and out of a command: files of lines, and terminals that cannot write everything."""

import sys
from pathlib import Path

from transformer_jax.errors import InputError


def writable(line: str) -> str:
    """What standard output cannot write is escaped: half a character, and in some locales any but ASCII."""
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
