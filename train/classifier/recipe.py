"""Everything that decides what a classifier learns, apart from the data and the seed."""

from dataclasses import dataclass

from train.classifier.document_vectors import VectorConfig
from train.trainer.step import FitConfig
from transformer_jax.models.config import ClassifierConfig


@dataclass(frozen=True)
class PretrainedConfig:
    """What is made of a pretrained encoder."""

    # tokens of a text that are read; pooled by the mean they may be more than the model holds
    max_length: int
    pooling: str | None = None  # cls or mean; None: as the model's own files have it
    ngrams: int = 0  # as of ClassifierConfig
    ngram_bits: int = 22
    lora_rank: int = 0  # 0: every kernel is trained whole
    # Published encoders were trained with 0.1. On a CPU that makes a step a quarter longer.
    attention_dropout_rate: float = 0.0
    dropout_rate: float | None = None  # elsewhere in the encoder; None: as it was trained


@dataclass(frozen=True)
class Recipe:
    """What a name on the command line stands for."""

    name: str
    tokenizer: str | None  # None: the pretrained model's own
    truncate: str
    # Made anew, with the vocab_size and num_classes of the data; or from a pretrained encoder.
    model: ClassifierConfig | PretrainedConfig
    fit: FitConfig
    batch_examples: int  # of average length: short texts come in batches of as many
    buckets: int  # lengths of batches, each compiled once
    token_dropout: float = 0.0
    label_smoothing: float = 0.0
    margin: bool = False  # a squared hinge instead of cross-entropy
    evidence_weight: float = 1.0  # of n-grams beside the network, until validation says how much
    unlabelled_weight: float = 0.5  # in the loss, of a text whose label was guessed
    vectors: VectorConfig | None = None  # of texts, that help to guess
    validation_fraction: float = 0.1
    dtype: str | None = None  # of the computation; None: that of train/optim/precision.py
