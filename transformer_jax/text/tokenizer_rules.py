"""The rules of tokenizers whose files hold a vocabulary alone: BERT's, RoBERTa's and GPT-2's.

How a text is normalised and what stands around it is known here for the models named below; any
other must bring a tokenizer.json. What cannot be used is a ValueError: the reader knows the file.
"""

from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

BERT_LIKE = ("bert", "distilbert", "electra", "mobilebert", "squeezebert")
ROBERTA_LIKE = ("roberta", "bart", "longformer")
GPT2_LIKE = ("gpt2", "gpt_neo", "gptj")
LONGEST_WORD = 100  # characters; a longer one is unknown to WordPiece


def word_pieces(
    lines: list[str], settings: dict[str, Any], model_type: str | None
) -> tokenizers.Tokenizer:
    """WordPiece as in BERT (Devlin et al., 2018): [CLS] A [SEP] B [SEP], of segments 0 and 1."""
    _must_be_known(model_type, BERT_LIKE)
    vocabulary = {token: i for i, token in enumerate(lines)}  # of equal lines the last counts
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
        strip_accents=settings.get("strip_accents"),  # None: where case is lost, accents are, too
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
    """Byte-level BPE as in GPT-2 (Radford et al., 2019), which has no frame, and RoBERTa (Liu et
    al., 2019).

    RoBERTa's frame is <s> A </s></s> B </s>, all of segment 0. With no `model_type` the vocabulary
    tells.
    """
    _must_be_known(model_type, ROBERTA_LIKE + GPT2_LIKE)
    if model_type is None:
        model_type = "roberta" if {"<s>", "</s>"} <= set(vocabulary) else "gpt2"
    # The first line is the format's version; "#" may begin a merge as well.
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
            f"it does not say how a text for {model_type!r} is framed; "
            "tokenizer.json is needed beside it"
        )


def _present(settings: dict[str, Any], name: str, usual: str, vocabulary: dict[str, int]) -> str:
    token = settings.get(f"{name}_token") or usual
    if token not in vocabulary:
        raise ValueError(f"{token} is not in the vocabulary")
    return token
