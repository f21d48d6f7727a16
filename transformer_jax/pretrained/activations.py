"""The names of activations in config.json, which has several for one function."""

# Transformers computes GELU in more than one way, with the same values up to rounding.
_EXACT = ("gelu", "gelu_python")
_TANH = ("gelu_new", "gelu_pytorch_tanh", "gelu_fast", "gelu_accurate", "gelu_python_tanh")

PLAIN = {
    **dict.fromkeys(_EXACT, "gelu"),
    **dict.fromkeys(_TANH, "gelu_tanh"),
    "relu": "relu",
}
GATED = {
    **dict.fromkeys(_EXACT, "geglu"),
    **dict.fromkeys(_TANH, "geglu_tanh"),
    **dict.fromkeys(("silu", "swish"), "swiglu"),
}


def name_of(activation: str, names: dict[str, str]) -> str:
    """Return the first of the names of an activation. Raises KeyError if it has none."""
    return {ours: name for name, ours in reversed(names.items())}[activation]
