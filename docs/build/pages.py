"""A hook of MkDocs, for pages that it would not show as they are meant.

The walkthrough is shown with what its cells print, from the executed walkthrough.ipynb beside it.
An index in prose, scores[1][2], is not the link that Markdown takes it for.
"""

import json
import re
from pathlib import Path

FENCE = "````"  # one longer than any that an output may hold
CODE_OR_INDEX = re.compile(r"(```.*?```|`[^`\n]*`)|\]\[(\d+)\]", re.DOTALL)


def on_page_markdown(markdown: str, *, page, **kwargs) -> str:
    """`markdown` itself, or the notebook that is paired with it."""
    notebook = Path(page.file.abs_src_path).with_suffix(".ipynb")
    if notebook.exists():
        return render(json.loads(notebook.read_text(encoding="utf-8")))
    return escape_indices(markdown)


def escape_indices(markdown: str) -> str:
    """In prose alone: code shows its text as it is."""
    return CODE_OR_INDEX.sub(lambda match: match[1] or rf"]\[{match[2]}]", markdown)


def render(notebook: dict) -> str:
    """The cells of a notebook and their outputs as Markdown."""
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
