"""Continue a prompt with a trained language model.

    python -m transformer_jax generate RUN "Once upon a time"
    python -m transformer_jax generate RUN "Once" --greedy --tokens 50
    python -m transformer_jax generate RUN "Once" --beams 4
    python -m transformer_jax generate gpt2 "Once"    (from the Hugging Face Hub, or a folder)

prints the prompt and its continuation, token by token. The same --seed gives the same text.
"""

import argparse
import sys
from typing import Any

import jax
import numpy as np

from transformer_jax.cli.arguments import LANGUAGE_MODEL, prompt_ids
from transformer_jax.cli.terminal import writable
from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import generate, stream
from transformer_jax.generation.sampling import Sampling
from transformer_jax.inference.load import load
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import Trained

# The default --tokens of published models, because some have a context of a hundred thousand.
LONG = 256


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="MODEL", help=LANGUAGE_MODEL)
    add("prompt", metavar="PROMPT", help="text to continue")
    add(
        "--tokens",
        type=int,
        metavar="N",
        help=f"maximum number of new tokens (default: all that fit; published models {LONG})",
    )
    add("--temperature", type=float, default=0.8, metavar="X", help="of sampling (default: 0.8)")
    add("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens only")
    add("--top-p", type=float, metavar="P", help="nucleus sampling with total probability P")
    add("--min-p", type=float, metavar="P", help="minimum probability relative to the likeliest")
    add(
        "--repetition-penalty", type=float, default=1.0, metavar="X",
        help="makes tokens that occurred less likely if above 1 (default: 1, no penalty)",
    )  # fmt: skip
    add("--greedy", action="store_true", help="always take the likeliest token")
    add("--beams", type=int, default=1, metavar="W", help="beam width (default: 1, no beam search)")
    add("--stop", metavar="TOKEN", help="token that ends the text (default: the end-of-text token)")
    add("--seed", type=int, default=0, metavar="S", help="random seed (default: 0)")


def run(options: argparse.Namespace) -> None:
    trained = load(options.folder, "language")
    prompt = prompt_ids(trained, options.prompt)
    chosen = _generation(options, trained, len(prompt))
    if options.beams > 1:
        found = generate(trained.model, prompt[None], search=BeamSearch(options.beams), **chosen)
        ids = np.asarray(found.tokens[0, : int(found.lengths[0])]).tolist()
        print(writable(options.prompt + trained.tokenizer.continuation(prompt, ids)))
        return
    print(writable(options.prompt), end="", flush=True)
    ids, shown = [], ""
    for (token,) in stream(trained.model, prompt[None], **chosen):
        ids.append(int(token))
        text = trained.tokenizer.continuation(prompt, ids)
        # A character may span several tokens. It is printed once it is complete.
        if not text.endswith("\ufffd"):
            print(writable(text[len(shown) :]), end="", flush=True)
            shown = text
    print()
    sys.stdout.flush()


def _generation(options: argparse.Namespace, trained: Trained, prompt: int) -> dict[str, Any]:
    """Return the arguments of `generate` and `stream` for a prompt of `prompt` tokens."""
    holds = trained.spec.config.max_length
    room = holds - prompt
    if room < 1:
        raise InputError(
            f"the prompt has {prompt} tokens, and the model holds {holds}, new tokens included; "
            "pass a shorter prompt"
        )
    usual = room if trained.published is None else min(room, LONG)
    tokens = usual if options.tokens is None else options.tokens
    if not 1 <= tokens <= room:
        raise InputError(
            f"--tokens must be 1 to {room}, the room that the prompt leaves; got {tokens}"
        )
    stop = trained.tokenizer.end_id
    if options.stop is not None:
        stop = trained.tokenizer.id_of(options.stop)
        if stop is None:
            raise InputError(f"--stop: the vocabulary has no token {options.stop!r}")
    try:
        sampling = Sampling(
            options.temperature,
            options.top_k,
            options.top_p,
            options.min_p,
            options.repetition_penalty,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    if options.beams < 1:
        raise InputError(f"--beams must be 1 or more; got {options.beams}")
    is_drawn = not options.greedy and options.beams == 1
    return {
        "max_tokens": tokens,
        "stop": () if stop is None else (stop,),
        "pad_id": trained.tokenizer.pad_id,
        "sampling": sampling if is_drawn else None,
        "key": jax.random.key(options.seed),
    }
