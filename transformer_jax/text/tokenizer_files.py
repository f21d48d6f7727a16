"""Reading and writing the files of published tokenizers.

tokenizer.json           any kind, with its rules and its frame; used unchanged
vocab.txt                WordPiece, one token per line
vocab.json, merges.txt   byte-level BPE; GPT-2 first called them encoder.json and vocab.bpe
tokenizer_config.json    special tokens and settings
special_tokens_map.json  special tokens; overrides those of tokenizer_config.json
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken

from transformer_jax.runtime.errors import TokenizerError, one_line
from transformer_jax.runtime.texts import EncodingError, read_text
from transformer_jax.text.encoding import told
from transformer_jax.text.tokenizer_rules import byte_pairs, word_pieces

# In the order in which Transformers assigns ids to special tokens that a vocabulary lacks.
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
USUAL_NAMES = {
    "bos": ("<s>", "<|endoftext|>"),
    "eos": ("</s>", "<|endoftext|>"),
    "unk": ("[UNK]", "<unk>"),
    "sep": ("[SEP]", "</s>"),
    "pad": ("[PAD]", "<pad>"),
    "cls": ("[CLS]", "<s>"),
    "mask": ("[MASK]", "<mask>"),
}
MORE_TOKENS = ("additional_special_tokens", "extra_special_tokens")
BYTE_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
SENTENCEPIECE = ("sentencepiece.bpe.model", "tokenizer.model", "spiece.model")
# Settings that say where a tokenizer came from, which are not true of a copy.
ORIGIN = ("name_or_path", "auto_map", "tokenizer_file", "vocab_file", "special_tokens_map_file")


class TokenizerFiles(NamedTuple):
    """The content of a tokenizer's folder: the tokenizer, its special tokens by role, its settings,
    and the file that it was read from.
    """

    core: tokenizers.Tokenizer
    special: dict[str, str]
    settings: dict[str, Any]
    source: Path


def read_tokenizer_files(folder: Path, model_type: str | None) -> TokenizerFiles:
    """Read the tokenizer files of a folder.

    Raises TokenizerError, with a message of one line, if it holds no tokenizer that can be read.
    """
    settings = _settings(folder)
    core, source = _core(folder, settings, model_type)
    special = _special_tokens(core, settings)
    with told(f"{source} does not take its special tokens"):
        known = {token.content for token in core.get_added_tokens_decoder().values()}
        # So far these are ordinary tokens of the vocabulary. As special tokens, they are also
        # recognized when they are spelled out in a text.
        named = [*special.values(), *_more_tokens(settings)]
        core.add_special_tokens([token for token in dict.fromkeys(named) if token not in known])
    return TokenizerFiles(core, special, settings, source)


def written_files(files: TokenizerFiles) -> dict[str, str]:
    """Return the content of each file to write, by name.

    These are tokenizer.json, tokenizer_config.json and the vocabulary files of the kinds that have
    them.
    """
    text = files.core.to_str(pretty=True)
    content = json.loads(text)
    model = content["model"]
    settings = _written_settings(files, content["normalizer"])
    written = {"tokenizer.json": text, "tokenizer_config.json": _json_text(settings)}
    if model["type"] == "WordPiece":
        written["vocab.txt"] = "".join(f"{token}\n" for token in _by_id(model["vocab"]))
    if model["type"] == "BPE" and '"ByteLevel"' in json.dumps(content["pre_tokenizer"]):
        merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
        written["vocab.json"] = _json_text(model["vocab"])
        written["merges.txt"] = f"#version: 0.2\n{merges}"
    return written


def _core(
    folder: Path, settings: dict[str, Any], model_type: str | None
) -> tuple[tokenizers.Tokenizer, Path]:
    path = folder / "tokenizer.json"
    if path.exists():
        text = _text(path)
        with told(f"{path} is not a tokenizer"):
            return tokenizers.Tokenizer.from_str(text), path

    path = folder / "vocab.txt"
    if path.exists():
        lines, model_type = _lines(path), model_type or _model_type(folder)
        with told(f"{path} cannot be used"):
            core = word_pieces(lines, settings, model_type)
        _add_tokens(core, folder, settings)
        return core, path

    for name, beside in BYTE_PAIRS:
        path = folder / name
        if path.exists():
            vocabulary, lines = _json(path), _lines(folder / beside)
            model_type = model_type or _model_type(folder)
            with told(f"{path} cannot be used with {beside}"):
                core = byte_pairs(vocabulary, lines, settings, model_type)
            _add_tokens(core, folder, settings)
            return core, path

    for name in SENTENCEPIECE:
        if (folder / name).exists():
            raise TokenizerError(
                f"{folder / name} cannot be read; tokenizer.json is needed in its folder"
            )
    raise TokenizerError(
        f"{folder} holds no tokenizer: no tokenizer.json, vocab.txt, or vocab.json with merges.txt"
    )


def _add_tokens(core: tokenizers.Tokenizer, folder: Path, settings: dict[str, Any]) -> None:
    """Add the tokens that were added to a vocabulary later and are stored in another file."""
    path = folder / "added_tokens.json"
    tokens = {}
    if "added_tokens_decoder" in settings:
        path = folder / "tokenizer_config.json"
        with told(f"{path} has an added_tokens_decoder that cannot be used"):
            for token_id, fields in settings["added_tokens_decoder"].items():
                tokens[int(token_id)] = AddedToken(**fields)
    elif path.exists():
        special = {settings.get(f"{role}_token") for role in ROLES} | set(_more_tokens(settings))
        for token, token_id in _json(path).items():
            tokens[token_id] = AddedToken(
                token, special=token in special, normalized=token not in special
            )
    with told(f"{path} does not belong to the vocabulary"):
        for token_id, token in sorted(tokens.items()):
            core.add_tokens([token])
            if core.token_to_id(token.content) != token_id:
                raise ValueError(f"{token.content} cannot have the id {token_id}")


def _special_tokens(core: tokenizers.Tokenizer, settings: dict[str, Any]) -> dict[str, str]:
    """Find each role's special token: from the settings, else by a usual name."""
    special = {}
    for role in ROLES:
        names = [name for name in USUAL_NAMES[role] if core.token_to_id(name) is not None]
        if role in ("cls", "sep") and core.token_to_id("<mask>") is None:
            # A vocabulary without <mask> may be LLaMA's, which has <s> and </s> but does not use
            # them as [CLS] and [SEP], as masked language models do.
            names = [name for name in names if name.startswith("[")]
        name = settings.get(f"{role}_token", names[0] if names else None)
        if name is not None:
            special[role] = name
    return special


