"""The settings and special tokens in the files beside a vocabulary.

tokenizer_config.json    special tokens and settings
special_tokens_map.json  special tokens, of folders without an added_tokens_decoder
added_tokens.json        tokens that were added later, of the same folders

They are obeyed as Transformers 5 obeys them. A special token is a text, or an object with a content
and the flags lstrip, rstrip, normalized and single_word. Settings that change no id, such as
chat_template, and those that Transformers ignores, such as never_split, are not read.
"""

import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import tokenizers
from tokenizers import AddedToken

from transformer_jax.runtime.errors import TokenizerError, one_line
from transformer_jax.runtime.texts import EncodingError, read_text
from transformer_jax.text.encoding import told
from transformer_jax.text.tokenizer_rules import CLASSES, flag

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
CONFIG, MAP, ADDED = "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"
MORE, OLD_MORE = "extra_special_tokens", "additional_special_tokens"
DECODER = "added_tokens_decoder"
TYPED = {"__type": "AddedToken"}  # marks an object of tokenizer_config.json as a token
FLAGS = ("lstrip", "rstrip", "single_word", "normalized", "special")
UNBOUNDED = 10**6  # tokens; Transformers writes 10^30 for no limit
Side = Literal["right", "left"]


class Defaults(NamedTuple):
    """The settings of a tokenizer that a call may override."""

    truncation_side: Side = "right"  # the side of a long text that is cut
    padding_side: Side = "right"
    max_length: int | None = None
    cleans_up: bool = False  # whether decoding removes the space before punctuation


def read_settings(folder: Path) -> dict[str, Any]:
    """Read tokenizer_config.json, with the special tokens of special_tokens_map.json.

    Raises TokenizerError if a file cannot be read or a special token is of another form.
    """
    path, beside = folder / CONFIG, folder / MAP
    settings = read_json(path) if path.exists() else {}
    if not settings.get(MORE) and OLD_MORE in settings:
        settings[MORE] = settings.pop(OLD_MORE)
    _check_tokens(settings, path)
    # As in Transformers: a tokenizer_config.json with added_tokens_decoder replaces the other file.
    if beside.exists() and DECODER not in settings:
        found = read_json(beside)
        _check_tokens(found, beside)
        if isinstance(found.get(MORE), list) and isinstance(settings.get(MORE), list):
            found[MORE] = settings[MORE] + [t for t in found[MORE] if t not in settings[MORE]]
        named = {name: value for name, value in found.items() if name.endswith("_token")}
        settings |= {n: v | TYPED if isinstance(v, dict) else v for n, v in named.items()}
        settings |= {name: found[name] for name in (MORE, OLD_MORE) if name in found}
    return settings


def _check_tokens(settings: dict[str, Any], path: Path) -> None:
    values = [settings.get(f"{role}_token") for role in ROLES]
    for name in (MORE, OLD_MORE):
        more = settings.get(name) or []
        if not isinstance(more, list | dict):
            raise TokenizerError(f"{path}: {name} must be a list or an object, got {more!r:.60}")
        values += more.values() if isinstance(more, dict) else more
    with told(f"{path} has a special token that cannot be used"):
        for value in values:
            if value is not None:
                added_token(value)


