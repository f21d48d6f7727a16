"""A hook of MkDocs for pages that need a change before they are shown.

The page of all commands is made from their help. A search lists guides before other pages, and
measurements after them. The walkthrough is shown with the output of its
cells, from the executed walkthrough.ipynb next to it. An index in prose such as scores[1][2] is
escaped, because Markdown would read it as a link. A page of measurements says which of its code has
changed since.
"""

import json
import re
from pathlib import Path

from mkdocs.structure.files import File

from docs.build.commands import commands_page
from docs.build.older_code import with_notice

FENCE = "````"  # longer than any fence in an output
# {folder: factor of the score in a search}
BOOSTS = {"guides": 2, "benchmarks": 0.5, "research": 0.5, "project": 0.5, "results": 0.5}
CODE_OR_INDEX = re.compile(r"(```.*?```|`[^`\n]*`)|\]\[(\d+)\]", re.DOTALL)


def on_files(files, *, config):
    """Return the files of the site with the page of all commands."""
    files.append(File.generated(config, "commands.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, *, page, **kwargs) -> str:
    """Return `markdown`, or the contents of the notebook that is paired with the page."""
    page.meta["search"] = {"boost": BOOSTS.get(page.file.src_uri.partition("/")[0], 1)}
    if page.file.abs_src_path is None:  # made by on_files
        return markdown
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if notebook.exists():
        return render(json.loads(notebook.read_text(encoding="utf-8")))
    return escape_indices(with_notice(markdown))


def escape_indices(markdown: str) -> str:
    """Escape indices in prose; code is shown as it is."""
    return CODE_OR_INDEX.sub(lambda match: match[1] or rf"]\[{match[2]}]", markdown)


def render(notebook: dict) -> str:
    """Return the cells of a notebook and their outputs as Markdown."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"{FENCE}python\n{source}\n{FENCE}")
        parts += [_output(output) for output in cell["outputs"]]
    return "\n\n".join(parts)


def _output(output: dict) -> str:
    data = output.get("data", {})
    if image := data.get("image/png"):
        return f'<img alt="figure" src="data:image/png;base64,{"".join(image).strip()}">'
    text = "".join(output.get("text") or data["text/plain"]).rstrip()
    return f"{FENCE}text\n{text}\n{FENCE}"