def _more_tokens(settings: dict[str, Any]) -> list[str]:
    found = [token for name in MORE_TOKENS for token in settings.get(name) or []]
    return [token for token in found if isinstance(token, str)]


def _settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json and special_tokens_map.json, each special token as its text."""
    path, beside = folder / "tokenizer_config.json", folder / "special_tokens_map.json"
    settings = _plain_tokens(_json(path), path) if path.exists() else {}
    # As in Transformers: a tokenizer_config.json with added_tokens_decoder replaces the other file.
    if beside.exists() and "added_tokens_decoder" not in settings:
        tokens = _plain_tokens(_json(beside), beside)
        names = [f"{role}_token" for role in ROLES] + list(MORE_TOKENS)
        settings.update((name, tokens[name]) for name in names if name in tokens)
    return settings


def _plain_tokens(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Replace each special token in the settings that is an object with flags by its text."""

    def plain(value: Any) -> str | None:
        if isinstance(value, dict):
            value = value.get("content", value)
        if value is not None and not isinstance(value, str):
            raise TokenizerError(f"{path}: a special token must be a text, got {value!r:.60}")
        return value

    changed = {}
    for role in ROLES:
        if f"{role}_token" in settings:
            changed[f"{role}_token"] = plain(settings[f"{role}_token"])
    for name in MORE_TOKENS:
        if isinstance(settings.get(name), list):
            changed[name] = [plain(value) for value in settings[name]]
    return settings | changed


def _written_settings(files: TokenizerFiles, rules: dict[str, Any] | None) -> dict[str, Any]:
    settings = {name: value for name, value in files.settings.items() if name not in ORIGIN}
    if rules and rules["type"] == "BertNormalizer":
        # Transformers takes these from tokenizer_config.json, not from tokenizer.json.
        settings["do_lower_case"] = rules["lowercase"]
        settings["strip_accents"] = rules["strip_accents"]
        settings["tokenize_chinese_chars"] = rules["handle_chinese_chars"]
    settings.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    flags = {token.content: token for token in files.core.get_added_tokens_decoder().values()}
    for role in ROLES:
        settings.pop(f"{role}_token", None)
    for role, name in files.special.items():
        settings[f"{role}_token"] = _described(flags[name])
    return settings


def _described(token: AddedToken) -> str | dict[str, Any]:
    """Describe a token by its text, or by an object if it has flags."""
    switches = ("lstrip", "rstrip", "single_word", "normalized")
    fields = {name: getattr(token, name) for name in switches}
    if not any(fields.values()):
        return token.content
    return {"__type": "AddedToken", "content": token.content, "special": token.special} | fields


def _by_id(vocabulary: dict[str, int]) -> list[str]:
    """List the tokens in the order of their ids."""
    # An unused id gets the line of the next token, because of equal lines the last one counts.
    tokens = {token_id: token for token, token_id in vocabulary.items()}
    places: list[str] = []
    for token_id in range(max(tokens), -1, -1):
        places.append(tokens.get(token_id, places[-1] if places else ""))
    return places[::-1]


def _model_type(folder: Path) -> str | None:
    path = folder / "config.json"
    return _json(path).get("model_type") if path.exists() else None


def _json_text(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _lines(path: Path) -> list[str]:
    # Not `splitlines`, because a token may contain other line separators.
    return _text(path).removesuffix("\n").split("\n")


def _json(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def _text(path: Path) -> str:
    try:
        return read_text(path)
    except (OSError, EncodingError) as error:
        raise TokenizerError(f"{path} cannot be read: {one_line(error)}") from None
