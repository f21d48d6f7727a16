"""Runs the cells of walkthrough.md and keeps what they print in walkthrough.ipynb.

    python -m docs.build.walkthrough

The text is the source. What differs from run to run and says nothing (times, random ids of cells,
the name of the machine's Python) is left out.
"""

import argparse
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

SOURCE = Path(__file__).parents[1] / "guides" / "walkthrough.md"
NOTEBOOK = SOURCE.with_suffix(".ipynb")


def execute(folder: Path) -> nbformat.NotebookNode:
    """The notebook, run in `folder`. Raises nbclient's CellExecutionError where a cell does not
    run.
    """
    notebook = jupytext.read(SOURCE)
    NotebookClient(
        notebook,
        timeout=600,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(folder)}},
    ).execute()
    notebook.metadata.pop("language_info", None)
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
    return notebook


if __name__ == "__main__":
    argparse.ArgumentParser(
        prog="python -m docs.build.walkthrough", description=__doc__
    ).parse_args()
    nbformat.write(execute(SOURCE.parent), NOTEBOOK)
