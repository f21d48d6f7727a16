"""Sentence embeddings: one vector for each text (Reimers and Gurevych, 2019,
https://arxiv.org/abs/1908.10084).

The pooling of token vectors is read from the files that sentence-transformers stores with a model;
see `sentence_files`. A model without these files uses mean pooling.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float, Int32

from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.inference.load import load
from transformer_jax.inference.sentence_files import SIMILARITIES, Pooling, read_pooling
from transformer_jax.inference.texts import as_texts
from transformer_jax.models.text_encoder import TextEncoder
from transformer_jax.parallel.mesh import (
    gather,
    keep_whole,
    place,
    settled,
    split_rows,
    use_any_mesh,
)
from transformer_jax.runtime.progress import SHORT, ProgressBar
from transformer_jax.serialization.run_folder import Trained
from transformer_jax.text.batching import (
    Batches,
    bucket_lengths,
    evaluation_plans,
    round_lengths,
)
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer
from transformer_jax.text.tokenizer_protocol import TextTokenizer

BUCKETS = 6  # number of batch lengths that are compiled
SMALLEST_NORM = 1e-12  # that of sentence-transformers


class SentenceEncoder:
    """An encoder with its tokenizer and pooling, which maps texts to vectors.

    Texts of similar length share a batch. Each batch shape compiles once.
    """

    def __init__(self, model: TextEncoder, tokenizer: TextTokenizer, pooling: Pooling):
        self.tokenizer = tokenizer.for_table(model.config.vocab_size)
        if pooling.lowercase and isinstance(self.tokenizer, PretrainedTokenizer):
            self.tokenizer = self.tokenizer.lowercased()
        self.pooling = pooling
        width = model.config.encoder.embed_dim
        self.embed_dim = min(pooling.truncate_dim or width, width)
        holds = model.config.max_length
        self.max_length = min(pooling.max_length or holds, holds)
        graph, self.params = nnx.split(model, nnx.Param)

        @jax.jit
        def vectors(params, tokens, is_token):
            x = nnx.merge(graph, gather(params))(tokens, is_token)
            x = POOLINGS[pooling.name](x, is_token).astype(jnp.float32)
            if pooling.normalised:
                # The vector of a text without tokens is zero, and stays zero.
                x = x / jnp.maximum(jnp.linalg.norm(x, axis=-1, keepdims=True), SMALLEST_NORM)
            return keep_whole(x[:, : pooling.truncate_dim])

        self._vectors = vectors

    def __repr__(self) -> str:
        return f"SentenceEncoder(embed_dim={self.embed_dim}, max_length={self.max_length})"

    @classmethod
    def load(
        cls, source: str | Path, *, dtype: DTypeLike = jnp.float32, revision: str | None = None
    ) -> "SentenceEncoder":
        """Load an encoder from a folder or the Hugging Face Hub.

        Raises the errors of `inference.load.load`, and PretrainedError for a pooling that is not
        implemented.
        """
        return cls.of(load(source, "encoder", dtype=dtype, revision=revision))

    @classmethod
    def of(cls, trained: Trained) -> "SentenceEncoder":
        """Return the encoder of a loaded model, which must be of the kind "encoder"."""
        published = trained.published
        pooling = Pooling() if published is None else read_pooling(published)
        return cls(trained.model, trained.tokenizer, pooling)

    def embed(self, texts: Iterable[str]) -> Float[np.ndarray, "n D"]:
        """Embed texts as vectors, one row for each, in the order of the texts.

        `texts` is a list, a NumPy array or a pandas Series. Raises TypeError for a single str, or
        if a text is not a str.

        >>> from transformer_jax import load
        >>> load("tests/data/run_folders/mlm", "encoder").embed(["a film", "a play"]).shape
        (2, 16)
        """
        return self(as_texts(texts, "embed"))

    def __call__(
        self, texts: Sequence[str], *, batch_tokens: int = 8192, progress: bool = False
    ) -> Float[np.ndarray, "n D"]:
        """Compute the vectors of texts, in the order of the texts, each after the model's prompt.

        A batch has at most `batch_tokens` tokens, or one text if that is longer, which bounds the
        memory.
        """
        found = np.zeros((len(texts), self.embed_dim), np.float32)
        for rows, vectors in self.stream(texts, batch_tokens=batch_tokens, progress=progress):
            found[rows] = vectors
        return found

    def stream(
        self, texts: Sequence[str], *, batch_tokens: int = 8192, progress: bool = False
    ) -> Iterator[tuple[Int32[np.ndarray, " b"], Float[np.ndarray, "b D"]]]:
        """Yield the vectors of each batch as they come, with the indices of its texts.

        The arguments are those of a call. Long texts come first, so that a lack of memory shows at
        once.
        """
        if not len(texts):
            return
        prompted = [self.pooling.prompt + text for text in texts]
        encoded = self.tokenizer.encode(prompted, self.max_length)
        lengths = [len(ids) for ids in encoded]
        buckets = bucket_lengths(round_lengths(lengths, self.max_length), self.max_length, BUCKETS)
        plans = evaluation_plans(lengths, buckets, max(batch_tokens, buckets[-1]))
        batches = Batches(plans[::-1], encoded, None, self.tokenizer.pad_id)
        with use_any_mesh():
            params = place(self.params)
        with ProgressBar(
            total=len(texts), desc="embedding", unit="text", leave=False, delay=SHORT,
            disable=not progress,
        ) as bar:  # fmt: skip
            for batch in batches:
                with use_any_mesh():
                    inputs = split_rows((batch.tokens, batch.is_token))
                    vectors = settled(self._vectors(params, *inputs))
                rows = np.flatnonzero(batch.is_example)
                yield batch.index[rows], np.asarray(vectors)[rows]
                bar.update(len(rows))


def most_similar(
    query: Float[np.ndarray, " D"],
    vectors: Float[np.ndarray, "n D"],
    top: int,
    similarity: str = "cosine",
) -> list[tuple[int, float]]:
    """Find the `top` rows that are most similar to the query.

    `similarity` is "cosine", "dot", or the negative of a distance, "euclidean" or "manhattan".
    Returns (row, similarity) pairs, the most similar first. Equal ones keep the order of the rows.
    """
    if similarity not in SIMILARITIES:
        raise ValueError(f"similarity must be {' or '.join(SIMILARITIES)}, got {similarity!r:.60}")
    if similarity == "cosine":
        lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
        values = vectors @ query / np.where(lengths == 0, 1, lengths)
    elif similarity == "dot":
        values = vectors @ query
    else:
        order = 2 if similarity == "euclidean" else 1
        values = 0.0 - np.linalg.norm(vectors - query, ord=order, axis=1)
    best = np.argsort(-values, kind="stable")[:top]
    return [(int(i), float(values[i])) for i in best]
