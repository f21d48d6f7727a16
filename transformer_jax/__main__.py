"""Commands that use trained and published models. Each is a module of transformer_jax.cli."""

import argparse
import sys
from collections.abc import Iterable
from importlib import import_module

from transformer_jax.runtime.errors import (
    InputError,
    PretrainedError,
    RunFolderError,
    TokenizerError,
)
from transformer_jax.runtime.malloc import keep_freed_memory

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
}


def main(arguments: list[str] | None = None) -> int:
    arguments = sys.argv[1:] if arguments is None else arguments
    asked = arguments[:1]
    parser = _make_parser(asked if asked and asked[0] in COMMANDS else COMMANDS)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (RunFolderError, PretrainedError, TokenizerError, InputError) as error:
        print(f"{parser.prog} {options.command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `| head`, closed the pipe
        sys.stderr.close()
    return 0


def _make_parser(names: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m transformer_jax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        module = import_module(f"transformer_jax.cli.{COMMANDS[name]}")
        summary, _, description = (module.__doc__ or "").partition("\n\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n\n{description}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main())
