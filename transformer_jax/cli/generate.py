"""Continue a prompt with a trained language model.

    python -m transformer_jax generate RUN "Once upon a time"
    python -m transformer_jax generate RUN "Once" --greedy --tokens 50
    python -m transformer_jax generate RUN "Once" --beams 4
    python -m transformer_jax generate gpt2 "Once"    (from the Hugging Face Hub, or a folder)

prints the prompt and its continuation, token by token. The same --seed gives the same text.

A published model has its own settings in generation_config.json, or without that file in
config.json. An option given here counts instead. As in Hugging Face Transformers,
generation_config.json counts where both files set something, it ends no text if it has no
eos_token_id, and max_new_tokens counts before max_length. A setting of sampling asks for sampling
if the file says do_sample: false. --top-k with a large number and --top-p 1 keep every token.
"""

import argparse
import sys

from transformer_jax.cli.arguments import LANGUAGE_MODEL
from transformer_jax.cli.terminal import writable
from transformer_jax.generation.options import LONG, TEMPERATURE
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.runtime.errors import InputError, PretrainedError

# The options of the arguments that begin a message.
OPTIONS = {"max_tokens": "--tokens", "beams": "--beams", "stop:": "--stop:", "seed": "--seed"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="MODEL", help=LANGUAGE_MODEL)
    add("prompt", metavar="PROMPT", help="text to continue")
    add(
        "--tokens", type=int, metavar="N",
        help="maximum number of new tokens (default: all that fit; published models max_new_tokens "
        f"or max_length of their files, else {LONG})",
    )  # fmt: skip
    add(
        "--temperature", type=float, metavar="X",
        help=f"of sampling (default: {TEMPERATURE}; 1 if the files of the model set do_sample)",
    )  # fmt: skip
    add("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens only")
    add("--top-p", type=float, metavar="P", help="nucleus sampling with total probability P")
    add("--min-p", type=float, metavar="P", help="minimum probability relative to the likeliest")
    add(
        "--repetition-penalty", type=float, metavar="X",
        help="makes tokens that occurred less likely if above 1 (default: 1, no penalty)",
    )  # fmt: skip
    add("--greedy", action="store_true", help="always take the likeliest token")
    add("--beams", type=int, metavar="W", help="beam width (default: 1, no beam search)")
    add(
        "--stop", action="append", metavar="TOKEN",
        help="token that ends the text; may be repeated (default: eos_token_id of the model's "
        "files, else the end-of-text token)",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")


def run(options: argparse.Namespace) -> None:
    folder = folder_of(options.folder)
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.inference.load import load
    from transformer_jax.inference.text_generator import TextGenerator

    writer = TextGenerator(load(folder, "language"))
    try:
        pieces = writer.stream(
            options.prompt,
            seed=options.seed,
            stop=options.stop,
            max_tokens=options.tokens,
            greedy=options.greedy,
            beams=options.beams,
            temperature=options.temperature,
            top_k=options.top_k,
            top_p=options.top_p,
            min_p=options.min_p,
            repetition_penalty=options.repetition_penalty,
        )
    except PretrainedError:
        raise
    except ValueError as error:
        raise InputError(_of_option(str(error))) from None
    print(writable(options.prompt), end="", flush=True)
    for piece in pieces:
        print(writable(piece), end="", flush=True)
    print()
    sys.stdout.flush()


def _of_option(message: str) -> str:
    """Return a message about an argument with the name of its option."""
    name, space, rest = message.partition(" ")
    return f"{OPTIONS.get(name, name)}{space}{rest}"
