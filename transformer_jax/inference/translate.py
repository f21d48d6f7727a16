"""Translation of texts with a trained encoder-decoder, in batches of similar length."""

from collections.abc import Iterable, Sequence

import numpy as np

from transformer_jax.generation.beam_search import BeamSearch
from transformer_jax.generation.generate import generate_target
from transformer_jax.inference.texts import as_texts
from transformer_jax.models.seq2seq import SequenceToSequence
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import (
    Batches,
    bucket_lengths,
    evaluation_plans,
    round_lengths,
)
from transformer_jax.text.tokenizer_protocol import TextTokenizer, special_id

# A translation has at most LONGER * (tokens of the source) + MORE tokens.
LONGER = 2
MORE = 16


class Translator:
    """A trained encoder-decoder that translates, as `transformer_jax.load` returns it.

    `trained` has the model, the tokenizer and the specification.
    """

    def __init__(self, trained: Trained):
        self.trained = trained

    def __repr__(self) -> str:
        config = self.trained.spec.config
        return f"Translator(vocab_size={config.vocab_size}, max_length={config.max_length})"

    def translate(self, texts: Iterable[str], *, beams: int = 4, alpha: float = 0.6) -> list[str]:
        """Translate texts by beam search, in the order of the texts.

        `texts` is a list, a NumPy array or a pandas Series. An empty text has an empty translation,
        and a text that is longer than the model's max_length is cut. Raises TypeError for a single
        str, and ValueError for a search that cannot be computed.

        >>> from transformer_jax import load
        >>> load("tests/data/run_folders/translate").translate(["one two", "four"])
        ['eins zwei', 'vier']
        """
        return translate(self.trained, as_texts(texts, "translate"), beams=beams, alpha=alpha)


def translate(
    trained: Trained, texts: Sequence[str], *, beams: int = 4, alpha: float = 0.6
) -> list[str]:
    """Translate texts by beam search, in the order of the texts.

    An empty text has an empty translation. A text that is longer than the model's max_length is
    cut.
    """
    return translated(trained.model, trained.tokenizer, texts, beams=beams, alpha=alpha)


def translated(
    model: SequenceToSequence,
    tokenizer: TextTokenizer,
    texts: Sequence[str],
    *,
    beams: int = 4,
    alpha: float = 0.6,
    batch_tokens: int = 4096,
) -> list[str]:
    """Translate texts as `translate` does, with a model and a tokenizer.

    A batch has at most `batch_tokens` tokens, beams included, or one text if that is longer.
    """
    most = model.config.max_length
    chosen = [i for i, text in enumerate(texts) if text.strip()]
    found = [""] * len(texts)
    if not chosen:
        return found
    encoded = tokenizer.encode([texts[i] for i in chosen], most)
    lengths = [len(ids) for ids in encoded]
    # Each length is compiled, and a few texts do not repay several compilations.
    buckets = bucket_lengths(
        round_lengths(lengths, most), most, num_buckets=min(4, 1 + len(chosen) // 200)
    )
    begin, end = (special_id(tokenizer, role) for role in ("cls", "sep"))
    plans = evaluation_plans(lengths, buckets, max(batch_tokens // beams, buckets[-1]))
    for batch in Batches(plans, encoded, None, tokenizer.pad_id):
        # The loop ends with its longest translation: empty rows repeat one, and prolong nothing.
        rows = np.where(batch.is_example, np.arange(len(batch.tokens)), 0)
        written = generate_target(
            model,
            batch.tokens[rows],
            batch.is_token[rows],
            begin=begin,
            max_tokens=min(most, LONGER * batch.tokens.shape[1] + MORE),
            search=BeamSearch(beams, alpha),
            stop=(end,),
        )
        lines = zip(np.asarray(written.tokens), np.asarray(written.lengths), strict=True)
        for i, (ids, length) in zip(batch.index[batch.is_example], lines, strict=False):
            found[chosen[i]] = tokenizer.decode(ids[:length])
    return found
