"""`python -m transformer_jax COMMAND`: using what training left. One file a command."""

import argparse
import sys

from transformer_jax.cli import (
    attention,
    cost,
    embed,
    explain,
    fill,
    generate,
    next_tokens,
    predict,
    similar,
    tokens,
    translate,
    walk,
)
from transformer_jax.pretrained.files import PretrainedError
from transformer_jax.runtime.errors import InputError
from transformer_jax.runtime.malloc import keep_freed_memory
from transformer_jax.serialization.run_folder import RunFolderError
from transformer_jax.text.tokenizer import TokenizerError

COMMANDS = {
    "predict": predict,
    "tokens": tokens,
    "walk": walk,
    "attention": attention,
    "explain": explain,
    "cost": cost,
    "generate": generate,
    "next": next_tokens,
    "translate": translate,
    "embed": embed,
    "similar": similar,
    "fill": fill,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m transformer_jax", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in COMMANDS.items():
        summary, _, description = module.__doc__.partition("\n\n")
        command = commands.add_parser(
            name,
            help=summary,
            description=f"{summary}\n\n{description}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (RunFolderError, PretrainedError, TokenizerError, InputError) as error:
        print(f"{parser.prog} {options.command}: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # `| head` has seen enough
        sys.stderr.close()
    return 0


if __name__ == "__main__":
    keep_freed_memory()
    sys.exit(main())
