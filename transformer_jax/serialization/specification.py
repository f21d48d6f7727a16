"""The contents of a run folder's config.json: the configuration of the model, and the settings that
its use on texts needs.
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
    """The content of config.json for a `TextClassifier`."""

    config: ClassifierConfig
    classes: tuple[str, ...]
    truncate: Truncation
    data: str  # the name of the training data
    model: str = "TextClassifier"

    @property
    def max_length(self) -> int:
        """The maximum number of tokens that are read of a text."""
        return self.config.max_length

    def __post_init__(self):
        _check_classifier(self, self.config.max_length)


@dataclass(frozen=True)
class EncoderClassifierSpec:
    """The content of config.json for a classifier that was fine-tuned from a pretrained encoder."""

    config: EncoderClassifierConfig
    classes: tuple[str, ...]
    truncate: Truncation
    data: str
    max_length: int  # maximum number of tokens that are read of a text
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
    """The content of config.json for a masked language model."""

    config: TextEncoderConfig
    data: str  # the name of the training data
    seed: int  # the seed of the split into training and held-out data
    model: str = "MaskedLanguageModel"


@dataclass(frozen=True)
class TextEncoderSpec:
    """The specification of a published text encoder. No run folder contains one."""

    config: TextEncoderConfig
    data: str  # the name of the published model
    model: str  # TextEncoder or MaskedLanguageModel


@dataclass(frozen=True)
class LanguageModelSpec:
    """The content of config.json for a language model."""

    config: LanguageModelConfig
    data: str  # the name of the training data
    framed: bool  # whether each training text was between [CLS] and [SEP]
    model: str = "LanguageModel"


@dataclass(frozen=True)
class TranslatorSpec:
    """The content of config.json for an encoder-decoder."""

    config: SequenceToSequenceConfig
    source: str  # the name of the source language
    target: str  # the name of the target language
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
