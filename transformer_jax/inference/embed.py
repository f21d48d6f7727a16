"""Sentence embeddings: one vector for each text (Reimers and Gurevych, 2019,
https://arxiv.org/abs/1908.10084).

The pooling of token vectors is read from the files that sentence-transformers stores with a model:
modules.json, 1_Pooling/config.json and sentence_bert_config.json. A model without these files uses
mean pooling.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.typing import DTypeLike
from jaxtyping import Float
from tqdm import tqdm

from transformer_jax.functional.pooling import POOLINGS
from transformer_jax.inference.load import load
from transformer_jax.models.text_encoder import TextEncoder
from transformer_jax.parallel.mesh import replicate, split_rows
from transformer_jax.pretrained.files import PretrainedError, Settings
from transformer_jax.text.batching import Batches, bucket_lengths, evaluation_plans, in_order
from transformer_jax.text.tokenizer_protocol import TextTokenizer

MODULES, LENGTHS, TOKENIZER = "modules.json", "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
# In tokens: the special tokens and one more; Transformers writes 10^30 for no limit.
SHORTEST, UNBOUNDED = 3, 10**6
BUCKETS = 6  # number of batch lengths that are compiled
POOLING_MODES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": None,  # recognized, but not implemented
    "pooling_mode_weightedmean_tokens": None,
}


@dataclass(frozen=True)
class Pooling:
    """The settings that turn token vectors into one vector for each text."""

    name: str = "mean"
    normalised: bool = False  # to length 1, so that a dot product is a cosine
    max_length: int | None = None  # in tokens; None: max_length of the model


def read_pooling(folder: Path) -> Pooling:
    """Read the pooling of a model from the files of sentence-transformers.

    Without modules.json it is the mean. Raises PretrainedError if a module is not implemented.
    """
    if not (folder / MODULES).is_file():
        return Pooling()
    if (folder / PROMPTS).is_file():  # a default prompt is put before every text: not implemented
        Settings(folder / PROMPTS).must_be("default_prompt_name", None)
    found = Pooling()
    for module in _modules(folder / MODULES):
        kind = module["type"].rsplit(".", 1)[-1]
        if kind == "Pooling":
            found = replace(
                found, name=_pooling_name(Settings(folder / module["path"] / "config.json"))
            )
        elif kind == "Normalize":
            found = replace(found, normalised=True)
        elif kind != "Transformer":
            raise PretrainedError(
                f"{folder / MODULES}: a module {kind!r:.60} is not supported; "
                "Transformer, Pooling and Normalize are"
            )
    return replace(found, max_length=_max_length(folder))


def _max_length(folder: Path) -> int | None:
    """Read the maximum length from sentence_bert_config.json, else from tokenizer_config.json."""
    for file, name in ((LENGTHS, "max_seq_length"), (TOKENIZER, "model_max_length")):
        if not (folder / file).is_file():
            continue
        settings = Settings(folder / file)
        if file == LENGTHS:
            settings.must_be("do_lower_case", False)
        length = settings.values.get(name)
        if type(length) is int and length > UNBOUNDED:
            length = None
        if length is not None:
            if type(length) is not int or length < SHORTEST:
                raise settings.error(f"{name} must be {SHORTEST} or more, got {length!r:.60}")
            return length
    return None


def _modules(path: Path) -> list[dict[str, str]]:
    try:
        modules = json.loads(path.read_text(encoding="utf-8"))
        return [{"type": str(m["type"]), "path": str(m.get("path", ""))} for m in modules]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise PretrainedError(f"{path} is not a list of modules with types and paths") from None


def _pooling_name(settings: Settings) -> str:
    if "pooling_mode" in settings.values:
        return settings.choice("pooling_mode", POOLING_MODES)
    names = [name for name in OLD_MODES if settings.flag(name, False)]
    if len(names) != 1 or OLD_MODES[names[0]] is None:
        raise settings.error(
            f"pooling by {', '.join(names) or 'nothing'} is not supported; by one of "
            f"{', '.join(name for name, ours in OLD_MODES.items() if ours)} it is"
        )
    return OLD_MODES[names[0]]


class SentenceEncoder:
    """An encoder with its tokenizer and pooling, which maps texts to vectors.

    Texts of similar length share a batch. Each batch shape compiles once.
    """

    def __init__(self, model: TextEncoder, tokenizer: TextTokenizer, pooling: Pooling):
        self.tokenizer, self.pooling = tokenizer, pooling
        self.embed_dim = model.config.encoder.embed_dim
        holds = model.config.max_length
        self.max_length = min(pooling.max_length or holds, holds)
        graph, self.params = nnx.split(model, nnx.Param)

        @jax.jit
        def vectors(params, tokens, is_token):
            x = nnx.merge(graph, params)(tokens, is_token)
            x = POOLINGS[pooling.name](x, is_token).astype(jnp.float32)
            return x / jnp.linalg.norm(x, axis=-1, keepdims=True) if pooling.normalised else x

        self._vectors = vectors

    @classmethod
    def load(
        cls, source: str | Path, *, dtype: DTypeLike = jnp.float32, revision: str | None = None
    ) -> "SentenceEncoder":
        """Load an encoder from a folder or the Hugging Face Hub.

        Raises the errors of `inference.load.load`, and PretrainedError for a pooling that is not
        implemented.
        """
        found = load(source, "encoder", dtype=dtype, revision=revision)
        pooling = Pooling() if found.published is None else read_pooling(found.published)
        return cls(found.model, found.tokenizer, pooling)

    def __call__(
        self, texts: Sequence[str], *, batch_tokens: int = 8192, progress: bool = False
    ) -> Float[np.ndarray, "n D"]:
        """Compute the vectors of texts, in the order of the texts.

        A batch has at most `batch_tokens` tokens, or one text if that is longer, which bounds the
        memory.
        """
        if not len(texts):
            return np.zeros((0, self.embed_dim), np.float32)
        encoded = self.tokenizer.encode(texts, self.max_length)
        lengths = [len(ids) for ids in encoded]
        # A single text is padded to a multiple of 16. Many texts use a few compiled lengths.
        buckets = bucket_lengths(lengths, self.max_length, BUCKETS)
        plans = evaluation_plans(lengths, buckets, max(batch_tokens, buckets[-1]))
        # The longest batches come first, so that a lack of memory shows at once.
        plans = plans[::-1]
        batches = Batches(plans, encoded, None, self.tokenizer.pad_id)
        return in_order(self._computed(batches, len(texts), progress), len(texts))

    def _computed(self, batches: Batches, total: int, progress: bool) -> Iterator:
        params = replicate(self.params)
        with tqdm(
            total=total, desc="embedding", unit="text", leave=False,
            disable=None if progress else True,
        ) as bar:  # fmt: skip
            for batch in batches:
                yield batch, self._vectors(params, *split_rows((batch.tokens, batch.is_token)))
                bar.update(int(batch.is_example.sum()))


def most_similar(
    query: Float[np.ndarray, " D"], vectors: Float[np.ndarray, "n D"], top: int
) -> list[tuple[int, float]]:
    """Find the `top` rows with the highest cosine similarity to the query.

    Returns (row, cosine) pairs, the most similar first. Equal cosines keep the order of the rows.
    """
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(lengths == 0, 1, lengths)
    best = np.argsort(-cosines, kind="stable")[:top]
    return [(int(i), float(cosines[i])) for i in best]
