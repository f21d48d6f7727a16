"""Docstrings begin as those of NumPy do, replaced phrases stay replaced, and prose fits a page."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PRODUCT = ("transformer_jax", "train", "bench", "docs/build")
CODE = [path for folder in PRODUCT for path in sorted((ROOT / folder).rglob("*.py"))]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").rglob("*.md"))
COLUMNS = 100

VERBS = set(
    """
    Add Apply Build Calibrate Call Check Choose Clip Compare Compute Constrain Convert Count Create
    Decode Describe Divide Draw Embed Encode Escape Evaluate Find Fit Flatten Format Generate Keep
    Learn Load Make Mark Mask Measure Minimize Move Multiply Parse Place Plan Plot Predict Prepare
    Print Project Raise Read Record Remove Repeat Replace Return Rotate Run Save Search Set Show
    Sort Split Start Time Tokenize Train Translate Wait Wrap Write Yield Zero
    """.split()
)
# Openings that leave a reader without a subject.
VAGUE = {"What", "Where", "Which", "Of", "How", "When", "Why", "Who", "Such", "As", "In", "By"}

# Each was read twice by somebody; the plainer form stands behind it.
REPLACED = {
    r"\bgoes? on (from|to|with|where)\b": "resumes, continues",
    r"\bgone on with\b": "resumed",
    r"\bgo on (from|to|with|where)\b": "resume, continue",
    r"\bwould have had anyway\b": "bit-identical",
    r"\bcompilation apart\b": "compile time excluded",
    r"\bof nothing\b": "of the empty baseline, from scratch",
    r"\bknows? no word\b": "ignores every word",
    r"\bhears?\b|\bas loud\b": "scale",
    r"\bat hand\b": "available, on disk",
    r"\bwhat (their|its) names? says?\b": "list it",
    r"\btexts? without labels\b": "unlabelled texts",
    r"\bsplit off\b": "held out",
    r"(?<!\.)\bguess(es)?\b(?!\.\w)": "pseudo-labels, predictions",
    r"\bWrite on\b": "continue the text",
    r"\bstands? beside\b": "compares with, is next to",
    r"\bin turns\b": "interleaved",
    r"\bcounted alone\b": "by operation count",
}


@pytest.fixture(scope="module")
def documented() -> list[tuple[str, str, str, str]]:
    """(where, kind, name, docstring) of every class and function of the product."""
    return [
        (f"{path.relative_to(ROOT)}:{node.lineno}", kind, node.name, text)
        for path in CODE
        for kind, node in _definitions(ast.parse(path.read_text(encoding="utf-8")), is_local=False)
        if (text := ast.get_docstring(node))
    ]


def _definitions(node: ast.AST, is_local: bool) -> Iterator[tuple[str, ast.AST]]:
    for child in ast.iter_child_nodes(node):
        is_function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(child, ast.ClassDef):
            yield "private" if is_local or child.name.startswith("_") else "class", child
        elif is_function:
            names = {
                getattr(each, "id", getattr(each, "attr", "")) for each in child.decorator_list
            }
            private = is_local or (child.name.startswith("_") and not child.name.startswith("__"))
            is_property = names & {"property", "cached_property"}
            yield "private" if private else "property" if is_property else "function", child
        yield from _definitions(child, is_local or is_function)


def first_word(text: str) -> str:
    return re.split(r"[\s,.:;]", text, maxsplit=1)[0]


def test_no_docstring_begins_without_a_subject():
    found = []
    for path in [*CODE, *sorted((ROOT / "tests").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if first_word(text) in VAGUE:
                    where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
                    found.append(f"{where}: {text.splitlines()[0]}")
    assert not found, "\n".join([str(len(found)), *found])


def test_a_function_begins_with_a_verb(documented):
    found = [
        f"{where} {name}: {text.splitlines()[0]}"
        for where, kind, name, text in documented
        if kind == "function" and first_word(text) not in VERBS
    ]
    assert not found, "\n".join([str(len(found)), *found])


def test_a_class_or_property_begins_with_a_noun(documented):
    found = [
        f"{where} {name}: {text.splitlines()[0]}"
        for where, kind, name, text in documented
        if kind in ("class", "property") and first_word(text) in VERBS | VAGUE
    ]
    assert not found, "\n".join([str(len(found)), *found])


def test_what_is_private_has_one_line(documented):
    found = [
        f"{where} {name}" for where, kind, name, text in documented
        if kind == "private" and "\n" in text
    ]  # fmt: skip
    assert not found, "\n".join([str(len(found)), *found])


def prose_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, line) of a page, or of the comments and strings of a file of Python."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        yield from enumerate(text.split("\n"), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if tokenize.tok_name[token.type] in ("COMMENT", "STRING", "FSTRING_MIDDLE"):
            yield from enumerate(token.string.split("\n"), token.start[0])


@pytest.fixture(scope="module")
def prose() -> list[tuple[str, str]]:
    """(where, line) of all that a reader sees: pages, comments and strings."""
    return [
        (f"{path.relative_to(ROOT)}:{number}: {line.strip()}", line)
        for path in [*CODE, *PAGES]
        for number, line in prose_lines(path)
    ]


@pytest.mark.parametrize("phrase", REPLACED)
def test_a_replaced_phrase_stays_replaced(phrase, prose):
    found = [where for where, line in prose if re.search(phrase, line, re.IGNORECASE)]
    assert not found, "\n".join([f"{len(found)}, say: {REPLACED[phrase]}", *found])


def test_prose_is_not_wider_than_the_page():
    found = []
    for path in PAGES:
        is_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").split("\n"), 1):
            is_code ^= line.lstrip().startswith("```")
            without_links = re.sub(r"\]\([^)]*\)|<https?://[^>]*>|https?://\S+", "", line)
            is_table = line.lstrip().startswith(("|", "<"))
            if len(without_links) > COLUMNS and not is_code and not is_table:
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert not found, "\n".join([str(len(found)), *found])
