"""Texts from bytes: UTF-8 with or without a byte order mark, and their lines."""

import codecs
import json
from pathlib import Path
from typing import Any

# What files that are not UTF-8 begin with; UTF-32 before UTF-16, whose mark it begins with.
SIGNATURES = {
    b"\xff\xfe\0\0": "UTF-32; convert it to UTF-8, for example with iconv -f UTF-32 -t UTF-8",
    b"\0\0\xfe\xff": "UTF-32; convert it to UTF-8, for example with iconv -f UTF-32 -t UTF-8",
    b"\xff\xfe": "UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16; convert it to UTF-8, for example with iconv -f UTF-16 -t UTF-8",
    b"PK\x03\x04": "a workbook or a ZIP archive; save the table as CSV",
    b"\x1f\x8b": "compressed by gzip; unpack it, for example with gunzip",
}
MARK = "\ufeff"  # U+FEFF, which many editors and spreadsheets write before a text

# Ends of lines to str.splitlines and to many editors, which JSON may hold as they are.
SEPARATORS = {ord(character): f"\\u{ord(character):04x}" for character in "\x85\u2028\u2029"}


class EncodingError(ValueError):
    """Bytes that are not UTF-8; the message is one line with the place and a way to fix it."""


def decode(content: bytes, where: str, *, line: int = 1) -> str:
    """Decode UTF-8 without its byte order mark; raise EncodingError, which names `where`.

    `line` is the number of the first line in its file; a byte order mark is removed at line 1
    only. A NUL byte is an error too: it means UTF-16, or no text at all.
    """
    if line == 1:
        for signature, what in SIGNATURES.items():
            if content.startswith(signature):
                raise EncodingError(f"{where} is {what}")
    if (place := content.find(0)) >= 0:
        line += content.count(b"\n", 0, place)
        raise EncodingError(f"{where}, line {line}: a NUL byte; convert the file to UTF-8")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line += content.count(b"\n", 0, error.start)
        raise EncodingError(
            f"{where}, line {line}: byte {content[error.start]:#04x} is not UTF-8; "
            "convert the file to UTF-8"
        ) from None
    return text.removeprefix(MARK) if line == 1 else text


def decode_as(content: bytes, where: str, encoding: str | None = None) -> str:
    """Decode a text in the named encoding; by default UTF-8, or UTF-16 or UTF-32 with its mark.

    A byte order mark at its start is removed. Raises EncodingError, which names `where` and the
    line, for other bytes and for an encoding that Python does not know.

    >>> decode_as("café".encode("utf-16"), "f"), decode_as("café".encode("cp1252"), "f", "cp1252")
    ('café', 'café')
    """
    if encoding is None:
        marks = {codecs.BOM_UTF32_LE: "utf-32", codecs.BOM_UTF32_BE: "utf-32"}
        marks |= {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
        encoding = next((name for mark, name in marks.items() if content.startswith(mark)), None)
    if encoding is None:
        try:
            return decode(content, where)
        except EncodingError as error:
            raise EncodingError(f"{error}, or name its encoding: --encoding cp1252") from None
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError as error:
        line = 1 + content.count(b"\n", 0, error.start)
        raise EncodingError(
            f"{where}, line {line}: byte {content[error.start]:#04x} is not {encoding}; "
            "name the encoding of the file with --encoding"
        ) from None
    except (LookupError, ValueError):  # ValueError: a NUL in the name
        raise EncodingError(
            f"--encoding {encoding!r}: no such encoding; pass utf-8, utf-16, cp1252 or another "
            "that Python knows"
        ) from None
    if "\0" in text:
        line = 1 + text.count("\n", 0, text.find("\0"))
        raise EncodingError(f"{where}, line {line}: a NUL byte; {encoding} is not its encoding")
    return text.removeprefix(MARK)


def read_text(path: Path) -> str:
    """Read a UTF-8 file as `Path.read_text` does, but without its byte order mark.

    Raises OSError if it cannot be read, and EncodingError if it is not UTF-8.
    """
    text = decode(path.read_bytes(), path.name)
    return text.replace("\r\n", "\n").replace("\r", "\n")


def json_line(value: Any) -> str:
    r"""Return a value as JSON in one line, whatever a reader takes for the end of a line.

    Values that JSON lacks, such as dates, are written as text.

    >>> print(json_line({"text": "caf\xe9 \x85 \u2028"}))
    {"text": "café \u0085 \u2028"}
    """
    return json.dumps(value, ensure_ascii=False, default=str).translate(SEPARATORS)


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, without their ends; an end after the last line is optional.

    Lines end with a line feed, alone or after a carriage return; in a text without line feeds, with
    a carriage return. Other separators, such as U+0085, occur inside texts.

    >>> lines_of("one\r\ntwo\x85 and\u2028more\n\nfour")
    ['one', 'two\x85 and\u2028more', '', 'four']
    """
    if "\n" in text:
        lines = [line.removesuffix("\r") for line in text.split("\n")]
    else:
        lines = text.split("\r")
    return lines if lines[-1] else lines[:-1]
