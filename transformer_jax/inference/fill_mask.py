"""Predictions of a masked language model for the masks of a text (Devlin et al., 2019,
section 3.1).
"""

from functools import partial
from typing import NamedTuple

import jax
import numpy as np
from flax import nnx

from transformer_jax.inference.texts import as_text
from transformer_jax.models.masked_language_model import MaskedLanguageModel
from transformer_jax.parallel.mesh import keep_whole
from transformer_jax.parallel.placement import gathered
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import padded
from transformer_jax.text.tokenizer_protocol import TextTokenizer

LONGEST = 2**31  # tokens, so that a long text is not cut; it raises an error instead


class Guess(NamedTuple):
    """A token predicted for a mask."""

    token: str
    probability: float
    text: str  # the text with the mask replaced by the token


class MaskFiller:
    """A trained masked language model, as `transformer_jax.load` returns it.

    `trained` has the model, the tokenizer and the specification.
    """

    def __init__(self, trained: Trained):
        self.trained = trained

    def __repr__(self) -> str:
        config = self.trained.spec.config
        return f"MaskFiller(vocab_size={config.vocab_size}, max_length={config.max_length})"

    def fill(self, text: str, top: int = 5) -> list[list[Guess]]:
        """Predict the `top` likeliest tokens at each mask of a text, the likeliest first.

        The mask token depends on the model: [MASK] for BERT, <mask> for RoBERTa. Raises TypeError
        if the text is not a str, and ValueError if it has no mask or is too long.

        >>> from transformer_jax import load
        >>> found = load("tests/data/run_folders/mlm").fill("the film was [MASK]", top=2)
        >>> [len(tokens) for tokens in found]
        [2]
        """
        text = as_text(text, "text")
        return fill_masks(self.trained.model, self.trained.tokenizer, text, top)


def fill_masks(
    model: MaskedLanguageModel, tokenizer: TextTokenizer, text: str, top: int = 5
) -> list[list[Guess]]:
    """Predict the `top` likeliest tokens at each mask of a text, the likeliest first.

    Masks are predicted independently: the other masks stay masked.

    Raises ValueError if the tokenizer has no mask token, if the text has no mask, or if it has more
    tokens than the model's max_length.
    """
    tokenizer = tokenizer.for_table(model.config.vocab_size)
    mask_id = tokenizer.mask_id
    if mask_id is None:
        raise ValueError("the tokenizer has no mask token; use a masked language model")
    mask = tokenizer.token(mask_id)
    (tokens,) = tokenizer.encode([text], LONGEST)
    places = np.flatnonzero(tokens == mask_id)
    if not len(places):
        raise ValueError(f"the text has no {mask}; put one where a word is wanted")
    if len(tokens) > model.config.max_length:
        raise ValueError(
            f"the text has {len(tokens)} tokens; the model holds {model.config.max_length}"
        )
    # Padded to a multiple of 16, so that texts of similar length share a compiled program. The
    # vocabulary's size limits the rows, because the embedding table may have spare ones.
    length = min(-(-len(tokens) // 16) * 16, model.config.max_length)
    row, is_token = padded([tokens], 1, length, tokenizer.pad_id)
    graph, params = nnx.split(model, nnx.Param)
    probabilities = _probabilities_at(
        graph,
        gathered(params),
        row,
        is_token,
        places,
        rows=min(tokenizer.vocab_size, model.config.vocab_size),
    )
    guesses = []
    for place, row in zip(places, np.asarray(probabilities), strict=True):
        best = np.argsort(-row, kind="stable")[:top]
        filled = np.array(tokens)
        found = []
        for token in best:
            filled[place] = token
            # `decode` leaves out the special tokens around the text.
            guess = Guess(tokenizer.token(int(token)), float(row[token]), tokenizer.decode(filled))
            found.append(guess)
        guesses.append(found)
    return guesses


@partial(jax.jit, static_argnums=0, static_argnames="rows")
def _probabilities_at(graph, params, tokens, is_token, places, *, rows):
    model = nnx.merge(graph, params)
    logits = model.logits(model.text(tokens, is_token)[0, places])
    return keep_whole(jax.nn.softmax(logits[:, :rows]))
