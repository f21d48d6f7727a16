"""Fill the tables and sentences of README and the written pages from the files in docs/results.

    python -m docs.build.tables

`docs.build.filled` describes the marks; what is outside them stays as it is.
`tests/docs/test_results.py` checks that nothing is out of date.
"""

import argparse
import sys

from docs.build import guides, recipe_rounds, research
from docs.build.filled import filled
from docs.build.results import DOCS
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.files import write_text

MADE_BY = (guides, recipe_rounds, research)  # imported, they register what they make
FOLDERS = ("guides", "research", "project")
PAGES = [DOCS.parent / "README.md"]
PAGES += [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]


def main() -> int:
    argparse.ArgumentParser(
        prog="python -m docs.build.tables", description=__doc__.splitlines()[0]
    ).parse_args()
    try:
        pages = {page: filled(page.read_text(encoding="utf-8")) for page in PAGES}
    except InputError as problem:  # then no page is written
        print(f"error: {problem}", file=sys.stderr)
        return 2
    for page, text in pages.items():
        if page.read_text(encoding="utf-8") != text:
            write_text(page, text)
            print(page.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
