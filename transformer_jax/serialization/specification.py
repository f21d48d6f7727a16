"""What the config.json of a run folder holds: the configuration of its model, and what it takes to
use it on texts.
"""

from dataclasses import dataclass

from transformer_jax.models.config import (
    ClassifierConfig,
    EncoderClassifierConfig,
    LanguageModelConfig,
    SequenceToSequenceConfig,
    TextEncoderConfig,
)
from transformer_jax.nn.config import LARGEST
from transformer_jax.runtime.errors import shown
from transformer_jax.text.encoding import Truncation


@dataclass(frozen=True)
class ClassifierSpec:
    """What config.json holds."""

    config: ClassifierConfig
    classes: tuple[str, ...]
    truncate: Truncation
    data: str  # the name of what it was trained on
    model: str = "TextClassifier"

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read."""
        return self.config.max_length

    def __post_init__(self):
        _check_classifier(self, self.config.max_length)


@dataclass(frozen=True)
class EncoderClassifierSpec:
    """What config.json holds of a classifier that was a pretrained encoder."""

    config: EncoderClassifierConfig
    classes: tuple[str, ...]
    truncate: Truncation
    data: str
    max_length: int  # tokens of a text that are read
    model: str = "EncoderClassifier"

    def __post_init__(self):
        config = self.config
        _check_classifier(self, self.max_length if config.in_passages else config.text.max_length)


def _check_classifier(spec: "ClassifierSpec | EncoderClassifierSpec", holds: int) -> None:
    wanted, names = spec.config.num_classes, set(spec.classes)
    if len(names) != len(spec.classes) or len(spec.classes) != wanted:
        raise ValueError(
            f"classes must be {wanted} different names, as num_classes says; "
            f"got {len(spec.classes)}, {len(names)} of them different"
        )
    if spec.max_length < 3:
        raise ValueError(f"max_length must be 3 or more to hold a text; got {spec.max_length}")
    if spec.max_length >= LARGEST:
        raise ValueError(f"max_length must be less than {LARGEST}; got {shown(spec.max_length)}")
    if spec.max_length > holds:
        raise ValueError(
            f"max_length must be at most the {holds} of the encoder; got {spec.max_length}"
        )


@dataclass(frozen=True)
class MaskedLanguageModelSpec:
    """What config.json holds of a text encoder that was trained to fill masks."""

    config: TextEncoderConfig
    data: str  # the name of what it was trained on
    seed: int  # which decided what of the data it never read
    model: str = "MaskedLanguageModel"


@dataclass(frozen=True)
class TextEncoderSpec:
    """A specification of a published text encoder; no run folder holds one."""

    config: TextEncoderConfig
    data: str  # the name of the published model
    model: str  # TextEncoder or MaskedLanguageModel


@dataclass(frozen=True)
class LanguageModelSpec:
    """What config.json holds of a language model."""

    config: LanguageModelConfig
    data: str  # the name of what it was trained on
    framed: bool  # whether each text stood between [CLS] and [SEP]
    model: str = "LanguageModel"


@dataclass(frozen=True)
class TranslatorSpec:
    """What config.json holds of an encoder-decoder."""

    config: SequenceToSequenceConfig
    source: str  # the names of the two languages
    target: str
    data: str
    model: str = "SequenceToSequence"


Spec = (
    ClassifierSpec
    | EncoderClassifierSpec
    | MaskedLanguageModelSpec
    | LanguageModelSpec
    | TranslatorSpec
    | TextEncoderSpec
)
