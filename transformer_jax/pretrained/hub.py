"""Finding the folder of a model by its path or by its name on the Hugging Face Hub.

The hub is asked even if the model is cached, because another program may have cached only some of
its files. Cached files are not downloaded again. If the hub does not answer within five seconds,
the cached files are used. Nothing that computes a model is imported here, so that a name or a path
that is wrong is found at once.
"""

import os
import threading
from pathlib import Path

from transformer_jax.runtime.errors import PretrainedError, one_line
from transformer_jax.serialization.folder_files import CONFIG, INDEX

# The files that are downloaded: no pickles, no exports for other programs, no code.
FILES = [
    CONFIG, "model*.safetensors", INDEX, "generation_config.json",
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.txt", "vocab.json", "merges.txt",
    "modules.json", "*_Pooling/config.json", "sentence_bert_config.json",
    "config_sentence_transformers.json",
]  # fmt: skip
PATIENCE = 5.0  # seconds


def is_local(source: str | Path) -> bool:
    """Return whether `source` is a path on this machine rather than the name of a hub model.

    >>> is_local("runs/mine"), is_local("models/of/mine"), is_local("bert-base-uncased")
    (True, True, False)
    """
    name = str(source)
    marked = name.startswith((".", "~", "runs/")) or name.count("/") > 1  # owner/name has one
    return marked or Path(name).is_absolute() or os.path.exists(name)


def folder_of(source: str | Path, revision: str | None = None) -> Path:
    """Return the folder of a model, which is downloaded if `source` is a name on the hub.

    Raises PretrainedError if `source` is neither a folder nor a name, or if the model is not cached
    and the hub cannot be reached.
    """
    if os.path.isdir(source):
        return Path(source)
    if is_local(source):
        raise PretrainedError(f"{source} is not a folder; pass one that holds {CONFIG}")
    return _fetched(str(source), revision)


def _fetched(name: str, revision: str | None) -> Path:
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    def snapshot(**options) -> Path:
        return Path(snapshot_download(name, revision=revision, allow_patterns=FILES, **options))

    way_out = "pass a folder that holds its files"
    cached = None
    try:
        cached = snapshot(local_files_only=True)
    except LocalEntryNotFoundError:
        pass
    except HFValidationError as error:
        raise PretrainedError(
            f"{name[:100]!r} is neither a folder nor a name on the hub: {one_line(error)}"
        ) from None
    offline = constants.HF_HUB_OFFLINE
    reason = "HF_HUB_OFFLINE is set" if offline else _silence(name)
    if reason is not None:
        if cached is not None and any(cached.glob("*.safetensors")):
            return cached
        raise PretrainedError(
            f"{name} is not in the local cache and {constants.ENDPOINT} could not be reached "
            f"({reason}); {way_out}"
        )
    try:
        return snapshot()
    except Exception as error:  # any error that an interrupted download raises
        raise PretrainedError(
            f"{name} could not be fetched: {one_line(error)}; {way_out}"
        ) from None


def _silence(name: str) -> str | None:
    """Return the reason why the hub does not answer, or None if it answers in any way."""
    # The request is made in a thread that may be abandoned, because a name lookup that hangs
    # ignores the timeout of the client.
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    answers: list[str | None] = []

    def ask() -> None:
        try:
            HfApi().model_info(name, timeout=PATIENCE)
            answers.append(None)
        except HfHubHTTPError as error:
            answers.append(None if error.response is not None else one_line(error))
        except Exception as error:
            answers.append(one_line(error))

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    return answers[0] if answers else f"no answer within {PATIENCE:g} seconds"
