"""Fill the tables and sentences of README and the written pages from the files in docs/results.

    python -m docs.build.tables

`docs.build.filled` describes the marks; what is outside them stays as it is.
`tests/docs/test_results.py` checks that nothing is out of date.
"""

import argparse

from docs.build import guides, recipe_rounds, research
from docs.build.filled import filled
from docs.build.results import DOCS
from transformer_jax.runtime.files import write_text

MADE_BY = (guides, recipe_rounds, research)  # imported, they register what they make
FOLDERS = ("guides", "research", "project")
PAGES = [DOCS.parent / "README.md"]
PAGES += [page for folder in FOLDERS for page in sorted((DOCS / folder).glob("*.md"))]


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m docs.build.tables", description=__doc__.splitlines()[0]
    ).parse_args()
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        if (after := filled(before)) != before:
            write_text(page, after)
            print(page.relative_to(DOCS.parent))


if __name__ == "__main__":
    main()
