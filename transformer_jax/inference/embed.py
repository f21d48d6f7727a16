"""Vectors of whole texts, as sentence encoders give them (Reimers and Gurevych, 2019,
https://arxiv.org/abs/1908.10084).

How the vectors of the tokens become one is read from the files that sentence-transformers keeps
beside a model: modules.json, 1_Pooling/config.json and sentence_bert_config.json. A model without
them is pooled by the mean.
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
from transformer_jax.parallel.mesh import num_devices, replicate, split_rows
from transformer_jax.pretrained.files import PretrainedError, Settings
from transformer_jax.text.batching import Batches, bucket_lengths, evaluation_plans, in_order
from transformer_jax.text.tokenizer_protocol import TextTokenizer, special_id

MODULES, LENGTHS, TOKENIZER = "modules.json", "sentence_bert_config.json", "tokenizer_config.json"
PROMPTS = "config_sentence_transformers.json"
SHORTEST, UNBOUNDED = 3, 10**6  # tokens: a frame and one; Transformers writes 10^30 for no limit
BUCKETS = 6  # shapes that are compiled
POOLING_MODES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": None,  # known, and not implemented
    "pooling_mode_weightedmean_tokens": None,
}


@dataclass(frozen=True)
class Pooling:
    """From the vectors of the tokens to that of the text."""

    name: str = "mean"
    normalised: bool = False  # to length 1, so that a product is a cosine
    max_length: int | None = None  # tokens that are read; None: what the model holds


def read_pooling(folder: Path) -> Pooling:
    """What sentence-transformers' files say. Raises PretrainedError for a module that is not
    implemented.
    """
    if not (folder / MODULES).is_file():
        return Pooling()
    if (folder / PROMPTS).is_file():  # it would stand before every text
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
    """Older files have it beside the model, newer ones with the tokenizer."""
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
    """Encoder of texts into vectors, in batches of texts of similar length.

    Each shape of a batch compiles once.
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
        """Load the encoder of a folder or of a name on the hub. Raises as `load` does."""
        found = load(source, "encoder", dtype=dtype, revision=revision)
        pooling = Pooling() if found.published is None else read_pooling(found.published)
        return cls(found.model, found.tokenizer, pooling)

    def __call__(
        self, texts: Sequence[str], *, batch_tokens: int = 8192, progress: bool = False
    ) -> Float[np.ndarray, "n D"]:
        """The vectors, in the order of the texts; `batch_tokens` bounds the memory of a batch."""
        if not len(texts):
            return np.zeros((0, self.embed_dim), np.float32)
        encoded = self.tokenizer.encode(texts, self.max_length)
        lengths = [len(ids) for ids in encoded]
        # One text alone is padded to 16 at most; of many, a few lengths are compiled.
        buckets = bucket_lengths(lengths, self.max_length, BUCKETS)
        plans = evaluation_plans(lengths, buckets, max(batch_tokens, buckets[-1]))
        # The longest first: what does not fit the memory shows at once.
        plans = plans[::-1]
        batches = Batches(plans, encoded, None, special_id(self.tokenizer, "pad"), num_devices())
        return in_order(self._computed(batches, encoded, progress), len(texts))

    def _computed(self, batches: Batches, encoded: list[np.ndarray], progress: bool) -> Iterator:
        params = replicate(self.params)
        lengths = np.array([len(ids) for ids in encoded])
        with tqdm(
            total=len(encoded), desc="embedding", unit="text", leave=False,
            disable=None if progress else True,
        ) as bar:  # fmt: skip
            for batch in batches:
                used = np.where(batch.is_example, lengths[batch.index], 0)
                # Not by the padding's id: a text may spell it out.
                is_token = np.arange(batch.tokens.shape[1]) < used[:, None]
                found = self._vectors(params, split_rows(batch.tokens), split_rows(is_token))
                yield batch, found
                bar.update(int(batch.is_example.sum()))


def most_similar(
    query: Float[np.ndarray, " D"], vectors: Float[np.ndarray, "n D"], top: int
) -> list[tuple[int, float]]:
    """The `top` rows of highest cosine with the query, best first; of equal ones the first."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(query)
    cosines = vectors @ query / np.where(lengths == 0, 1, lengths)
    best = np.argsort(-cosines, kind="stable")[:top]
    return [(int(i), float(cosines[i])) for i in best]
