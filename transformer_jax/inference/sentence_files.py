"""The files of sentence-transformers, which say how token vectors become the vector of a text.

modules.json                        the modules in order; pooling, normalisation
1_Pooling/config.json               the pooling
sentence_bert_config.json           the maximum length; whether texts are lower-cased
config_sentence_transformers.json   the prompt, the number of values kept, the similarity
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformer_jax.pretrained.files import PretrainedError, Settings
from transformer_jax.runtime.texts import EncodingError, read_text

MODULES, TOKENIZER = "modules.json", "tokenizer_config.json"
MODEL = "config_sentence_transformers.json"
# Older folders name the family of the model; the first of these files is read.
LENGTHS = tuple(
    f"sentence_{family}_config.json"
    for family in ("bert", "roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
)
# In tokens: the special tokens and one more; Transformers writes 10^30 for no limit.
SHORTEST, UNBOUNDED = 3, 10**6
POOLING_MODES = {"cls": "cls", "mean": "mean", "max": "max", "lasttoken": "last"}
OLD_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_lasttoken": "last",
    "pooling_mode_mean_sqrt_len_tokens": None,  # recognized, but not implemented
    "pooling_mode_weightedmean_tokens": None,
}
SIMILARITIES = ("cosine", "dot", "euclidean", "manhattan")
# Arguments of Transformers that change ids or the model, under their new and old names. Those of
# the model itself concern its speed and memory.
PASSED_ON = ("processor_kwargs", "tokenizer_args", "config_kwargs", "config_args")
HARMLESS = ("use_fast", "trust_remote_code")


@dataclass(frozen=True)
class Pooling:
    """The settings that turn a text into one vector."""

    name: str = "mean"
    normalised: bool = False  # to length 1, so that a dot product is a cosine
    max_length: int | None = None  # in tokens; None: max_length of the model
    lowercase: bool = False  # whether texts are lower-cased before the rules of the tokenizer
    prompt: str = ""  # put before every text
    truncate_dim: int | None = None  # number of values kept, after normalisation
    similarity: str = "cosine"  # one of SIMILARITIES


def read_pooling(folder: Path) -> Pooling:
    """Read the pooling of a model from the files of sentence-transformers.

    Without modules.json it is the mean. Raises PretrainedError if a module or setting is not
    implemented.
    """
    if not (folder / MODULES).is_file():
        return Pooling(max_length=_tokenizer_length(folder))
    found, modules = Pooling(), _modules(folder / MODULES)
    kinds = [kind for kind, _ in modules]
    if kinds[:1] != ["Transformer"] or kinds.count("Transformer") + kinds.count("Pooling") != 2:
        raise PretrainedError(
            f"{folder / MODULES}: the modules must be a Transformer and then a Pooling, "
            f"got {', '.join(kinds)[:60] or 'none'}"
        )
    prompt = _prompt(folder / MODEL)
    pooled = False
    for kind, path in modules:
        if kind == "Transformer" and path not in ("", ".", "./"):
            raise PretrainedError(
                f"{folder / MODULES}: the path {path!r:.60} of the Transformer is not supported; "
                "put the files of the model beside modules.json, and an empty path"
            )
        if kind == "Pooling":
            settings = Settings(folder / path / "config.json")
            if prompt:
                settings.must_be("include_prompt", True)
            found, pooled = replace(found, name=_pooling_name(settings)), True
        elif kind == "Normalize":
            if pooled and (folder / path / "config.json").is_file():
                for setting in ("module_input_name", "module_output_name"):
                    Settings(folder / path / "config.json").must_be(setting, "sentence_embedding")
            # Before the pooling there is no vector of the text to normalise.
            found = replace(found, normalised=found.normalised or pooled)
        elif kind not in ("Transformer", "Dropout"):  # dropout acts in training alone
            raise PretrainedError(
                f"{folder / MODULES}: a module {kind!r:.60} is not supported; "
                "Transformer, Pooling, Normalize and Dropout are"
            )
    found = replace(found, prompt=prompt, **_model_settings(folder / MODEL))
    return replace(found, **_transformer_settings(folder))


def _prompt(path: Path) -> str:
    """Read the prompt that is put before every text."""
    settings = Settings(path) if path.is_file() else Settings.of(path, {})
    prompts, name = settings.part("prompts"), settings.text("default_prompt_name", "")
    if not name:
        return ""
    # sentence-transformers adds empty prompts of these two names.
    known = {"query": "", "document": ""} | (prompts.values if prompts else {})
    if name not in known:
        raise settings.error(
            f"default_prompt_name={name!r:.60} is not among the prompts {', '.join(known)[:60]}"
        )
    return Settings.of(path, known).text(name, "")


def _model_settings(path: Path) -> dict[str, Any]:
    settings = Settings(path) if path.is_file() else Settings.of(path, {})
    settings.must_be("model_type", "SentenceTransformer")
    found: dict[str, Any] = {}
    if settings.values.get("truncate_dim") is not None:
        found["truncate_dim"] = settings.whole("truncate_dim", least=1)
    if settings.values.get("similarity_fn_name") in SIMILARITIES:  # others mean the cosine
        found["similarity"] = settings.values["similarity_fn_name"]
    return found


def _transformer_settings(folder: Path) -> dict[str, Any]:
    """Read the maximum length, else that of tokenizer_config.json, and the lower-casing."""
    found: dict[str, Any] = {}
    name = next((name for name in LENGTHS if (folder / name).is_file()), None)
    if name is not None:
        settings = Settings(folder / name)
        settings.must_be("transformer_task", "feature-extraction")
        settings.must_be("module_output_name", "token_embeddings")
        _check_passed_on(settings)
        if settings.flag("do_lower_case", False):
            found["lowercase"] = True
        found["max_length"] = _length(settings, "max_seq_length")
    if found.get("max_length") is None:
        found["max_length"] = _tokenizer_length(folder)
    return found


def _check_passed_on(settings: Settings) -> None:
    """Raise PretrainedError for what changes the ids or the vectors in a place of its own."""
    for name in PASSED_ON:
        part = settings.part(name)
        for key in part.values if part else ():
            if key not in HARMLESS:
                raise settings.error(
                    f"{key!r:.60} in {name} is not supported; "
                    "set it in the files of the model and its tokenizer"
                )
    if settings.values.get("processing_kwargs") or settings.values.get("tokenizer_name_or_path"):
        raise settings.error("processing_kwargs and tokenizer_name_or_path are not supported")
    modalities = settings.part("modality_config")
    text = modalities.part("text") if modalities else None
    if text:
        text.must_be("method", "forward")
        text.must_be("method_output_name", "last_hidden_state")


def _tokenizer_length(folder: Path) -> int | None:
    if not (folder / TOKENIZER).is_file():
        return None
    return _length(Settings(folder / TOKENIZER), "model_max_length")


def _length(settings: Settings, name: str) -> int | None:
    length = settings.values.get(name)
    if length is None or (type(length) in (int, float) and length > UNBOUNDED):
        return None
    if type(length) is not int or length < SHORTEST:
        raise settings.error(f"{name} must be {SHORTEST} or more, got {length!r:.60}")
    return length


def _modules(path: Path) -> list[tuple[str, str]]:
    """Read the kind and the path of each module."""
    try:
        modules = json.loads(read_text(path))
        found = [(str(m["type"]), str(m.get("path", ""))) for m in modules]
    except EncodingError as error:
        raise PretrainedError(f"{path} cannot be read: {error}") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise PretrainedError(f"{path} is not a list of modules with types and paths") from None
    for kind, _ in found:
        if not kind.startswith("sentence_transformers."):
            raise PretrainedError(f"{path}: a module of the type {kind!r:.60} is not supported")
    return [(kind.rsplit(".", 1)[-1], place) for kind, place in found]


def _pooling_name(settings: Settings) -> str:
    if "pooling_mode" in settings.values:
        mode = settings.values["pooling_mode"]
        if isinstance(mode, list) and len(mode) == 1:
            settings = Settings.of(settings.path, {"pooling_mode": mode[0]})
        return settings.choice("pooling_mode", POOLING_MODES)
    names = [name for name in OLD_MODES if settings.flag(name, False)]
    names = names or ["pooling_mode_mean_tokens"]
    if len(names) != 1 or OLD_MODES[names[0]] is None:
        raise settings.error(
            f"pooling by {', '.join(names)} is not supported; by one of "
            f"{', '.join(name for name, ours in OLD_MODES.items() if ours)} it is"
        )
    return OLD_MODES[names[0]]
