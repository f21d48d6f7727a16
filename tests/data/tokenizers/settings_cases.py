"""Folders whose tokenizer_config.json differs from their tokenizer.json, and how Transformers reads
them: `python -m tests.data.tokenizers.settings_cases` writes settings_ids.json beside this file.

It needs transformers (5.24 when this was written); the tests need only what it leaves.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers

from tests.helpers.needs import start

HERE = Path(__file__).parent
TEXTS = [
    "Hello Café", "The QUICK brown 中文 fox, résumé", " the fox", "the  fox ",
    "the [MASK]x <mask> y", "a [NEW] the[NEW]fox [new]", "the<x> fox<|endoftext|>it's",
    "don ' t stop , please . n't", "",
    "over the lazy dog and the quick brown fox jumps over the sleeping cat",
]  # fmt: skip
# By base: the folder of the vocabulary, and the model_type of config.json.
BASES = {
    "bert": ("wordpiece", "bert"),
    "vocab.txt": ("wordpiece", "bert"),
    "distilbert": ("wordpiece", "distilbert"),
    "roberta": ("roberta", "roberta"),
    "gpt2": ("gpt2", "gpt2"),
    "vocab.json": ("gpt2", "gpt2"),
    "qwen2": ("gpt2", "qwen2"),
    "modernbert": ("roberta", "modernbert"),
    "xlm-roberta": ("unigram", "xlm-roberta"),
    "llama": ("llama", "llama"),
}


def token(content: str, **flags: bool) -> dict[str, Any]:
    names = ("lstrip", "rstrip", "single_word", "normalized", "special")
    return {"content": content} | {name: flags.get(name, name == "special") for name in names}


def added(content: str, **flags: bool) -> dict[str, Any]:
    return {"__type": "AddedToken"} | token(content, **flags)


LLAMA, FAST = {"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "PreTrainedTokenizerFast"}
# By case: the base and tokenizer_config.json; further files by their names.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "no settings": ("bert", {}),
    "lower-cased": ("bert", {"do_lower_case": True}),
    "cased": ("bert", {"do_lower_case": False}),
    "accents stripped": ("bert", {"do_lower_case": False, "strip_accents": True}),
    "accents kept": ("bert", {"strip_accents": False}),
    "chinese characters together": ("bert", {"tokenize_chinese_chars": False}),
    "ignored by Transformers": (
        "bert", {"do_basic_tokenize": False, "never_split": ["Hello"], "unheard_of": [1],
                 "spaces_between_special_tokens": False},
    ),
    "class of another model": ("bert", {"tokenizer_class": "DistilBertTokenizerFast"}),
    "rules of tokenizer.json": ("bert", FAST | {"do_lower_case": True}),
    "distilbert cased": ("distilbert", {"do_lower_case": False}),
    "modernbert": ("modernbert", {"tokenizer_class": "RobertaTokenizer", "add_prefix_space": True}),
    "roberta with a space": ("roberta", {"add_prefix_space": True}),
    "gpt2 with a space": ("gpt2", {"add_prefix_space": True}),
    "qwen2 with a space": ("qwen2", FAST | {"add_prefix_space": True}),
    "xlm-roberta without a space": ("xlm-roberta", {"add_prefix_space": False}),
    "llama": ("llama", {}),
    "llama class": ("llama", LLAMA),
    "llama legacy": ("llama", LLAMA | {"legacy": True}),
    "llama without a space": ("llama", LLAMA | {"add_prefix_space": False}),
    "bos and eos beside tokenizer.json": ("gpt2", {"add_bos_token": True, "add_eos_token": True}),
    "bos and eos": ("vocab.json", {"add_bos_token": True, "add_eos_token": True}),
    "truncated on the left": ("bert", {"truncation_side": "left"}),
    "truncation of tokenizer.json": ("xlm-roberta", {"tokenizer.json": {"truncation": {
        "direction": "Left", "max_length": 8, "strategy": "LongestFirst", "stride": 0,
    }}}),
    "split special tokens": ("bert", {"split_special_tokens": True}),
    "cleaned up": ("bert", {"clean_up_tokenization_spaces": True}),
    "not cleaned up": ("roberta", {"clean_up_tokenization_spaces": True}),
    "more tokens": ("bert", {"extra_special_tokens": ["[NEW]", "<x>"]}),
    "more tokens of old": ("roberta", {"additional_special_tokens": ["[NEW]", "<x>"]}),
    "more tokens with flags": ("gpt2", {"extra_special_tokens": [
        added("[NEW]", lstrip=True), added("<x>", rstrip=True, special=False, normalized=True)]}),
    "more tokens by name": ("llama", {"extra_special_tokens": {"image_token": "[NEW]"}}),
    "more tokens by name, and a list": ("llama", {
        "extra_special_tokens": {"image_token": "[NEW]"}, "additional_special_tokens": ["<x>"]}),
    "more tokens in an old map": ("gpt2", {"extra_special_tokens": {}, "special_tokens_map.json": {
        "additional_special_tokens": ["<x>"], "image_token": token("[NEW]")}}),
    "one token twice, by objects": ("roberta", {
        "unk_token": added("[NEW]"), "extra_special_tokens": [added("[NEW]", lstrip=True)]}),
    "bos without a token": ("vocab.json", {
        "tokenizer_class": "Qwen2Tokenizer", "add_bos_token": True, "add_eos_token": True}),
    "one token twice": ("llama", {"extra_special_tokens": [added("<x>", rstrip=True), "<x>"]}),
    "a token of another name": ("bert", {"image_token": "<x>"}),
    "an object that is no token": ("bert", {"image_token": token("fox", special=True)}),
    "mask that takes spaces": ("bert", {"mask_token": added("[NEW]", lstrip=True, rstrip=True)}),
    "mask that is a word": ("bert", {"mask_token": added("[NEW]", single_word=True)}),
    "new padding": ("gpt2", {"pad_token": "[NEW]"}),
    "other frame": ("bert", {"cls_token": "the", "sep_token": "fox"}),
    "listed token": ("bert", {"added_tokens_decoder": {"SIZE": token("[NEW]", special=False)}}),
    "listed token, normalized": ("bert", {"added_tokens_decoder": {
        "SIZE": token("[NEW]", special=False, normalized=True)}}),
    "listed token with flags": ("gpt2", FAST | {"added_tokens_decoder": {
        "SIZE": token("[NEW]", lstrip=True)}}),
    "old list": ("bert", {"added_tokens.json": {"[NEW]": "SIZE"}}),
    "old map": ("roberta", {"special_tokens_map.json": {
        "mask_token": token("[NEW]", lstrip=True), "additional_special_tokens": ["<x>"]}}),
    "no file but vocab.txt": ("vocab.txt", {"mask_token": added("[NEW]", lstrip=True)}),
}  # fmt: skip


def write_case(name: str, folder: Path) -> Path:
    """Write the folder of a case."""
    base, settings = CASES[name]
    kind, model_type = BASES[base]
    shutil.copytree(HERE / kind, folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    if kind not in ("unigram", "llama") and not base.startswith("vocab"):
        core = _tokenizer(folder)
        core.save(str(folder / "tokenizer.json"))
        for path in folder.glob("vocab.*"):
            path.unlink()
    size = str(_size(folder))
    settings = json.loads(json.dumps(settings).replace('"SIZE": {', f'"{size}": {{'))
    settings = json.loads(json.dumps(settings).replace('"SIZE"', size))
    files = {file: settings.pop(file) for file in list(settings) if file.endswith(".json")}
    for file, content in files.items():
        known = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
        (folder / file).write_text(json.dumps(known | content))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _tokenizer(folder: Path) -> tokenizers.Tokenizer:
    """Build a tokenizer of a vocabulary, which keeps case and adds no space."""
    if (folder / "vocab.txt").exists():
        lines = (folder / "vocab.txt").read_text(encoding="utf-8").splitlines()
        vocabulary = {token: i for i, token in enumerate(lines)}
        core = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
        core.normalizer = normalizers.BertNormalizer(lowercase=False)
        core.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        core.decoder = decoders.WordPiece()
        special = lines[:5]
    else:
        files = (str(folder / name) for name in ("vocab.json", "merges.txt"))
        core = tokenizers.Tokenizer(models.BPE.from_file(*files))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        core.decoder = decoders.ByteLevel()
        names = ("<s>", "</s>", "<pad>", "<unk>", "<mask>", "<|endoftext|>")
        special = [name for name in names if core.token_to_id(name) is not None]
    core.add_special_tokens([AddedToken(name, special=True) for name in special])
    return core


def _size(folder: Path) -> int:
    path = folder / "tokenizer.json"
    if path.exists():
        return tokenizers.Tokenizer.from_file(str(path)).get_vocab_size()
    return 0


def main() -> None:
    from transformers import AutoTokenizer

    found = {}
    for name in CASES:
        with TemporaryDirectory() as parent:
            read = AutoTokenizer.from_pretrained(write_case(name, Path(parent) / "case"))
        pairs = [TEXTS, TEXTS[::-1]]
        found[name] = {
            "ids": read(TEXTS)["input_ids"],
            "pairs": read(*pairs, truncation=True, max_length=12)["input_ids"],
            "cut": read(TEXTS, truncation=True, max_length=5)["input_ids"],
            "decoded": read.decode(read(TEXTS[7], add_special_tokens=False)["input_ids"]),
            "size": len(read),
        }
    lines = [f"  {json.dumps(name)}: {json.dumps(case)}" for name, case in found.items()]
    (HERE / "settings_ids.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    start("tests.data.tokenizers.settings_cases", __doc__, "transformers")
    main()
