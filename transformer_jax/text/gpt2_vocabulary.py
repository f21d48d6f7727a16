"""The two published files of GPT-2's vocabulary: from a folder, from tiktoken's cache, or through
tiktoken from home.
"""

import threading
from pathlib import Path

import tiktoken.load

from transformer_jax.runtime.errors import TokenizerError, one_line

# As in tiktoken_ext.openai_public: the same addresses, so that tiktoken's cache is found; SHA-256.
URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
FETCH_SECONDS = 8.0


def read_gpt2_files(folder: str | Path | None) -> tuple[bytes, bytes]:
    """encoder.json and vocab.bpe; raises TokenizerError where they cannot be had."""
    encoder, merges = (
        _fetch(name) if folder is None else _read(Path(folder) / name) for name in FILES
    )
    return encoder, merges


def _read(path: Path) -> bytes:
    # Not through tiktoken, whose cache would go on serving a local file after it has changed.
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"gpt2_files must be a folder with encoder.json and vocab.bpe: {one_line(error)}"
        ) from None


def _fetch(name: str) -> bytes:
    """The file from tiktoken's cache, or through tiktoken from its home.

    tiktoken waits for ever for a network that does not answer, name lookup included. A thread that
    is given up does not keep the program from ending.
    """
    outcome: list[bytes | Exception] = []

    def fetch() -> None:
        try:
            outcome.append(tiktoken.load.read_file_cached(URL + name, FILES[name]))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=fetch, daemon=True)
    thread.start()
    thread.join(FETCH_SECONDS)
    content = outcome[0] if outcome else TimeoutError(f"no answer in {FETCH_SECONDS:g} seconds")
    if isinstance(content, bytes):
        return content
    raise TokenizerError(
        f"{URL}{name} could not be reached ({type(content).__name__}) and tiktoken has no copy; "
        f"pass --gpt2-files DIR, a folder with encoder.json and vocab.bpe"
    )
