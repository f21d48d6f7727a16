"""The two published files of GPT-2's vocabulary, from a folder, tiktoken's cache or the network."""

import threading
from pathlib import Path

import tiktoken.load

from transformer_jax.runtime.errors import TokenizerError, one_line

# The URLs of tiktoken_ext.openai_public, so that files in tiktoken's cache are found, and the
# SHA-256 hashes of the files.
URL = "https://openaipublic.blob.core.windows.net/gpt-2/encodings/main/"
FILES = {
    "encoder.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "vocab.bpe": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}
FETCH_SECONDS = 8.0


def read_gpt2_files(folder: str | Path | None) -> tuple[bytes, bytes]:
    """Read encoder.json and vocab.bpe from a folder, or through tiktoken if `folder` is None.

    Raises TokenizerError if they cannot be read or downloaded.
    """
    encoder, merges = (
        _fetch(name) if folder is None else _read(Path(folder) / name) for name in FILES
    )
    return encoder, merges


def _read(path: Path) -> bytes:
    # Not through tiktoken, because its cache would return the old content of a changed file.
    try:
        return path.read_bytes()
    except OSError as error:
        raise TokenizerError(
            f"gpt2_files must be a folder with encoder.json and vocab.bpe: {one_line(error)}"
        ) from None


def _fetch(name: str) -> bytes:
    """Read a file from tiktoken's cache, or download it through tiktoken."""
    # In a thread, because tiktoken has no timeout and waits forever for a network that does not
    # answer, name lookup included. An abandoned daemon thread does not keep the program alive.
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
