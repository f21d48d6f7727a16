"""The files that make a folder a run folder, and checks of folders that load no model."""

import os
from pathlib import Path

from transformer_jax.runtime.errors import InputError, RunFolderError

WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
CLASSIFIER_PROGRAMS = "train.classify or train.imdb"  # that write run folders of classifiers
LOCK = ".lock"  # held by the program that trains
INDEX = f"{WEIGHTS}.index.json"  # of published weights in several files


def check_run_folder(folder: str | Path, program: str) -> None:
    """Raise RunFolderError unless the folder has the files that `program` writes into its run."""
    for name in (CONFIG, WEIGHTS, TOKENIZER):
        # Path.is_file raises OSError if the name is too long.
        if not os.path.isfile(Path(folder) / name):
            raise RunFolderError(
                f"{Path(folder)} is not a run folder: it has no {name}. "
                f"Pass the --out folder of {program}"
            )


def is_training(folder: Path) -> bool:
    """Return whether a program holds the lock of a run folder, which ends with its process."""
    try:
        import fcntl  # not on Windows

        with open(folder / LOCK, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except (ImportError, OSError) as error:
        return isinstance(error, BlockingIOError)


def check_new_folder(folder: str | Path) -> None:
    """Raise InputError if there is a file or folder of this name."""
    if os.path.lexists(folder):
        raise InputError(f"{folder} exists; pass the name of a new folder")
