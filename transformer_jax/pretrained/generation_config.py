"""Reading of generation_config.json, the settings with which a published model generates text.

The file has the fields of Hugging Face Transformers' GenerationConfig. If it is missing, the same
fields of config.json count. A field that changes the text is obeyed, or refused with a
PretrainedError of one line. Fields that only concern speed, memory or the form of the result, and
fields that Transformers does not know, are ignored.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformer_jax.pretrained.files import PretrainedError, Settings
from transformer_jax.serialization.folder_files import CONFIG

GENERATION = "generation_config.json"
# Fields that are not supported, with the value that has no effect. null has none either.
UNSUPPORTED: dict[str, Any] = {
    "min_length": 0,
    "min_new_tokens": 0,
    "max_time": None,
    "stop_strings": None,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "bad_words_ids": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "exponential_decay_length_penalty": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "token_healing": False,
    "guidance_scale": 1.0,
    "watermarking_config": None,
    "num_return_sequences": 1,
    "penalty_alpha": 0.0,
    "dola_layers": None,
    "num_beam_groups": 1,
    "diversity_penalty": 0.0,
    "constraints": None,
    "force_words_ids": None,
}
UNSUPPORTED_IN_SAMPLING = {
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "top_h": None,
}
UNSUPPORTED_IN_SEARCH = {"length_penalty": 1.0, "early_stopping": False}


@dataclass(frozen=True)
class GenerationConfig:
    """The generation settings of a model; None for one that its files do not set."""

    settings: Settings
    stop: tuple[int, ...] | None = None  # (): no token ends a text
    pad_id: int | None = None
    do_sample: bool | None = None
    num_beams: int | None = None
    max_length: int | None = None  # of the prompt and the new tokens
    max_new_tokens: int | None = None  # counts if max_length is also set
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None

    def check(self, unsupported: dict[str, Any]) -> None:
        """Raise PretrainedError if one of these fields has a value with an effect."""
        for name, neutral in unsupported.items():
            value = self.settings.values.get(name)
            if value not in (None, neutral, [], {}, ""):
                raise self.error(
                    f"{name}={value!r:.60} is not supported; set it to "
                    f"{'null' if neutral is None else str(neutral).lower()}, or remove it"
                )

    def error(self, problem: str) -> PretrainedError:
        """Return the error of a problem with the settings, which names their file."""
        return self.settings.error(problem)


def read_generation_config(folder: Path, vocab_size: int) -> GenerationConfig:
    """Read the generation settings of the model in a folder.

    They are those of generation_config.json, else those of config.json. As in Transformers, a
    generation_config.json without eos_token_id means that no token ends a text, whatever
    config.json says.

    Raises PretrainedError for a file that cannot be read, a field of another type, a token id that
    is not below `vocab_size`, and a field that is not supported.
    """
    has_file = os.path.lexists(folder / GENERATION)
    settings = Settings(folder / (GENERATION if has_file else CONFIG))
    values = settings.values
    stop, pad_id = None, None
    if has_file:
        stop = ()
        if values.get("pad_token_id") != -1:  # which the first Llama models have for none
            pad_id = (_tokens(settings, "pad_token_id", vocab_size, single=True) or (None,))[0]
        _tokens(settings, "bos_token_id", vocab_size, single=True)
        if "eos_token_id" in values and values["eos_token_id"] is None:
            raise settings.error(
                "eos_token_id is null; give the ids of the tokens that end a text, or remove it"
            )
    if values.get("eos_token_id") is not None:
        stop = _tokens(settings, "eos_token_id", vocab_size)

    def number(name: str) -> float | None:
        return None if values.get(name) is None else settings.number(name)

    def whole(name: str, least: int) -> int | None:
        return None if values.get(name) is None else settings.whole(name, least=least)

    config = GenerationConfig(
        settings,
        stop,
        pad_id,
        do_sample=None if values.get("do_sample") is None else settings.flag("do_sample"),
        num_beams=whole("num_beams", 1),
        max_length=whole("max_length", 1),
        max_new_tokens=whole("max_new_tokens", 1),
        temperature=number("temperature"),
        top_k=whole("top_k", 0) or None,  # 0 keeps every token, as does None
        top_p=number("top_p"),
        min_p=number("min_p") or None,
        repetition_penalty=number("repetition_penalty"),
    )
    config.check(UNSUPPORTED)
    return config


def _tokens(
    settings: Settings, name: str, vocab_size: int, single: bool = False
) -> tuple[int, ...]:
    """Return the token ids of a field, () if it is not set."""
    value: Any = settings.values.get(name)
    if value is None:
        return ()
    ids: list[Any] = value if isinstance(value, list) and not single else [value]
    if not ids or not all(type(token) is int for token in ids):
        wanted = "a token id" if single else "a token id or a list of token ids"
        raise settings.error(f"{name} must be {wanted}, got {value!r:.60}")
    for token in ids:
        if not 0 <= token < vocab_size:
            raise settings.error(
                f"{name} has the id {token!r:.60}; the vocabulary has the ids 0 to {vocab_size - 1}"
            )
    return tuple(ids)