def added_token(value: Any) -> AddedToken:
    """Return a special token of the settings. Raises ValueError if it has another form."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    content = value.get("content") if isinstance(value, dict) else None
    flags = {name: value[name] for name in FLAGS if name in value} if content else {}
    if not isinstance(content, str) or not all(isinstance(f, bool) for f in flags.values()):
        raise ValueError(f"it must be a text, or an object with a content; got {value!r:.60}")
    return AddedToken(content, **({"special": True} | flags))


def special_tokens(
    settings: dict[str, Any], name: str | None, core: tokenizers.Tokenizer | None = None
) -> dict[str, str]:
    """Return the text of each role's special token: of the settings, else of the class `name`.

    Without a class, it is a usual name that is in the vocabulary of `core`.
    """
    usual = CLASSES[name].special if name else _usual(core) if core else {}
    special = {}
    for role in ROLES:
        value = settings.get(f"{role}_token", usual.get(role))
        if value is not None:
            special[role] = added_token(value).content
    return special


def _usual(core: tokenizers.Tokenizer) -> dict[str, str]:
    found = {}
    for role in ROLES:
        names = [name for name in USUAL_NAMES[role] if core.token_to_id(name) is not None]
        if role in ("cls", "sep") and core.token_to_id("<mask>") is None:
            # A vocabulary without <mask> may be Llama's, which has <s> and </s> but does not use
            # them as [CLS] and [SEP], as masked language models do.
            names = [name for name in names if name.startswith("[")]
        if names:
            found[role] = names[0]
    return found


def add_tokens(
    core: tokenizers.Tokenizer,
    source: Path,
    settings: dict[str, Any],
    name: str | None,
    stored: list[dict[str, Any]],
) -> None:
    """Add the tokens that the files list and the vocabulary lacks, and their flags.

    `source` is the file of the vocabulary, `name` the class, and `stored` the added tokens of
    tokenizer.json. Raises TokenizerError if a token would get another id than in the file, or the
    vocabulary lacks a token of the frame.
    """
    path, added = _added_tokens(source.parent, settings, stored)
    kind = CLASSES.get(name or "")
    usual = kind.special if kind else {}
    roles = {f"{role}_token": usual.get(role) for role in ROLES}
    roles |= {name: value for name, value in settings.items() if _is_named(name, value)}
    more, older = settings.get(MORE), settings.get(OLD_MORE)
    if isinstance(more, dict):  # as in Transformers: named tokens, beside an older list
        roles, more = roles | more, older
    more = (older if MORE not in settings else more) or []
    named = [value for value in roles.values() if value is not None]
    names = {added_token(value).content for value in named}

    # Flags may differ from those of the same token in tokenizer.json.
    known = {repr(token) for token in core.get_added_tokens_decoder().values()}
    tokens = {t.content: t for _, t in sorted(added.items()) if repr(t) not in known}
    found = {token.content for token in core.get_added_tokens_decoder().values()} | set(tokens)
    for role in kind.framing if kind else ():
        known = usual[role] in found or core.token_to_id(usual[role]) is not None
        if f"{role}_token" not in settings and not known:
            raise TokenizerError(f"{source} cannot be used: {usual[role]} is not in the vocabulary")
    for token in map(added_token, [*named, *more]):
        if token.content not in found:
            tokens[token.content] = token  # the last of one content counts
    for token in tokens.values():
        token.special = token.special or token.content in names
    with told(f"{path} does not belong to the vocabulary"):
        core.add_tokens(list(tokens.values()))
        for token_id, token in sorted(added.items()):
            if token.content in tokens and core.token_to_id(token.content) != token_id:
                raise ValueError(f"{token.content} cannot have the id {token_id}")
    if kind and kind.readds_special:
        every = dict.fromkeys([*names, *(added_token(value).content for value in more)])
        core.add_tokens([AddedToken(text, special=True) for text in every])


def _is_named(name: str, value: Any) -> bool:
    """Return whether a setting names a special token, such as "image_token"."""
    if name in {f"{role}_token" for role in ROLES}:
        return True
    # As in Transformers: other objects are no tokens.
    is_token = isinstance(value, str) or (
        isinstance(value, dict) and TYPED.items() <= value.items()
    )
    return name.endswith("_token") and is_token


def _added_tokens(
    folder: Path, settings: dict[str, Any], stored: list[dict[str, Any]]
) -> tuple[Path, dict[int, AddedToken]]:
    """Return the tokens by id that were added to a vocabulary, and the file that lists them."""
    path, added = folder / CONFIG, {}
    if DECODER in settings:
        with told(f"{path} has an added_tokens_decoder that cannot be used"):
            for token_id, fields in settings[DECODER].items():
                added[int(token_id)] = AddedToken(**_fields(fields))
        return path, added
    path = folder / ADDED
    if path.exists():
        special = {added_token(settings[f"{role}_token"]).content
                   for role in ROLES if settings.get(f"{role}_token")}  # fmt: skip
        more = settings.get(MORE) or []
        special |= {added_token(value).content for value in more if not isinstance(more, dict)}
        with told(f"{path} cannot be used"):
            for token, token_id in read_json(path).items():
                is_special = token in special
                added[int(token_id)] = AddedToken(
                    token, special=is_special, normalized=not is_special
                )
    else:
        path = folder / "tokenizer.json"
    with told(f"{folder / 'tokenizer.json'} has added tokens that cannot be used"):
        added |= {int(token["id"]): AddedToken(**_fields(token)) for token in stored}
    return path, added


def _fields(token: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(token, dict) or not isinstance(token.get("content"), str):
        raise TypeError("a token must be an object with a content")
    return {name: token[name] for name in ("content", *FLAGS) if name in token}


def defaults(settings: dict[str, Any], content: dict[str, Any], path: Path) -> Defaults:
    """Return the defaults in the settings, else in the content of tokenizer.json.

    `path` names the settings in messages. Raises TokenizerError for a setting of another form.
    """

    def side(name: str, part: str) -> Side:
        value = settings.get(name, str(part_of(content, part).get("direction", "right")).lower())
        if value not in ("right", "left"):
            raise TokenizerError(f"{path}: {name} must be 'right' or 'left', got {value!r:.60}")
        return value

    length = settings.get("model_max_length", settings.get("max_len"))
    if length is not None and (isinstance(length, bool) or not isinstance(length, int | float)):
        raise TokenizerError(f"{path}: model_max_length must be a number, got {length!r:.60}")
    if length is not None and length < 1:
        raise TokenizerError(f"{path}: model_max_length must be 1 or more, got {length!r:.60}")
    with told(f"{path} cannot be used"):
        cleans_up = flag(settings, "clean_up_tokenization_spaces")
        if part_of(content, "model").get("type") == "BPE":  # it would remove spaces of the text
            cleans_up = cleans_up and flag(
                settings, "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
            )
    return Defaults(
        side("truncation_side", "truncation"),
        side("padding_side", "padding"),
        None if length is None or length > UNBOUNDED else int(length),
        bool(cleans_up),
    )


def part_of(content: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in the content of tokenizer.json; an empty one if there is none."""
    part = content.get(name)
    return part if isinstance(part, dict) else {}


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises TokenizerError if the file does not hold one."""
    text = read_tokenizer_text(path)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is not JSON: {one_line(error)}") from None
    if not isinstance(content, dict):
        raise TokenizerError(f"{path} must hold an object, got {type(content).__name__}")
    return content


def read_tokenizer_text(path: Path) -> str:
    """Read a text file. Raises TokenizerError if that fails."""
    try:
        return read_text(path)
    except (OSError, EncodingError) as error:
        raise TokenizerError(f"{path} cannot be read: {one_line(error)}") from None
