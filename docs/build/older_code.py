"""The notice on a page whose numbers were measured with code that has changed since."""

import re
from collections import defaultdict
from pathlib import Path

from bench.figures import COMMANDS, changes
from bench.pages.markdown import folded
from docs.build.filled import TABLE, TABLES, TEXT, TEXTS
from docs.build.results import DOCS, read_by
from docs.build.tables import MADE_BY

CITED = re.compile(r"results/([\w-]+)\.json")
SHOWN = 4  # packages by name


def cited(markdown: str) -> list[str]:
    """Return the results that a page names, or that fill its tables and texts."""
    assert MADE_BY  # imported, they have filled TABLES and TEXTS
    names = set(CITED.findall(markdown))
    for mark, makers in ((TABLE, TABLES), (TEXT, TEXTS)):
        for found in mark.finditer(markdown):
            names |= read_by(makers[found[2]])
    return sorted(names & set(COMMANDS))


def with_notice(markdown: str, docs: Path = DOCS) -> str:
    """Return the page with a folded notice above its first section, if code has changed."""
    names_by_change = defaultdict(list)
    for name in cited(markdown):
        if says := _says(changes(name, docs)):
            names_by_change[says].append(f"`{name}.json`")
    if not names_by_change:
        return markdown
    items = [f"- {', '.join(names)}: {says}" for says, names in names_by_change.items()]
    before, heading, after = markdown.partition("\n## ")
    notice = "\n".join(folded("Measured with older code", items))
    return f"{before.rstrip()}\n\n{notice}\n{heading}{after}"


def _says(since):
    if since is None:
        return "measured before its code was recorded."
    shown = [f"`{package}`" for package in since[:SHOWN]]
    if len(since) > SHOWN:
        shown.append(f"{len(since) - SHOWN} other packages")
    return f"measured before a change of {', '.join(shown)}." if since else ""
