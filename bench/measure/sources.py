"""The packages that a program runs, with a hash of the code of each.

A measurement keeps them, so that a later reader sees which code has changed since.
"""

import ast
import hashlib
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
OURS = ("transformer_jax", "train", "bench", "docs", "tests")
PAGES = "bench/pages"  # measures nothing
OTHER_LANGUAGES = ("*.cc", "*.h")  # counted for the package that they are in
DEFINITIONS = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def packages(*modules: str, root: Path = ROOT) -> dict[str, str]:
    """Return a hash for each package with code that these modules may run, by its folder.

    A hash does not depend on comments, docstrings and blank lines. Files that only re-export
    (`__init__.py`) count where they are imported by name. Raises ValueError for an unknown module.
    """
    found, waiting = set(), [_path(module, root) for module in modules]
    if None in waiting:
        raise ValueError(f"there is no module {modules[waiting.index(None)]}")
    while waiting:
        path = waiting.pop()
        if path is not None and path not in found:
            found.add(path)
            waiting += _imported(path, root)
    folders = defaultdict(list)
    for path in found:
        folders[path.parent].append(path)
    return {
        folder.relative_to(root).as_posix(): _hash(folder, files)
        for folder, files in sorted(folders.items())
        if folder != root / PAGES
    }


def changed(before: dict[str, str], now: dict[str, str]) -> list[str]:
    """Return the packages whose code differs, or that one of the two has alone."""
    return sorted(name for name in {*before, *now} if before.get(name) != now.get(name))


def _path(name, root):
    """Return the file of a module of this project, or None."""
    if name.partition(".")[0] not in OURS:
        return None
    base = root / name.replace(".", "/")
    tried = (base.with_suffix(".py"), base / "__main__.py", base / "__init__.py")
    return next((path for path in tried if path.is_file()), None)


def _imported(path: Path, root: Path) -> Iterator[Path | None]:
    """Yield the files that a file imports, inside functions too."""
    for module, names in _import_statements(path.read_bytes()):
        if module is None:
            yield from (_path(name, root) for name in names)
        else:
            files = [_path(f"{module}.{name}", root) for name in names]
            yield from files
            if None in files:  # a name that is no module is in the file of the package
                yield _path(module, root)


@cache  # programs share most of their files, and parsing them all takes a second
def _import_statements(code: bytes) -> list[tuple[str | None, list[str]]]:
    """The module (None for `import NAME`) and the names of every import."""
    found = []
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.append((None, [alias.name for alias in node.names]))
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, [alias.name for alias in node.names]))
    return found


def _hash(folder, files):
    others = [path for pattern in OTHER_LANGUAGES for path in folder.glob(pattern)]
    digest = hashlib.sha256()
    for path in sorted([*files, *others]):
        text = path.read_bytes().decode()
        digest.update(f"{path.name}\n{_code(text) if path.suffix == '.py' else text}\n".encode())
    return digest.hexdigest()[:12]


@cache
def _code(text):
    """Return Python code without comments, docstrings and blank lines; indentation stays."""
    lines = text.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            lines[first.lineno - 1 : first.end_lineno] = [""] * (
                first.end_lineno - first.lineno + 1
            )
    return "\n".join(line.rstrip() for line in lines if line.strip())
