"""Use trained and published models. COMMAND --help lists the options of a command."""

import argparse
import sys
from importlib import import_module
from types import ModuleType

from transformer_jax import __version__
from transformer_jax.cli.arguments import add_mesh, mesh_of
from transformer_jax.cli.parsing import CommandParser
from transformer_jax.runtime.compilation_cache import use_compilation_cache
from transformer_jax.runtime.ctrl_c import end_on_ctrl_c, interruptible
from transformer_jax.runtime.errors import (
    InputError,
    PretrainedError,
    RunFolderError,
    TokenizerError,
    warnings_as_notes,
)
from transformer_jax.runtime.malloc import keep_freed_memory
from transformer_jax.runtime.program import MODULE, program

# The module of each command in transformer_jax.cli. Only the module of the given command is
# imported, because imports take most of the time of a short command.
COMMANDS = {
    "predict": "predict",
    "tokens": "tokens",
    "walk": "walk",
    "attention": "attention",
    "explain": "explain",
    "cost": "cost",
    "generate": "generate",
    "next": "next_tokens",
    "translate": "translate",
    "embed": "embed",
    "similar": "similar",
    "fill": "fill",
    "runs": "runs",
    "export": "export",
    "build": "build",
}

# Those that use a model; `cost` has a --mesh of its own, of devices that need not be here.
ON_MESH = ("predict", "generate", "next", "translate", "embed", "similar", "fill")


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    if not arguments or arguments[0] not in COMMANDS:
        _list_parser().parse_args(arguments[:1])  # prints the help or an error, and exits
    parser = command_parser(arguments[0])
    options = parser.parse(arguments[1:])
    try:
        mesh = options.mesh if arguments[0] in ON_MESH else None
        with warnings_as_notes(), mesh_of(mesh):
            options.run(options)
    except (RunFolderError, PretrainedError, TokenizerError, InputError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `| head`, closed the pipe
        sys.stderr.close()
    return 0


def command_parser(name: str) -> CommandParser:
    """Return the parser of a command; `run` of its options runs it."""
    module = import_module(f"transformer_jax.cli.{COMMANDS[name]}")
    parser = CommandParser(
        prog=f"{program()} {name}",
        description=(module.__doc__ or "").replace(MODULE, program()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_arguments(parser, name, module)
    parser.set_defaults(run=module.run)
    return parser


def _list_parser() -> argparse.ArgumentParser:
    """Return the parser of all commands, which prints their list and refuses other names."""
    parser = argparse.ArgumentParser(prog=program(), description=__doc__)
    parser.add_argument("--version", action="version", version=f"transformer_jax {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, stem in COMMANDS.items():
        module = import_module(f"transformer_jax.cli.{stem}")
        summary = (module.__doc__ or "").partition("\n\n")[0]
        _add_arguments(commands.add_parser(name, help=summary), name, module)
    return parser


def _add_arguments(parser: argparse.ArgumentParser, name: str, module: ModuleType) -> None:
    module.add_arguments(parser)
    if name in ON_MESH:
        add_mesh(parser)


def script() -> int:
    """Run a command in a process of its own, and return the exit code."""
    end_on_ctrl_c()
    keep_freed_memory()
    use_compilation_cache()
    return interruptible(main)


if __name__ == "__main__":
    sys.exit(script())
