"""The options of generation, and the checks of what a caller passes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from transformer_jax.functional.checks import are_numbers, check_whole
from transformer_jax.generation.beam_search import BeamSearch, check_search
from transformer_jax.generation.sampling import Sampling, SamplingNumbers

LONG = 256  # tokens of a published model without a limit; some have a context of 100,000
TEMPERATURE = 0.8  # if neither the request nor the model's files say how a token is chosen


class TracedOptions(NamedTuple):
    """The options whose values are arguments of the compiled programs."""

    sampling: SamplingNumbers
    stop: Int[Array | np.ndarray, " n"]
    pad_id: Int[Array, ""] | int

    @property
    def penalises(self) -> bool:
        """Whether the repetition penalty has an effect, so that used tokens must be known."""
        return self.sampling.penalty is not None


@dataclass(frozen=True)
class StaticOptions:
    """The options of which each value is a program of its own."""

    max_tokens: int
    top_k: int | None
    greedy: bool
    search: BeamSearch | None


@dataclass(frozen=True)
class GenerationOptions:
    """The options of generation.

    Raises TypeError for a number that is not whole, ValueError for `max_tokens` below 1, and for a
    sampling together with a search.
    """

    max_tokens: int
    sampling: Sampling | None = None
    search: BeamSearch | None = None
    stop: tuple[int, ...] = ()
    pad_id: int = 0

    def __post_init__(self):
        check_whole("max_tokens", self.max_tokens, least=1)
        if not isinstance(self.stop, tuple):
            raise TypeError(f"stop must be a tuple of token ids; got {self.stop!r:.60}")
        for token in self.stop:
            check_whole("stop", token)
        check_whole("pad_id", self.pad_id)
        if self.searches and self.sampling is not None:
            raise ValueError("a beam search does not sample: pass search or sampling, not both")

    @property
    def searches(self) -> bool:
        """Whether there is a beam search. With one beam it is greedy generation instead."""
        return self.search is not None and self.search.beams > 1

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn, which needs a key."""
        return self.sampling is not None and not self.sampling.greedy

    @property
    def traced(self) -> TracedOptions:
        """The options that are arguments of the compiled programs."""
        numbers = SamplingNumbers() if self.sampling is None else self.sampling.numbers
        return TracedOptions(numbers, np.array(self.stop, np.int32), self.pad_id)

    @property
    def static(self) -> StaticOptions:
        """The options that a program is compiled for."""
        top_k = None if self.sampling is None else self.sampling.top_k
        search = self.search if self.searches else None
        return StaticOptions(self.max_tokens, top_k, not self.draws, search)


def make_options(
    model,
    max_tokens: int,
    sampling: Sampling | None,
    search: BeamSearch | None,
    stop: Sequence[int],
    pad_id: int,
) -> GenerationOptions:
    """Create the options and check that they suit the model. Raises ValueError or TypeError."""
    # What is no sequence stays as it is, for the message.
    stop = tuple(stop) if isinstance(stop, Iterable) else stop
    options = GenerationOptions(max_tokens, sampling, search, stop, pad_id)
    check_tokens(model, options.stop, "stop at")
    check_tokens(model, (options.pad_id,), "pad with")
    if options.searches and search is not None:
        check_search(search, max_tokens, model.config.vocab_size)
    return options


def check_fits(model, tokens: int, max_tokens: int) -> None:
    """Raise ValueError if `tokens`, prompt included, are more than the model's max_length.

    A symbolic number is not checked.
    """
    if are_numbers(tokens) and tokens > model.config.max_length:
        raise ValueError(
            f"the prompt and max_tokens={max_tokens} make {tokens} tokens, more than the model's "
            f"max_length={model.config.max_length}"
        )


def check_tokens(model, tokens: Sequence[int], use: str) -> None:
    """Raise ValueError if one of the token ids is not in the model's vocabulary."""
    V = model.config.vocab_size
    for token in tokens:
        if not 0 <= token < V:
            raise ValueError(f"there is no token {token} to {use}: the vocabulary has {V}")


def key_for(options: GenerationOptions, key: PRNGKeyArray | None) -> PRNGKeyArray:
    """Return the key, or any if none is needed. Raises ValueError if it is needed and missing."""
    if options.draws and key is None:
        raise ValueError("sampling needs a key, as jax.random.key(0)")
    return jax.random.key(0) if key is None else key
