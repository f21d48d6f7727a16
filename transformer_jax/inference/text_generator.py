"""Continuations of prompts, and the likeliest next tokens, from a trained language model."""

from collections.abc import Sequence

import jax
import numpy as np

from transformer_jax.generation.generate import generate, next_tokens
from transformer_jax.inference.generation_arguments import GenerationRequest, generation_arguments
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
        ids = self._prompt(prompt)
        if isinstance(stop, str):  # whose letters would be taken for tokens
            raise TypeError(f"stop must be a list of tokens, got a str; write stop=[{stop!r:.60}]")
        request = GenerationRequest(
            max_tokens,
            None if stop is None else tuple(self._token(name) for name in stop),
            greedy,
            beams,
            temperature,
            top_k,
            top_p,
            min_p,
            repetition_penalty,
        )
        arguments = generation_arguments(self.trained, len(ids), request)
        found = generate(
            self.trained.model,
            *self._padded(ids, arguments["max_tokens"]),
            key=jax.random.key(seed),
            **arguments,
        )
        new = np.asarray(found.tokens[0, : int(found.lengths[0])]).tolist()
        return prompt + self.trained.tokenizer.continuation(ids, new)

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
