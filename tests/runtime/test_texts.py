"""Texts from bytes: every reader of the library and of the programs decodes them here."""

import json
import re
from pathlib import Path

import pytest

from transformer_jax.runtime.texts import (
    EncodingError,
    decode,
    decode_as,
    json_line,
    lines_of,
    read_text,
)

ROOT = Path(__file__).parents[2]
# Files that no editor or spreadsheet has written.
OTHERS = {
    "transformer_jax/runtime/processor.py",  # /proc/cpuinfo
    "transformer_jax/walkthrough/worked/examples.py",  # part of the package
    "train/evaluation/curves.py",  # metrics.jsonl, of which half a line may be missing
    "train/trainer/checkpoints.py",  # checked by SHA-256
}


def test_a_byte_order_mark_is_no_part_of_a_text():
    assert decode(b"\xef\xbb\xbfone\n", "f") == "one\n"
    assert decode("one\n\ufefftwo".encode(), "f") == "one\n\ufefftwo"
    assert decode("\ufefftwo".encode(), "f", line=2) == "\ufefftwo"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("ä".encode("utf-16"), "f is UTF-16; convert it to UTF-8"),
        ("ä".encode("utf-32"), "f is UTF-32; convert it to UTF-8"),
        (b"\xfe\xff\0a", "f is UTF-16; convert it to UTF-8"),
        ("a\nb".encode("utf-16-le"), "f, line 1: a NUL byte; convert the file to UTF-8"),
        (b"a\n\0", "f, line 2: a NUL byte"),
        (b"PK\x03\x04", "f is a workbook or a ZIP archive; save the table as CSV"),
        (b"a\nb\xe4d", "f, line 2: byte 0xe4 is not UTF-8; convert the file to UTF-8"),
        (b"\x1f\x8b\x08\0", "f is compressed by gzip; unpack it"),
    ],
)
def test_other_encodings_are_one_line_that_says_how_to_convert_them(content, message):
    with pytest.raises(EncodingError) as error:
        decode(content, "f")
    assert message in str(error.value) and "\n" not in str(error.value)


def test_the_line_of_an_error_is_that_of_the_file():
    with pytest.raises(EncodingError, match="f, line 8: byte 0xff"):
        decode(b"a\n\xff", "f", line=7)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("a", ["a"]),
        ("a\n", ["a"]),
        ("a\n\n", ["a", ""]),
        ("\n", [""]),
        ("a\r\nb\nc\r\n", ["a", "b", "c"]),
        ("a\rb\r", ["a", "b"]),
        ("a\rb\nc", ["a\rb", "c"]),
        ("a\x0b\x0c\x1c\x85\u2028\u2029b", ["a\x0b\x0c\x1c\x85\u2028\u2029b"]),
    ],
)
def test_lines_end_at_line_feeds_only(text, lines):
    assert lines_of(text) == lines


def test_a_read_file_has_line_feeds_and_no_mark(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf{\r\n}\r")
    assert read_text(tmp_path / "f") == "{\n}\n"


def test_no_other_module_decodes_a_file():
    found = [
        f"{path.relative_to(ROOT)}: {call}"
        for package in ("transformer_jax", "train")
        for path in sorted((ROOT / package).rglob("*.py"))
        if str(path.relative_to(ROOT)) not in OTHERS | {"transformer_jax/runtime/texts.py"}
        for call in re.findall(r"\.read_text\(.*|\.decode\(\"utf-8.*", path.read_text("utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("text", ["a\x85b", "a\u2028b", "a\u2029b", "a\nb\rc", 'caf\xe9 "\\'])
def test_a_line_of_json_is_one_line_to_every_reader(text):
    line = json_line({"text": text})
    assert len(line.splitlines()) == 1 and json.loads(line) == {"text": text}
    assert ("é" in line) == ("é" in text)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_tells_the_encoding(encoding):
    assert decode_as("né\n".encode(encoding), "f") == "né\n"


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b"a\n\xe9", None, "f, line 2: byte 0xe9 is not UTF-8; .*--encoding cp1252"),
        (b"a\n\xe9", "ascii", "f, line 2: byte 0xe9 is not ascii"),
        (b"a", "utf-9", "--encoding 'utf-9': no such encoding"),
        (b"a", "base64", "--encoding 'base64': no such encoding"),
        (b"a\0", "latin-1", "f, line 1: a NUL byte; latin-1 is not its encoding"),
    ],
)
def test_bytes_of_another_encoding_are_one_line_that_names_the_option(content, encoding, message):
    with pytest.raises(EncodingError, match=message) as error:
        decode_as(content, "f", encoding)
    assert "\n" not in str(error.value)
