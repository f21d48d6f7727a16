"""The recipe of a classifier: every setting that affects the result, except data and seed."""

from dataclasses import dataclass

from train.trainer.config import FitConfig
from transformer_jax.models.config import ClassifierConfig


@dataclass(frozen=True)
class PretrainedConfig:
    """The settings of a classifier built on a pretrained encoder."""

    # Tokens read of each text; with mean pooling they may exceed the encoder's limit.
    max_length: int
    pooling: str | None = None  # cls or mean; None: as in the model's files
    ngrams: int = 0  # as in ClassifierConfig
    ngram_bits: int = 22
    lora_rank: int = 0  # 0: no LoRA, all kernels are trained
    # Published encoders were trained with 0.1. On a CPU that makes a step a quarter longer.
    attention_dropout_rate: float = 0.0
    dropout_rate: float | None = None  # elsewhere in the encoder; None: as in its configuration


@dataclass(frozen=True)
class VectorConfig:
    """The settings of document vectors; letters refer to the equation of `document_vectors`."""

    features: int = 304  # length of a vector; a multiple of 16
    epochs: int = 30
    learning_rate: float = 1e-3
    scale: float = 6.0  # a
    negatives: int = 512  # N
    negative_weight: float = 5.0  # k
    inner_steps: int = 12  # updates of a text's vector at each visit
    passes: int = 4  # final passes over all texts, with the n-gram vectors fixed
    longest: int = 3  # maximum length of an n-gram
    least_texts: int = 4  # an n-gram in fewer texts has no vector
    least_kept: float = 0.1  # fraction kept of the occurrences of an uninformative n-gram
    unlabelled_kept: float = 0.5  # fraction kept for an n-gram that no labelled text contains


@dataclass(frozen=True)
class Recipe:
    """The model and schedule behind a name of --recipe."""

    name: str
    tokenizer: str | None  # None: the pretrained model's own
    truncate: str
    # From scratch, with the vocab_size and num_classes of the data; or from a pretrained encoder.
    model: ClassifierConfig | PretrainedConfig
    fit: FitConfig
    batch_examples: int  # texts of average length per batch; sets the tokens per batch
    buckets: int  # number of batch lengths, each of which is compiled once
    token_dropout: float = 0.0
    label_smoothing: float = 0.0
    margin: bool = False  # True: squared hinge loss instead of cross-entropy
    evidence_weight: float = 1.0  # of the n-grams' logits, until it is fitted on validation
    unlabelled_weight: float = 0.5  # weight in the loss of a text with a pseudo-label
    vectors: VectorConfig | None = None  # document vectors that improve the pseudo-labels
    validation_fraction: float = 0.1
    dtype: str | None = None  # of the computation; None: chosen by train/optim/precision.py
