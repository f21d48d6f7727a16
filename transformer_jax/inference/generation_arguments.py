"""The arguments of `generate` for a loaded model: what is asked for, else its own settings.

trained = load("gpt2", "language")
prompt = trained.tokenizer.prompt("Once upon a time", framed=trained.spec.framed)
arguments = generation_arguments(trained, len(prompt), GenerationRequest(top_p=0.9))
generate(trained.model, prompt[None], key=jax.random.key(0), **arguments)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.options import LONG, TEMPERATURE
from transformer_jax.generation.sampling import Sampling
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.generation_config import (
    UNSUPPORTED_IN_SAMPLING,
    UNSUPPORTED_IN_SEARCH,
    GenerationConfig,
    read_generation_config,
)
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.folder_files import CONFIG
from transformer_jax.serialization.run_folder import Trained

DRAWING, PENALTY = ("temperature", "top_k", "top_p", "min_p"), "repetition_penalty"
SETTINGS = (*DRAWING, PENALTY)  # of `Sampling`


@dataclass(frozen=True)
class GenerationRequest:
    """The settings that a user asks for; None for one that is left to the model.

    A setting of sampling (`temperature`, `top_k`, `top_p`, `min_p`) asks for sampling.
    """

    max_tokens: int | None = None
    stop: tuple[int, ...] | None = None
    greedy: bool = False
    beams: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None


class GenerationSettings(TypedDict, total=False):
    """The keyword arguments of `TextGenerator.stream`: fields of `GenerationRequest`."""

    max_tokens: int | None
    greedy: bool
    beams: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None


def generation_arguments(
    trained: Trained, prompt_length: int, request: GenerationRequest | None = None
) -> dict[str, Any]:
    """Return the arguments of `generate` for a prompt of `prompt_length` tokens, without the key.

    What the request leaves out is taken from the generation_config.json of a published model, else
    from its config.json, and the stop token, if neither file is of use, from its tokenizer. A
    published model generates up to 256 tokens if its files set no limit. A run folder generates all
    that fit.

    Raises PretrainedError for settings in the files that are wrong or not supported. Raises
    ValueError or TypeError for a request that is wrong, contradicts itself, or leaves no room for a
    token.
    """
    request = request or GenerationRequest()
    if trained.published is None:
        config = GenerationConfig(Settings.of(Path(CONFIG), {}))
    else:
        config = read_generation_config(trained.published, trained.spec.config.vocab_size)
    tokenizer, stop = trained.tokenizer, request.stop
    if stop is None:
        end = () if tokenizer.end_id is None else (tokenizer.end_id,)
        stop = end if config.stop is None else config.stop
    pad_id = tokenizer.pad_id if config.pad_id is None else config.pad_id
    arguments = {
        "max_tokens": _max_tokens(trained, prompt_length, config, request),
        "stop": stop,
        "pad_id": pad_id or 0,
    }
    if (search := _search(config, request)) is not None:
        return arguments | {"search": search}
    return arguments | {"sampling": _sampling(config, request)}


def _max_tokens(trained, prompt_length, config, request) -> int:
    holds = trained.spec.config.max_length
    room = holds - prompt_length
    if room < 1:
        raise InputError(
            f"the prompt has {prompt_length} tokens, and the model holds {holds}, new tokens "
            "included; pass a shorter prompt"
        )
    if request.max_tokens is not None:
        if type(request.max_tokens) is int and not 1 <= request.max_tokens <= room:
            raise InputError(
                f"max_tokens must be 1 to {room}, the room that the prompt leaves in a max_length "
                f"of {holds}; got {request.max_tokens}"
            )
        return request.max_tokens
    if config.max_new_tokens is not None:
        return min(room, config.max_new_tokens)
    if config.max_length is None:
        return room if trained.published is None else min(room, LONG)
    if config.max_length <= prompt_length:
        raise config.error(
            f"max_length={config.max_length} leaves no room after a prompt of {prompt_length} "
            "tokens; ask for a number of new tokens"
        )
    return min(room, config.max_length - prompt_length)


def _search(config: GenerationConfig, request: GenerationRequest) -> BeamSearch | None:
    if request.beams is None:
        if (config.num_beams or 1) > 1:
            raise config.error(
                f"num_beams={config.num_beams} is not supported, because the search here scores "
                "texts differently; ask for a number of beams, 1 for none"
            )
        return None
    search = BeamSearch(request.beams)
    if search.beams == 1:
        return None
    _check_undrawn(request, "a beam search does not sample")
    config.check(UNSUPPORTED_IN_SEARCH)
    if _penalty(config, request) != 1.0:
        raise InputError(
            "a beam search has no repetition penalty; ask for one of 1, or for a single beam"
        )
    return search


def _sampling(config: GenerationConfig, request: GenerationRequest) -> Sampling | None:
    if request.greedy:
        _check_undrawn(request, "greedy generation does not sample")
    asked = _set_in(request, SETTINGS)
    if request.greedy or (config.do_sample is False and not {*asked} & {*DRAWING}):
        penalty = _penalty(config, request)
        return None if penalty == 1.0 else Sampling(repetition_penalty=penalty, greedy=True)
    config.check(UNSUPPORTED_IN_SAMPLING)
    own = _own(config, [name for name in SETTINGS if name not in asked])
    usual: dict[str, Any] = {"temperature": TEMPERATURE} if config.do_sample is None else {}
    return Sampling(**usual | own | asked)


def _penalty(config: GenerationConfig, request: GenerationRequest) -> float:
    penalty = _set_in(request, [PENALTY]) or _own(config, [PENALTY])
    return penalty.get(PENALTY, 1.0)


def _own(config: GenerationConfig, names: Sequence[str]) -> dict[str, Any]:
    """Return those of these settings that the model's files set, and check their values."""
    own = _set_in(config, names)
    try:
        Sampling(**own)
    except ValueError as error:
        raise config.error(str(error)) from None
    return own


def _set_in(settings: GenerationConfig | GenerationRequest, names: Sequence[str]) -> dict[str, Any]:
    values = {name: getattr(settings, name) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def _check_undrawn(request: GenerationRequest, why: str) -> None:
    if asked := _set_in(request, DRAWING):
        raise InputError(f"{why}: leave out {', '.join(asked)}")
