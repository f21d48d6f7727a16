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
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from transformer_jax.cli.arguments import LANGUAGE_MODEL, check_local, prompt_ids
from transformer_jax.cli.terminal import writable
from transformer_jax.generation.options import LONG, TEMPERATURE
from transformer_jax.runtime.errors import InputError, PretrainedError

if TYPE_CHECKING:
    from transformer_jax.serialization.run_folder import Trained


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
    check_local(options.folder, "train.lm")
    # Imported here so that help and mistakes are answered at once.
    from transformer_jax.generation.generate import generate, stream
    from transformer_jax.inference.load import load

    trained = load(options.folder, "language")
    prompt = prompt_ids(trained, options.prompt)
    arguments = _arguments(options, trained, len(prompt))
    if "search" in arguments:
        try:
            found = generate(trained.model, prompt[None], **arguments)
        except ValueError as error:
            raise InputError(str(error)) from None
        ids = np.asarray(found.tokens[0, : int(found.lengths[0])]).tolist()
        print(writable(options.prompt + trained.tokenizer.continuation(prompt, ids)))
        return
    print(writable(options.prompt), end="", flush=True)
    ids, shown = [], ""
    for (token,) in stream(trained.model, prompt[None], **arguments):
        ids.append(int(token))
        text = trained.tokenizer.continuation(prompt, ids)
        # A character may span several tokens. It is printed once it is complete.
        if not text.endswith("\ufffd"):
            print(writable(text[len(shown) :]), end="", flush=True)
            shown = text
    print()
    sys.stdout.flush()


def _arguments(options: argparse.Namespace, trained: "Trained", prompt: int) -> dict[str, Any]:
    """Return the arguments of `generate` and `stream` for a prompt of `prompt` tokens."""
    room = trained.spec.config.max_length - prompt
    if options.tokens is not None and room > 0 and not 1 <= options.tokens <= room:
        raise InputError(
            f"--tokens must be 1 to {room}, the room that the prompt leaves; got {options.tokens}"
        )
    if options.beams is not None and options.beams < 1:
        raise InputError(f"--beams must be 1 or more; got {options.beams}")
    from transformer_jax.inference.generation_arguments import (
        GenerationRequest,
        generation_arguments,
    )

    request = GenerationRequest(
        options.tokens,
        None if options.stop is None else tuple(_token(trained, name) for name in options.stop),
        options.greedy,
        options.beams,
        options.temperature,
        options.top_k,
        options.top_p,
        options.min_p,
        options.repetition_penalty,
    )
    try:
        arguments = generation_arguments(trained, prompt, request)
    except PretrainedError:
        raise
    except ValueError as error:
        raise InputError(str(error)) from None
    if not -(2**63) <= options.seed < 2**63:
        raise InputError(f"--seed must fit into 64 bits; got {options.seed}")
    return arguments | {"key": jax.random.key(options.seed)}


def _token(trained: "Trained", name: str) -> int:
    token = trained.tokenizer.id_of(name)
    if token is None:
        raise InputError(f"--stop: the vocabulary has no token {name!r}")
    return token
