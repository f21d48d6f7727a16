"""The rules of tokenizers whose files contain only a vocabulary: BERT's, RoBERTa's and GPT-2's.

This file knows how the models below normalize a text and which special tokens they add. Any other
model needs a tokenizer.json. A vocabulary that cannot be used raises ValueError; the caller adds
the name of the file.
"""

from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

BERT_LIKE = ("bert", "distilbert", "electra", "mobilebert", "squeezebert")
ROBERTA_LIKE = ("roberta", "bart", "longformer")
GPT2_LIKE = ("gpt2", "gpt_neo", "gptj")
LONGEST_WORD = 100  # characters; WordPiece encodes a longer word as [UNK]


def word_pieces(
    lines: list[str], settings: dict[str, Any], model_type: str | None
) -> tokenizers.Tokenizer:
    """Build a WordPiece tokenizer as in BERT (Devlin et al., 2018).

    A pair is framed as [CLS] A [SEP] B [SEP], with segments 0 and 1. Raises ValueError for an
    unknown `model_type` or a missing special token.
    """
    _must_be_known(model_type, BERT_LIKE)
    vocabulary = {token: i for i, token in enumerate(lines)}  # the last of equal lines counts
    unk, cls, sep = (
        _present(settings, name, usual, vocabulary)
        for name, usual in (("unk", "[UNK]"), ("cls", "[CLS]"), ("sep", "[SEP]"))
    )
    core = tokenizers.Tokenizer(
        models.WordPiece(vocabulary, unk_token=unk, max_input_chars_per_word=LONGEST_WORD)
    )
    core.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),  # None: stripped if the text is lower-cased
        lowercase=settings.get("do_lower_case", True),
    )
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    core.decoder = decoders.WordPiece(prefix="##")
    core.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(token, vocabulary[token]) for token in (cls, sep)],
    )
    settings.setdefault("tokenizer_class", "BertTokenizer")
    return core


def byte_pairs(
    vocabulary: dict[str, int], lines: list[str], settings: dict[str, Any], model_type: str | None
) -> tokenizers.Tokenizer:
    """Build a byte-level BPE tokenizer as in GPT-2 (Radford et al., 2019) or RoBERTa (Liu et al.,
    2019).

    GPT-2 adds no special tokens by default. RoBERTa's pairs are <s> A </s></s> B </s>, all of
    segment 0. Without a `model_type` it is RoBERTa if the vocabulary has <s> and </s>, else GPT-2.
    Raises ValueError for an unknown `model_type` or a missing special token.
    """
    _must_be_known(model_type, ROBERTA_LIKE + GPT2_LIKE)
    if model_type is None:
        model_type = "roberta" if {"<s>", "</s>"} <= set(vocabulary) else "gpt2"
    # The first line may be the format's version. Other lines that begin with "#" are merges.
    lines = lines[1:] if lines and lines[0].startswith("#version") else lines
    pairs: list[Any] = [tuple(line.split(" ")) for line in lines if line]
    core = tokenizers.Tokenizer(models.BPE(vocabulary, pairs))
    space = settings.get("add_prefix_space", False)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=space)
    core.decoder = decoders.ByteLevel()
    if model_type in ROBERTA_LIKE:
        cls = _present(settings, "cls", "<s>", vocabulary)
        sep = _present(settings, "sep", "</s>", vocabulary)
        core.post_processor = processors.RobertaProcessing(
            (sep, vocabulary[sep]), (cls, vocabulary[cls]), add_prefix_space=space
        )
        settings.setdefault("tokenizer_class", "RobertaTokenizer")
    else:
        framed = [name for name in ("bos", "eos") if settings.get(f"add_{name}_token", False)]
        tokens = {name: _present(settings, name, "<|endoftext|>", vocabulary) for name in framed}
        parts = [*([f"{tokens['bos']}:{{0}}"] if "bos" in framed else []), "${1}:{0}"]
        parts += [f"{tokens['eos']}:{{0}}"] if "eos" in framed else []
        first, second = ([part.format(*which) for part in parts] for which in ((0, "A"), (1, "B")))
        core.post_processor = processors.TemplateProcessing(
            single=first,
            pair=first + second,
            special_tokens=[(token, vocabulary[token]) for token in sorted(set(tokens.values()))],
        )
        settings.setdefault("tokenizer_class", "GPT2Tokenizer")
    return core


def _must_be_known(model_type: str | None, known: tuple[str, ...]) -> None:
    if model_type is not None and model_type not in known:
        raise ValueError(
            f"it does not contain the special tokens around a text of {model_type!r}; "
            "tokenizer.json is needed in its folder"
        )


def _present(settings: dict[str, Any], name: str, usual: str, vocabulary: dict[str, int]) -> str:
    token = settings.get(f"{name}_token") or usual
    if token not in vocabulary:
        raise ValueError(f"{token} is not in the vocabulary")
    return token
