"""Reading and writing the files of published tokenizers.

tokenizer.json           any kind, with its rules and its frame
vocab.txt                WordPiece, one token per line
vocab.json, merges.txt   byte-level BPE; GPT-2 first called them encoder.json and vocab.bpe
config.json              the type of the model, whose tokenizer class builds its own rules

`tokenizer_settings` reads the files beside these, `tokenizer_rules` has the classes.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken

from transformer_jax.runtime.errors import TokenizerError
from transformer_jax.text.encoding import told
from transformer_jax.text.tokenizer_rules import (
    CLASS_OF_MODEL,
    CLASSES,
    MISNAMED,
    class_name,
    flag,
    kind_of,
    rebuilt,
    set_frame,
)
from transformer_jax.text.tokenizer_settings import (
    CONFIG,
    FLAGS,
    Defaults,
    add_tokens,
    defaults,
    part_of,
    read_json,
    read_settings,
    read_tokenizer_text,
    special_tokens,
)

BYTE_PAIRS = (("vocab.json", "merges.txt"), ("encoder.json", "vocab.bpe"))
SENTENCEPIECE = ("sentencepiece.bpe.model", "tokenizer.model", "spiece.model")
# Classes with a padding token of their own, or none; others take that of tokenizer.json.
PAD_ALONE = (*(name for name, kind in CLASSES.items() if "pad" in kind.special), "GPT2Tokenizer")
# The settings of a class that is not known here, and the rules of tokenizer.json that they change.
RULES = {
    "do_lower_case": "lowercase",
    "tokenize_chinese_chars": "handle_chinese_chars",
    "strip_accents": "strip_accents",
    "add_prefix_space": "add_prefix_space",
}
LOWERING = ("MPNet", "Funnel", "LayoutLMv2")  # classes that lower-case by default
# Settings that say where a tokenizer came from, which are not true of a copy.
ORIGIN = ("name_or_path", "auto_map", "tokenizer_file", "vocab_file", "special_tokens_map_file")


class TokenizerFiles(NamedTuple):
    """The content of a tokenizer's folder: the tokenizer, its special tokens by role, its settings,
    the file that it was read from, and its defaults.
    """

    core: tokenizers.Tokenizer
    special: dict[str, str]
    settings: dict[str, Any]
    source: Path
    defaults: Defaults = Defaults()


def read_tokenizer_files(folder: Path, model_type: str | None) -> TokenizerFiles:
    """Read the tokenizer files of a folder.

    Raises TokenizerError, with a message of one line, if it holds no tokenizer that can be read.
    """
    settings = read_settings(folder)
    source, content = _vocabulary(folder)
    name = _class(folder, source, content, settings, model_type)
    settings = _obeyed(settings, source, name)
    set_by_file = defaults(settings, content, folder / CONFIG)
    padding = part_of(content, "padding")
    if padding.get("pad_token") and name not in PAD_ALONE:
        settings.setdefault("pad_token", padding["pad_token"])
    stored = content.get("added_tokens") or []
    problem = f"{source} cannot be used"
    if beside := dict(BYTE_PAIRS).get(source.name):
        problem += f" with {beside}"
    with told(problem):
        if name is not None:
            content = rebuilt(name, content, settings, special_tokens(settings, name))
        core = tokenizers.Tokenizer.from_str(json.dumps(content))
    add_tokens(core, source, settings, name, stored)
    special = special_tokens(settings, name, core)
    with told(problem):
        set_frame(core, name, settings, special)
        core.encode_special_tokens = flag(settings, "split_special_tokens")
    return TokenizerFiles(core, special, settings, source, set_by_file)


def _vocabulary(folder: Path) -> tuple[Path, dict[str, Any]]:
    """Return the file with the vocabulary, and what tokenizer.json would contain."""
    path = folder / "tokenizer.json"
    if path.exists():
        return path, read_json(path)

    path = folder / "vocab.txt"
    if path.exists():
        # The last of equal lines counts.
        vocabulary = {token: i for i, token in enumerate(_lines(path))}
        return path, {"model": {"type": "WordPiece", "vocab": vocabulary}}

    for name, beside in BYTE_PAIRS:
        path = folder / name
        if path.exists():
            vocabulary, lines = read_json(path), _lines(folder / beside)
            # The first line may be the format's version. Other lines with "#" are merges.
            lines = lines[1:] if lines and lines[0].startswith("#version") else lines
            merges = [line.split(" ") for line in lines if line]
            return path, {"model": {"type": "BPE", "vocab": vocabulary, "merges": merges}}

    for name in SENTENCEPIECE:
        if (folder / name).exists():
            raise TokenizerError(
                f"{folder / name} cannot be read; tokenizer.json is needed in its folder"
            )
    raise TokenizerError(
        f"{folder} holds no tokenizer: no tokenizer.json, vocab.txt, or vocab.json with merges.txt"
    )


def _class(
    folder: Path,
    source: Path,
    content: dict[str, Any],
    settings: dict[str, Any],
    model_type: str | None,
) -> str | None:
    """Return the class that builds the rules; None if tokenizer.json is used unchanged."""
    path = folder / "config.json"
    config = read_json(path) if path.exists() else {}
    model_type = model_type or config.get("model_type")
    declared = settings.get("tokenizer_class") or config.get("tokenizer_class")
    if declared is not None and not isinstance(declared, str):
        raise TokenizerError(f"{folder}: tokenizer_class must be a text, got {declared!r:.60}")
    parts = json.dumps([content.get("pre_tokenizer"), content.get("decoder")])
    name = class_name(declared, model_type, '"ByteLevel"' in parts)
    model = content.get("model")
    if source.name == "tokenizer.json":
        if not isinstance(model, dict) or "vocab" not in model:
            return None  # the library says what is wrong with it
        if name and declared is None and kind_of(model) != CLASSES[name].model:
            return None
        if model_type not in MISNAMED and declared and not class_name(declared, None, False):
            _check_unknown_class(folder, declared, content, settings)
        return name
    if name is None and model_type is None:
        name = "BertTokenizer"
        if kind_of(content["model"]) == "BPE":
            is_roberta = {"<s>", "</s>"} <= set(content["model"]["vocab"])
            name = "RobertaTokenizer" if is_roberta else "GPT2Tokenizer"
    if name is None:
        raise TokenizerError(
            f"{source} cannot be used: it does not contain the special tokens around a text of "
            f"{(declared if model_type in CLASS_OF_MODEL else model_type)!r:.60}; "
            "tokenizer.json is needed in its folder"
        )
    return name


def _check_unknown_class(
    folder: Path, declared: str, content: dict[str, Any], settings: dict[str, Any]
) -> None:
    """Refuse a class with a rule in its settings that tokenizer.json does not have."""
    if declared.startswith("PreTrainedTokenizer") or declared == "TokenizersBackend":
        return  # they use tokenizer.json unchanged in Transformers too
    rules = json.dumps([content.get("normalizer"), content.get("pre_tokenizer")])
    lowers = '"Lowercase"' in rules or '"lowercase": true' in rules
    defaults_of = {"do_lower_case": True} if declared.startswith(LOWERING) else {}
    for name, rule in RULES.items():
        known = {value for value in (True, False) if f'"{rule}": {json.dumps(value)}' in rules}
        if name == "do_lower_case" or f'"{rule}": null' in rules:  # accents: as the case
            known = {lowers}
        wanted = settings.get(name, defaults_of.get(name))
        if known and wanted is not None and wanted not in known:
            raise TokenizerError(
                f"{folder / CONFIG}: {name}={wanted!r:.20} of a {declared:.40} is not supported: "
                f"its tokenizer.json says {' and '.join(map(str, known)).lower()}"
            )


def _obeyed(settings: dict[str, Any], source: Path, name: str | None) -> dict[str, Any]:
    """Return the settings without those that Transformers ignores beside tokenizer.json."""
    settings = dict(settings)
    if source.name == "tokenizer.json":  # it has the frame
        settings.pop("add_bos_token", None)
        settings.pop("add_eos_token", None)
    files = settings.get("fast_tokenizer_files")
    if isinstance(files, list) and any(file != "tokenizer.json" for file in files):
        raise TokenizerError(
            f"{source.parent / CONFIG}: fast_tokenizer_files={files!r:.60} is not supported; "
            "remove it to use tokenizer.json"
        )
    if class_name(settings.get("tokenizer_class"), None, False) != name:
        settings["tokenizer_class"] = name or "PreTrainedTokenizerFast"
    return settings


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


def _written_settings(files: TokenizerFiles, rules: dict[str, Any] | None) -> dict[str, Any]:
    settings = {name: value for name, value in files.settings.items() if name not in ORIGIN}
    if rules and rules["type"] == "BertNormalizer":
        # Transformers takes these from tokenizer_config.json, not from tokenizer.json.
        settings["do_lower_case"] = rules["lowercase"]
        settings["strip_accents"] = rules["strip_accents"]
        settings["tokenize_chinese_chars"] = rules["handle_chinese_chars"]
    settings.setdefault("tokenizer_class", "PreTrainedTokenizerFast")
    for name in ("truncation_side", "padding_side"):  # tokenizer.json may say so alone
        if getattr(files.defaults, name) != "right":
            settings[name] = getattr(files.defaults, name)
    flags = {token.content: token for token in files.core.get_added_tokens_decoder().values()}
    for role, name in files.special.items():
        if name in flags:  # else it is a usual name, which is found again
            settings[f"{role}_token"] = _described(flags[name])
    return settings


def _described(token: AddedToken) -> str | dict[str, Any]:
    """Describe a token by its text, or by an object if it has flags."""
    fields = {name: getattr(token, name) for name in FLAGS}
    if fields == {name: name == "special" for name in FLAGS}:
        return token.content
    return {"__type": "AddedToken", "content": token.content} | fields


def _by_id(vocabulary: dict[str, int]) -> list[str]:
    """List the tokens in the order of their ids."""
    # An unused id gets the line of the next token, because of equal lines the last one counts.
    tokens = {token_id: token for token, token_id in vocabulary.items()}
    places: list[str] = []
    for token_id in range(max(tokens), -1, -1):
        places.append(tokens.get(token_id, places[-1] if places else ""))
    return places[::-1]


def _json_text(content: dict[str, Any]) -> str:
    return json.dumps(content, ensure_ascii=False, indent=2) + "\n"


def _lines(path: Path) -> list[str]:
    # Not `splitlines`, because a token may contain other line separators.
    return read_tokenizer_text(path).removesuffix("\n").split("\n")
