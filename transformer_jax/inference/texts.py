"""The texts that a user passes to a model: a list, a NumPy array or a pandas Series of str."""

from collections.abc import Iterable, Mapping


def as_texts(texts: Iterable[str], method: str) -> list[str]:
    """Return texts as a list.

    Raises TypeError if they are a single str or not one-dimensional, or if one is not a str. The
    message names the `method` to call.

    >>> as_texts(("Fine.", "Dull."), "predict")
    ['Fine.', 'Dull.']
    """
    if isinstance(texts, str):
        raise TypeError(f"texts must be a list of str, got a single str; write {method}([text])")
    axes = getattr(texts, "ndim", 1)
    if isinstance(texts, (bytes, Mapping)) or not isinstance(texts, Iterable):
        raise TypeError(f"texts must be a list of str, got {type(texts).__name__}")
    if axes != 1:
        raise TypeError(
            f"texts must be a list or a single column, got {type(texts).__name__} with {axes} axes"
        )
    found = list(texts)
    for i, text in enumerate(found):
        if not isinstance(text, str):
            raise TypeError(
                f"texts[{i}] must be a str, got {text!r:.40} ({type(text).__name__}); drop or "
                "convert it"
            )
    return [str(text) for text in found]  # NumPy's str becomes Python's


def as_text(text: str, name: str) -> str:
    """Return a text. Raises TypeError if it is not a str; the message calls it `name`.

    >>> as_text("Fine.", "text")
    'Fine.'
    """
    if not isinstance(text, str):
        raise TypeError(f"{name} must be a str, got {type(text).__name__}; pass one at a time")
    return str(text)
