"""Worked examples of tokenization: byte-pair merges, WordPiece ids, and added special tokens."""

import json
from itertools import islice, product
from pathlib import Path
from tempfile import TemporaryDirectory

import tokenizers

from transformer_jax.text.bpe import apply_merges, pair_counts, train_bpe
from transformer_jax.text.tokenizer import train_tokenizer
from transformer_jax.walkthrough.step import Step
from transformer_jax.walkthrough.worked.notation import tell


def bpe_merges(example: dict) -> list[Step]:
    counts = example["inputs"]["counts"]
    merges = train_bpe(counts, 3)

    def pairs(known):
        """Count the pairs after the first `known` merges."""
        words = {tuple(apply_merges(word, merges[:known])): n for word, n in counts.items()}
        return {left + right: n for (left, right), n in pair_counts(words).items()}

    before = pairs(0)
    names = [left + right for left, right in merges]
    return [
        tell("counts", "how often each word occurs", list(counts.values()), "word", columns=counts),
        tell("pair_counts", "how often two symbols are neighbours", list(before.values()), "pair",
             columns=before, note="Among equally frequent pairs, the first to appear is merged."),
        tell("first_merges", "the most frequent pair, and how often it occurs by then",
             [pairs(i)[name] for i, name in enumerate(names)], "merge", columns=names),
    ]  # fmt: skip


def bert_encode(example: dict) -> list[Step]:
    """Encode a text and a pair with WordPiece.

    The vocabulary has only the needed words, with their ids in the published one. The published
    vocabulary gives the same result, because WordPiece takes the longest piece that fits: a whole
    word in the vocabulary is one token, whatever other tokens there are.
    """
    inputs = example["inputs"]
    wordpiece = tokenizers.BertWordPieceTokenizer(vocab=inputs["vocabulary"], lowercase=True)
    bare = wordpiece.encode(inputs["text"], add_special_tokens=False)
    wordpiece.enable_truncation(inputs["max_length"])
    wordpiece.enable_padding(length=inputs["max_length"], pad_id=inputs["vocabulary"]["[PAD]"])
    single = wordpiece.encode(inputs["text"])
    pair = wordpiece.encode(inputs["text"], inputs["pair"])
    steps = [
        tell("tokens", "lower case, punctuation apart, the longest piece first; how long each is",
             [len(token) for token in bare.tokens], "T", columns=bare.tokens),
        tell("ids", "their ids in the vocabulary", bare.ids, "T", columns=bare.tokens),
        tell("single", "[CLS] text [SEP], padded", single.ids, "T", columns=single.tokens),
        tell("pair", "[CLS] text [SEP] pair [SEP], padded", pair.ids, "T", columns=pair.tokens),
        tell("attention_mask_pair", "1 for a token, 0 for padding", pair.attention_mask, "T",
             columns=pair.tokens),
        tell("token_type_ids_pair", "0 up to the first [SEP], then 1; padding 0", pair.type_ids,
             "T", columns=pair.tokens),
    ]  # fmt: skip
    printed = example["printed"]
    same = list(bare.tokens) == printed["tokens"] and all(
        step.array.tolist() == printed[step.name]
        for step in steps
        if step.name in printed and step.name != "tokens"
    )
    return [*steps, tell("same", "all of it as printed", same)]


def imdb_special_tokens(example: dict) -> list[Step]:
    """Compute the ids of the special tokens after GPT-2's vocabulary.

    They depend only on the size of the vocabulary, so an artificial one of GPT-2's size is used.
    """
    inputs = example["inputs"]
    characters = [chr(0x100 + byte) for byte in range(inputs["bytes"])]
    merges = list(islice(product(characters, characters), inputs["merges"]))
    tokens = [*characters, *(left + right for left, right in merges), "<|endoftext|>"]
    with TemporaryDirectory() as folder:
        ids = {token: index for index, token in enumerate(tokens)}
        Path(folder, "encoder.json").write_text(json.dumps(ids), encoding="utf-8")
        lines = ["#version: 0.2", *map(" ".join, merges), ""]
        Path(folder, "vocab.bpe").write_text("\n".join(lines), encoding="utf-8")
        tokenizer = train_tokenizer("gpt2", [], gpt2_files=folder)
    return [
        tell("gpt2", "bytes + merges + end of text", len(tokens)),
        tell("pad", "id of [PAD], the first after them", tokenizer.pad_id),
        tell("cls", "id of [CLS]", tokenizer.cls_id),
        tell("sep", "id of [SEP]", tokenizer.sep_id),
        tell("vocab", "all tokens", tokenizer.vocab_size),
    ]


WORKED = {
    function.__name__: function for function in (bpe_merges, bert_encode, imdb_special_tokens)
}
