"""Run the cells of walkthrough.md and store their output in walkthrough.ipynb.

    python -m docs.build.walkthrough

The text is the source. Details that differ from run to run without a meaning (times, random ids of
cells, the name of the machine's Python) are left out.
"""

import argparse
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

SOURCE = Path(__file__).parents[1] / "guides" / "walkthrough.md"
NOTEBOOK = SOURCE.with_suffix(".ipynb")


def execute(folder: Path) -> nbformat.NotebookNode:
    """Run the notebook in `folder` and return it.

    Raises nbclient's CellExecutionError if a cell fails.
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
