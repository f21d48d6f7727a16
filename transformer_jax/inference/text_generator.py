"""Continuations of prompts, and the likeliest next tokens, from a trained language model."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Unpack

import jax
import numpy as np

from transformer_jax.generation.generate import generate, next_tokens, stream
from transformer_jax.inference.generation_arguments import (
    GenerationRequest,
    GenerationSettings,
    generation_arguments,
)
from transformer_jax.inference.texts import as_text
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import padded, round_lengths


class TextGenerator:
    """A trained language model that continues texts, as `transformer_jax.load` returns it.

    Its compiled functions are kept, for each number of new tokens and each padded length of a
    prompt (`text.batching.round_lengths`). `trained` has the model, the tokenizer and the
    specification.
    """

    def __init__(self, trained: Trained):
        self.trained = trained

    def __repr__(self) -> str:
        config = self.trained.spec.config
        return f"TextGenerator(vocab_size={config.vocab_size}, max_length={config.max_length})"

    def generate(
        self,
        prompt: str,
        *,
        max_tokens: int | None = None,
        seed: int = 0,
        stop: Sequence[str] | None = None,
        greedy: bool = False,
        beams: int | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
    ) -> str:
        """Generate a continuation of a prompt, and return the prompt with it.

        What is None is taken from the files of a published model, else from the defaults of
        `generation_arguments`. `stop` has the names of the tokens that end the text. The same
        `seed` gives the same text. Without `max_tokens` a run folder generates all that fit, and is
        compiled for each length of a prompt.

        Raises TypeError if the prompt is not a str or `stop` is one, and ValueError if the prompt
        is empty or leaves no room for a token, or if a setting is wrong or contradicts another one.

        >>> from transformer_jax import load
        >>> load("tests/data/run_folders/lm").generate("the", max_tokens=5, greedy=True)
        'the and '
        """
        request = GenerationRequest(
            max_tokens,
            None,
            greedy,
            beams,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
        )
        ids, arguments = self._arguments(prompt, request, stop, seed)
        return prompt + self._generated(ids, arguments)

    def stream(
        self,
        prompt: str,
        *,
        seed: int = 0,
        stop: Sequence[str] | None = None,
        **settings: Unpack[GenerationSettings],
    ) -> Iterator[str]:
        """Yield the continuation of a prompt in pieces, as the tokens are drawn.

        The arguments are those of `generate`. A beam search yields a single piece. A character that
        is not complete at the end is left out. Raises as `generate` does, at once.

        >>> from transformer_jax import load
        >>> writer = load("tests/data/run_folders/lm")
        >>> list(writer.stream("the", max_tokens=5, greedy=True))
        [' ', 'a', 'n', 'd', ' ']
        """
        ids, arguments = self._arguments(prompt, GenerationRequest(**settings), stop, seed)
        if "search" in arguments:
            return iter([self._generated(ids, arguments)])
        return self._streamed(ids, arguments)

    def _arguments(
        self, prompt: str, request: GenerationRequest, stop: Sequence[str] | None, seed: int
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the tokens of a prompt, and the arguments of `generation.generate`."""
        ids = self._prompt(prompt)
        if isinstance(stop, str):  # whose letters would be taken for tokens
            raise TypeError(f"stop must be a list of tokens, got a str; write stop=[{stop!r:.60}]")
        if stop is not None:
            request = replace(request, stop=tuple(self._token(name) for name in stop))
        if not -(2**63) <= seed < 2**63:
            raise InputError(f"seed must fit into 64 bits; got {seed}")
        arguments = generation_arguments(self.trained, len(ids), request)
        return ids, arguments | {"key": jax.random.key(seed)}

    def _generated(self, ids: np.ndarray, arguments: dict[str, Any]) -> str:
        rows = self._padded(ids, arguments["max_tokens"])
        found = generate(self.trained.model, *rows, **arguments)
        # In NumPy: a slice of a JAX array would be compiled for every length.
        new = np.asarray(found.tokens)[0, : int(found.lengths[0])].tolist()
        return self.trained.tokenizer.continuation(ids, new)

    def _streamed(self, ids: np.ndarray, arguments: dict[str, Any]) -> Iterator[str]:
        new, shown = [], 0
        rows = self._padded(ids, arguments["max_tokens"])
        for (token,) in stream(self.trained.model, *rows, **arguments):
            new.append(int(token))
            text = self.trained.tokenizer.continuation(ids, new)
            # A character may span several tokens. It is yielded once it is complete.
            if not text.endswith("\ufffd"):
                yield text[shown:]
                shown = len(text)

    def next_tokens(self, prompt: str, count: int = 10) -> list[tuple[str, float]]:
        """Return the `count` likeliest next tokens and their probabilities, the likeliest first.

        Raises TypeError if the prompt is not a str, and ValueError if it is empty, too long, or the
        count is wrong.

        >>> from transformer_jax import load
        >>> [(token, _)] = load("tests/data/run_folders/lm").next_tokens("the fil", 1)
        >>> token
        'm'
        """
        ids = self._prompt(prompt)
        most = self.trained.spec.config.max_length
        if len(ids) > most:
            raise InputError(f"the text has {len(ids)} tokens, but the model reads at most {most}")
        best, probabilities = next_tokens(self.trained.model, *self._padded(ids, 0), count)
        pairs = zip(best[0].tolist(), probabilities[0].tolist(), strict=True)
        return [(self.trained.tokenizer.spell(token), p) for token, p in pairs]

    def _prompt(self, prompt: str) -> np.ndarray:
        """Return the token ids of a prompt."""
        if not as_text(prompt, "prompt"):
            raise InputError("an empty prompt; pass at least one word")
        return self.trained.tokenizer.prompt(prompt, framed=self.trained.spec.framed)

    def _padded(self, ids: np.ndarray, new: int) -> tuple[np.ndarray, np.ndarray]:
        """Pad a prompt as far as `new` tokens leave room; one that is too long stays as it is."""
        room = self.trained.spec.config.max_length - new
        length = max(len(ids), int(round_lengths([len(ids)], room)[0]))
        return padded([ids], 1, length, self.trained.tokenizer.pad_id)

    def _token(self, name: str) -> int:
        """Return the id of a token that ends a text."""
        token = self.trained.tokenizer.id_of(name)
        if token is None:
            raise InputError(f"stop: the vocabulary has no token {name!r:.60}")
        return token
