"""The name of the commands, as the user started them."""

import sys
from pathlib import Path

MODULE, SCRIPT = "python -m transformer_jax", "transformer-jax"


def program() -> str:
    """Return "transformer-jax" if that script runs, else "python -m transformer_jax"."""
    return SCRIPT if Path(sys.argv[0]).stem == SCRIPT else MODULE
