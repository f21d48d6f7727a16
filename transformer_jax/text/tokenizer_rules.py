"""The rules of the tokenizer classes of Transformers: BERT's, RoBERTa's, XLM-R's, GPT-2's, Llama's
and Qwen2's.

Such a class builds its rules from a vocabulary and the settings of tokenizer_config.json. It does
not read the rules that are stored in tokenizer.json. Every other class uses tokenizer.json
unchanged. A setting or vocabulary that cannot be used raises ValueError; the caller adds the name
of the file.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tokenizers
from tokenizers import Regex, decoders, normalizers, pre_tokenizers, processors

Settings = dict[str, Any]
Special = dict[str, str]  # special tokens by role
Parts = dict[str, Any]  # parts of tokenizer.json; a dict under "model" has the model's flags

LONGEST_WORD = 100  # characters; WordPiece encodes a longer word as [UNK]
# Qwen2 splits a text by these before it merges bytes.
QWEN2_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class TokenizerClass:
    """The rules that a class of Transformers builds, and its usual special tokens."""

    model: str  # the kind of vocabulary
    special: Special
    rules: Callable[[Settings, Special], Parts]
    # The frame, from the settings, the special tokens and their ids. None: that of tokenizer.json.
    frame: Callable[[Settings, Special, dict[str, int]], Any] | None = None
    framing: tuple[str, ...] = ()  # the roles in the frame
    readds_special: bool = False  # whether special tokens lose flags such as lstrip


def flag(settings: Settings, name: str, default: bool = False) -> bool:
    """Return a switch of the settings. Raises ValueError if it is neither a boolean nor null."""
    value = _flag_or_none(settings, name)
    return default if value is None else value


def _flag_or_none(settings: Settings, name: str) -> bool | None:
    value = settings.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} must be true or false, got {value!r:.60}")
    return value


def _bert_rules(settings: Settings, special: Special) -> Parts:
    """Return the rules of BERT (Devlin et al., 2018)."""
    normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=flag(settings, "tokenize_chinese_chars", True),
        strip_accents=_flag_or_none(settings, "strip_accents"),  # None: as `lowercase`
        lowercase=flag(settings, "do_lower_case", True),
    )
    return {
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(prefix="##"),
        "model": {
            "unk_token": special["unk"],
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": LONGEST_WORD,
        },
    }


def _bert_frame(settings: Settings, special: Special, ids: dict[str, int]) -> Any:
    cls, sep = special["cls"], special["sep"]
    return processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, ids["cls"]), (sep, ids["sep"])],
    )


def _byte_rules(settings: Settings, special: Special) -> Parts:
    """Return the rules of GPT-2 (Radford et al., 2019), which RoBERTa (Liu et al., 2019) shares."""
    space = flag(settings, "add_prefix_space")
    return {
        "pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=space),
        "decoder": decoders.ByteLevel(),
        "model": {"continuing_subword_prefix": "", "end_of_word_suffix": ""},
    }


def _roberta_frame(settings: Settings, special: Special, ids: dict[str, int]) -> Any:
    # Pairs are <s> A </s></s> B </s>, all of segment 0.
    return processors.RobertaProcessing(
        (special["sep"], ids["sep"]),
        (special["cls"], ids["cls"]),
        trim_offsets=flag(settings, "trim_offsets", True),
        add_prefix_space=flag(settings, "add_prefix_space"),
    )


def _xlm_roberta_rules(settings: Settings, special: Special) -> Parts:
    scheme = "always" if flag(settings, "add_prefix_space", True) else "never"
    spaces = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)
    return {
        "pre_tokenizer": pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaces]),
        "decoder": decoders.Metaspace(replacement="▁", prepend_scheme=scheme),
        "model": {"unk_id": 3, "byte_fallback": False},
    }


def _xlm_roberta_frame(settings: Settings, special: Special, ids: dict[str, int]) -> Any:
    bos, eos = special["bos"], special["eos"]
    return processors.TemplateProcessing(
        single=[bos, "$A", eos],
        pair=[bos, "$A", eos, eos, "$B", eos],
        special_tokens=[(bos, ids["bos"]), (eos, ids["eos"])],
    )


def _llama_rules(settings: Settings, special: Special) -> Parts:
    space = flag(settings, "add_prefix_space", True)
    scheme = "never"
    if space:
        scheme = "always" if flag(settings, "legacy") else "first"
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return {
        "pre_tokenizer": pre_tokenizers.Metaspace(
            replacement="▁", prepend_scheme=scheme, split=False
        ),
        "decoder": decoders.Sequence([*steps, *[decoders.Strip(" ", left=1)] * bool(space)]),
        "model": {"fuse_unk": True, "byte_fallback": True},
    }


def _qwen2_rules(settings: Settings, special: Special) -> Parts:
    words = pre_tokenizers.Split(Regex(QWEN2_WORDS), behavior="isolated", invert=False)
    space = flag(settings, "add_prefix_space")
    pieces = pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False)
    return {
        "normalizer": normalizers.NFC(),
        "pre_tokenizer": pre_tokenizers.Sequence([words, pieces]),
        "decoder": decoders.ByteLevel(),
        "model": {"continuing_subword_prefix": "", "end_of_word_suffix": ""},
    }


END = "<|endoftext|>"
S = {"bos": "<s>", "eos": "</s>", "unk": "<unk>"}
MASKED = S | {"sep": "</s>", "pad": "<pad>", "cls": "<s>", "mask": "<mask>"}
BERT = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
CLASSES = {
    "BertTokenizer": TokenizerClass("WordPiece", BERT, _bert_rules, _bert_frame, ("cls", "sep")),
    "RobertaTokenizer": TokenizerClass("BPE", MASKED, _byte_rules, _roberta_frame, ("cls", "sep")),
    "XLMRobertaTokenizer": TokenizerClass(
        "Unigram", MASKED, _xlm_roberta_rules, _xlm_roberta_frame, ("bos", "eos")
    ),
    "GPT2Tokenizer": TokenizerClass("BPE", {"bos": END, "eos": END}, _byte_rules),
    "LlamaTokenizer": TokenizerClass("BPE", S, _llama_rules),
    "Qwen2Tokenizer": TokenizerClass(
        "BPE", {"eos": END, "pad": END}, _qwen2_rules, readds_special=True
    ),
}
ALIASES = {
    "DistilBertTokenizer": "BertTokenizer",
    "ElectraTokenizer": "BertTokenizer",
    "MobileBertTokenizer": "BertTokenizer",
    "SqueezeBertTokenizer": "BertTokenizer",
    "LayoutLMTokenizer": "BertTokenizer",
    "ConvBertTokenizer": "BertTokenizer",
    "BartTokenizer": "RobertaTokenizer",
    "LongformerTokenizer": "RobertaTokenizer",
    "LEDTokenizer": "RobertaTokenizer",
}
# Of folders that do not name a class. The tokenizers of other models, such as ModernBERT, use
# tokenizer.json unchanged.
CLASS_OF_MODEL = {
    **dict.fromkeys(
        ("bert", "distilbert", "electra", "mobilebert", "squeezebert"), "BertTokenizer"
    ),
    **dict.fromkeys(("roberta", "bart", "longformer"), "RobertaTokenizer"),
    **dict.fromkeys(("gpt2", "gpt_neo", "gptj"), "GPT2Tokenizer"),
    "xlm-roberta": "XLMRobertaTokenizer",
    **dict.fromkeys(("qwen2", "qwen3"), "Qwen2Tokenizer"),
}
# Models whose folders often name a wrong class; Transformers uses the class of the model.
MISNAMED = ("qwen2", "modernbert")


def class_name(declared: str | None, model_type: str | None, is_byte_level: bool) -> str | None:
    """Return the name of the class that Transformers uses, or None if it is not known here.

    `declared` is the tokenizer_class of the folder. `is_byte_level` tells whether its
    tokenizer.json has byte-level rules, which LlamaTokenizer cannot express.
    """
    usual = CLASS_OF_MODEL.get(model_type or "")
    name = None if declared is None else declared.removesuffix("Fast")
    name = ALIASES.get(name, name) if name else None
    if name is None or model_type in MISNAMED:
        return usual
    if name == "LlamaTokenizer" and is_byte_level:
        return None
    return name if name in CLASSES else None


def rebuilt(name: str, content: Parts, settings: Settings, special: Special) -> Parts:
    """Return the content of tokenizer.json with the rules of a class, without added tokens.

    `content` needs a "model" with a vocabulary. Raises ValueError if that is of another kind than
    the class's, or lacks its token for unknown words.
    """
    kind, model = CLASSES[name], content["model"]
    found = kind_of(model)
    if found != kind.model:
        raise ValueError(f"a {name} needs a vocabulary of the kind {kind.model}, got {found}")
    rules = kind.rules(settings, special)
    flags = rules.pop("model")
    unk = flags.get("unk_token")
    if unk is not None and unk not in model["vocab"]:
        raise ValueError(f"{unk} is not in the vocabulary")
    parts = {part: _stored(rule) for part, rule in rules.items()}
    if kind.model == "Unigram":
        parts["normalizer"] = _charsmap(content.get("normalizer"))
    kept = {part: model[part] for part in ("vocab", "merges") if part in model}
    return {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "post_processor": content.get("post_processor"),
        **parts,
        "model": {"type": kind.model, **flags, **kept},
    }


def kind_of(model: Parts) -> str:
    """Return the kind of vocabulary that the model of a tokenizer.json has."""
    if isinstance(model.get("vocab"), list):
        return "Unigram"
    return model.get("type") or ("BPE" if "merges" in model else "WordPiece")


def set_frame(
    core: tokenizers.Tokenizer, name: str | None, settings: Settings, special: Special
) -> None:
    """Set the frame of a class, and an empty one for a tokenizer without any.

    Raises ValueError if a token of the frame is not in the vocabulary.
    """
    kind = CLASSES.get(name or "")
    if kind is not None and kind.frame is not None:
        special = kind.special | special
        ids = {role: _id(core, special[role]) for role in kind.framing}
        core.post_processor = kind.frame(settings, special, ids)
    elif core.post_processor is None:
        # Settings read it without tokenizer.json alone: see `read_tokenizer_files`.
        roles = [role for role in ("bos", "eos") if flag(settings, f"add_{role}_token")]
        around = {role: special[role] for role in roles if role in special}
        parts = [*([f"{around['bos']}:{{0}}"] if "bos" in around else []), "${1}:{0}"]
        parts += [f"{around['eos']}:{{0}}"] if "eos" in around else []
        first, second = ([part.format(*which) for part in parts] for which in ((0, "A"), (1, "B")))
        core.post_processor = processors.TemplateProcessing(
            single=first,
            pair=first + second,
            special_tokens=[(token, _id(core, token)) for token in sorted(set(around.values()))],
        )


def _id(core: tokenizers.Tokenizer, token: str) -> int:
    found = core.token_to_id(token)
    if found is None:
        raise ValueError(f"{token} is not in the vocabulary")
    return found


def _stored(part: Any) -> Any:
    """Return a part of a tokenizer as tokenizer.json stores it."""
    return json.loads(part.__getstate__())


def _charsmap(normalizer: Parts | None) -> Parts | None:
    """Return the character map of SentencePiece among the normalizers, if there is one."""
    if not normalizer:
        return None
    steps = normalizer.get("normalizers", [normalizer])
    return next((step for step in steps if step.get("type") == "Precompiled"), None)
