"""The registry of model families: every module of `families` is one.

To add a family, write `families/NAME.py` with the attributes of `Family`, and a test that loads a
checkpoint of it.
"""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any, Protocol, cast, runtime_checkable

from transformer_jax.models.config import EncoderClassifierConfig
from transformer_jax.pretrained import families
from transformer_jax.pretrained.files import Settings
from transformer_jax.pretrained.tensor_layout import Tensor


@runtime_checkable  # for beartype in the tests
class Family(Protocol):
    """A module that describes the models of one architecture, as Hugging Face lays them out.

    A kind is "encoder", "masked", "classifier" or "language".
    """

    MODEL_TYPES: tuple[str, ...]  # names in config.json, the usual one first
    ARCHITECTURES: dict[str, str]  # classes of Transformers, and the kind of model each is
    PREFIX: str  # of the tensors' names in a model with a head
    HEADS: tuple[str, ...]  # beginnings of the names of tensors that belong to a head
    IGNORED: tuple[str, ...]  # patterns of names of tensors that no model here has
    RENAMED: dict[str, str]  # parts of names in old files, and what they are now

    def holds(self, config: Any) -> bool:
        """Whether a model of this configuration, a classifier's `text`, can be of the family."""
        ...

    def read_config(self, settings: Settings, kind: str, names: set[str]) -> Any:
        """Return the configuration that config.json describes; `names` are the tensors' names."""
        ...

    def write_config(self, config: Any, kind: str) -> dict[str, Any]:
        """Return the content of config.json; `read_config` reverses it."""
        ...

    def tensors(self, config: Any, kind: str) -> list[Tensor]:
        """Return the tensors of a file, each with the parameters that it holds."""
        ...


FAMILIES: tuple[Family, ...] = tuple(
    cast(Family, import_module(f"{families.__name__}.{module.name}"))
    for module in iter_modules(families.__path__)
)


def family_of(settings: Settings) -> Family:
    """Return the family whose `model_type` config.json states. Raises PretrainedError."""
    model_type = settings.text("model_type")
    for family in FAMILIES:
        if model_type in family.MODEL_TYPES:
            return family
    known = ", ".join(name for family in FAMILIES for name in family.MODEL_TYPES)
    raise settings.error(f"model_type {model_type!r:.60} is not among those known: {known}")


def family_of_config(config: Any) -> Family | None:
    """Return the family that a model of this configuration belongs to, None where there is none."""
    if isinstance(config, EncoderClassifierConfig):
        config = config.text
    return next((family for family in FAMILIES if family.holds(config)), None)
