"""Models that write, for the commands: a run folder, or a published GPT-2 or Llama from a folder or
the hub.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from transformer_jax.pretrained.files import CONFIG, Settings
from transformer_jax.pretrained.hub import folder_of
from transformer_jax.pretrained.loading import family_of, from_pretrained
from transformer_jax.runtime.errors import InputError
from transformer_jax.serialization.run_folder import LanguageModelSpec, Trained, load_model
from transformer_jax.text.pretrained_tokenizer import PretrainedTokenizer, load_pretrained_tokenizer

MODEL_HELP = "a run folder, the --out of train.lm; or a folder or name of a GPT-2 or Llama"
LONG = (
    256  # tokens that a published model writes unless asked for more: some hold a hundred thousand
)


def load_writer(source: str) -> Trained:
    """The language model with its tokenizer. Raises RunFolderError or PretrainedError."""
    if _is_place(source) and not _is_published(Path(source)):
        return load_model(source, "LanguageModel")
    folder = folder_of(source)
    settings = Settings(folder / CONFIG)
    if "language" not in family_of(settings).ARCHITECTURES.values():
        raise settings.error(f"a {settings.text('model_type')} does not write; GPT-2 and Llama do")
    model = from_pretrained(folder, kind="language")
    spec = LanguageModelSpec(model.config, folder.name, framed=False)
    return Trained(model, load_pretrained_tokenizer(folder), spec)


def prompt_of(trained: Trained, text: str) -> np.ndarray:
    """The ids of a prompt as the model was taught to read texts."""
    if not text:
        raise InputError("an empty prompt; pass a word at least")
    tokenizer = trained.tokenizer
    if isinstance(
        tokenizer, PretrainedTokenizer
    ):  # its own frame is what begins a text: <s>, or nothing
        return tokenizer([text]).tokens[0]
    (ids,) = tokenizer.pieces([text])
    return np.concatenate([[tokenizer.cls_id], ids]) if trained.spec.framed else ids


def end_of_text(trained: Trained) -> int | None:
    """The token that ends one."""
    tokenizer = trained.tokenizer
    return tokenizer.eos_id if isinstance(tokenizer, PretrainedTokenizer) else tokenizer.sep_id


def continuation(trained: Trained, prompt: np.ndarray, written: Sequence[int]) -> str:
    """The text of what was written behind a prompt."""
    tokenizer = trained.tokenizer
    if not isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.decode(written)
    # A table may have rows to spare, which are no tokens.
    written = [token for token in written if token < tokenizer.vocab_size]
    # Alone, the first word would lose the space before it in Llama's vocabulary.
    return tokenizer.decode([*prompt.tolist(), *written])[len(tokenizer.decode(prompt)) :]


def spelled(trained: Trained, token_id: int) -> str:
    """A token as it stands in a text."""
    tokenizer = trained.tokenizer
    if isinstance(tokenizer, PretrainedTokenizer):
        return tokenizer.decode([token_id]) if token_id < tokenizer.vocab_size else f"<{token_id}>"
    return tokenizer.token(token_id)


def _is_place(source: str) -> bool:
    """Whether it is of this machine; what is not there may be a name on the hub, but for runs/...,
    where runs lie.
    """
    return os.path.exists(source) or source.startswith((".", "/", "~", "runs/"))


def _is_published(folder: Path) -> bool:
    return (folder / CONFIG).is_file() and "model_type" in Settings(folder / CONFIG).values
