"""The registry of model families. Every module of `families` is a family.

To add a family, write `families/NAME.py` with the attributes of `Family`, and a test that loads a
checkpoint of it.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast, runtime_checkable

from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.pretrained import families
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.output_layer import OutputLayer
from transformer_jax.pretrained.tensor_layout import Tensor


@runtime_checkable  # for beartype in the tests
class Family(Protocol):
    """A module that describes the models of one architecture in Hugging Face's layout.

    The kind of a model is "encoder", "masked", "classifier" or "language".
    """

    MODEL_TYPES: tuple[str, ...]  # the values of model_type in config.json, the usual one first
    ARCHITECTURES: dict[str, str]  # the kind of each model class of Transformers
    PREFIX: str  # of the tensor names in a model with a head
    HEADS: tuple[str, ...]  # prefixes of the names of tensors that belong to a head
    OUTPUT: OutputLayer  # of a language model or a masked one
    IGNORED: tuple[str, ...]  # patterns of tensor names that no model of this library has
    RENAMED: dict[str, str]  # parts of tensor names in old files, and their current names

    def holds(self, config: Any) -> bool:
        """Check whether a model with this configuration can belong to the family.

        The configuration of a classifier is that of its encoder, `text`.
        """
        ...

    def read_config(self, settings: Settings, kind: str, names: set[str]) -> Any:
        """Return the configuration in config.json. `names` are the names of all tensors."""
        ...

    def write_config(self, config: Any, kind: str) -> dict[str, Any]:
        """Return the content of config.json for a configuration, the inverse of `read_config`."""
        ...

    def tensors(self, config: Any, kind: str) -> list[Tensor]:
        """Return the tensors of a model's file, each with the parameters that it contains."""
        ...


FAMILIES: tuple[Family, ...] = tuple(
    cast(Family, import_module(f"{families.__name__}.{module.name}"))
    for module in iter_modules(families.__path__)
)


def family_of(settings: Settings) -> Family:
    """Return the family of the `model_type` in config.json.

    Raises PretrainedError if it is missing or unknown.
    """
    model_type = settings.text("model_type")
    for family in FAMILIES:
        if model_type in family.MODEL_TYPES:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.MODEL_TYPES)
    raise settings.error(f"model_type {model_type!r:.60} is not among those known: {known}")


def family_of_config(config: Any) -> Family | None:
    """Return the family that a model with this configuration belongs to, or None."""
    if isinstance(config, EncoderClassifierConfig):
        config = config.text
    return next((family for family in FAMILIES if family.holds(config)), None)
