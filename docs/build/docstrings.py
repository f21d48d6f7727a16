"""An extension of griffe that turns docstrings into Markdown when the site is built.

Docstrings are plain text, for `help()`. On the pages the equation, an indented line after the first
paragraph, is set in code. Examples become code blocks, "Raises" becomes bold, and the library's own
names in backticks become links. Shapes are shown as they are written, `Float[Array, "B T D"]`.
"""

import re
from collections.abc import Iterator

import griffe

EXAMPLE = re.compile(r"^>>> ", re.M)
NAME = re.compile(r"`(\w+)`")
RAISES = re.compile(r"(?<![\w`])(Raises? (?:ValueError|TypeError|TokenizerError|as\b))")


class RenderDocstrings(griffe.Extension):
    """The extension, which mkdocs.yml lists under the options of mkdocstrings."""

    def on_package(self, *, pkg: griffe.Module, **kwargs) -> None:
        exported = dict(_exported(pkg))
        for thing in _members(pkg):
            if thing.docstring:
                is_exported = thing.path in exported.values()
                thing.docstring.value = markdown(thing.docstring.value, is_exported, exported)
            if thing.is_function:
                for parameter in thing.parameters:
                    parameter.annotation = _spelled(parameter.annotation)
                thing.returns = _spelled(thing.returns)


def markdown(docstring: str, is_exported: bool, exported: dict[str, str]) -> str:
    """Convert the paragraphs of a docstring to Markdown; `exported` maps names to their paths."""
    first, *rest = re.split(r"\n[ ]*\n", docstring)
    shown = [_prose(first, exported)]
    if is_exported and rest and re.fullmatch("    .*", rest[0]):
        shown.append(f"`` {rest.pop(0).strip()} ``{{ .equation }}")
    for paragraph in rest:
        is_code = EXAMPLE.match(paragraph)
        shown.append(f"```pycon\n{paragraph}\n```" if is_code else _prose(paragraph, exported))
    return "\n\n".join(shown)


def _exported(package: griffe.Module) -> Iterator[tuple[str, str]]:
    for name in package.exports or ():
        member = package.members[str(name)]
        # A module may have the name of its function.
        yield str(name), member.canonical_path if member.is_alias else f"{member.path}.{name}"


def _prose(paragraph: str, exported: dict[str, str]) -> str:
    if paragraph.startswith("    "):  # a block of code or of formulas
        return paragraph
    paragraph = RAISES.sub(r"**\1**", paragraph)
    return NAME.sub(
        lambda match: f"[{match[0]}][{exported[match[1]]}]" if match[1] in exported else match[0],
        paragraph,
    )


def _members(parent) -> Iterator[griffe.Object]:
    for member in parent.members.values():
        if not member.is_alias:
            yield member
            yield from _members(member)


def _spelled(annotation):
    # griffe parses shapes as code where it can: "..." would lose its quotes, " D" keep its space.
    if not isinstance(annotation, griffe.Expr):
        return annotation
    for part in annotation.iterate(flat=False):
        if part is not annotation:  # a name holds itself
            _spelled(part)
    if isinstance(annotation, griffe.ExprSubscript) and isinstance(
        annotation.slice, griffe.ExprTuple
    ):
        elements = annotation.slice.elements
        if str(elements[0]) in ("Array", "np.ndarray"):
            shape = str(elements[1]).strip("'\" ")
            elements[1] = f'"{shape}"'
    return annotation
