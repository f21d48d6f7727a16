"""Write on with a trained language model.

    python -m transformer_jax generate RUN "Once upon a time"
    python -m transformer_jax generate RUN "Once" --greedy --tokens 50
    python -m transformer_jax generate RUN "Once" --beams 4
    python -m transformer_jax generate gpt2 "Once"              (from the Hugging Face Hub, or a folder)

prints the prompt and what follows, as it is drawn. The same --seed draws the same text.
"""

import argparse
import sys

import jax
import numpy as np

from transformer_jax.cli.terminal import writable
from transformer_jax.generation.generate import generate, stream
from transformer_jax.generation.sampling import Sampling
from transformer_jax.inference.language_models import (
    LONG,
    MODEL_HELP,
    continuation,
    end_of_text,
    load_writer,
    prompt_of,
)
from transformer_jax.runtime.errors import InputError
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="MODEL", help=MODEL_HELP)
    add("prompt", metavar="PROMPT", help="what it goes on from")
    add(
        "--tokens",
        type=int,
        metavar="N",
        help=f"at most so many (default: what the model holds, of a published one {LONG})",
    )
    add("--temperature", type=float, default=0.8, metavar="X", help="default: 0.8")
    add("--top-k", type=int, metavar="K", help="of the K likeliest tokens alone")
    add("--top-p", type=float, metavar="P", help="of the likeliest that reach P together")
    add("--min-p", type=float, metavar="P", help="of those P times as likely as the likeliest")
    add("--repetition-penalty", type=float, default=1.0, metavar="X", help="default: 1, none")
    add("--greedy", action="store_true", help="the likeliest token each time")
    add("--beams", type=int, default=1, metavar="W", help="the best text of a beam search")
    add("--stop", metavar="TOKEN", help="up to this token (default: the end of a text)")
    add("--seed", type=int, default=0, metavar="S", help="of the drawing (default: 0)")


def run(options: argparse.Namespace) -> None:
    trained = load_writer(options.folder)
    tokenizer, config = trained.tokenizer, trained.spec.config
    prompt = prompt_of(trained, options.prompt)
    room = config.max_length - len(prompt)
    if room < 1:
        raise InputError(
            f"the prompt has {len(prompt)} tokens, and the model holds {config.max_length} with what it "
            "writes; pass a shorter one"
        )
    usual = min(room, LONG) if isinstance(tokenizer, PretrainedTokenizer) else room
    tokens = usual if options.tokens is None else options.tokens
    if not 1 <= tokens <= room:
        raise InputError(
            f"--tokens must be 1 to {room}, what the model holds behind this prompt; got {tokens}"
        )
    stop = end_of_text(trained)
    if options.stop is not None:
        stop = tokenizer.id_of(options.stop)
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
        if options.beams < 1:
            raise ValueError(f"--beams must be 1 or more; got {options.beams}")
    except ValueError as error:
        raise InputError(str(error)) from None
    drawn = not options.greedy and options.beams == 1
    how = {
        "max_tokens": tokens,
        "stop": () if stop is None else (stop,),
        "pad_id": tokenizer.pad_id,
        "sampling": sampling if drawn else None,
        "key": jax.random.key(options.seed),
    }
    if options.beams > 1:
        found = generate(trained.model, prompt[None], beams=options.beams, **how)
        written = np.asarray(found.tokens[0, : int(found.lengths[0])]).tolist()
        text = continuation(trained, prompt, written)
        print(writable(options.prompt + text))
        return
    print(writable(options.prompt), end="", flush=True)
    written, shown = [], ""
    for (token,) in stream(trained.model, prompt[None], **how):
        written.append(int(token))
        text = continuation(trained, prompt, written)
        # A character may be several tokens: what is not whole yet waits.
        if not text.endswith("\ufffd"):
            print(writable(text[len(shown) :]), end="", flush=True)
            shown = text
    print()
    sys.stdout.flush()
