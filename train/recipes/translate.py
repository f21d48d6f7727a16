"""The recipe of `train.translate`: its options, and the model and schedule built from them."""

from dataclasses import dataclass

from train.data.pairs import check_source
from train.optim.config import OptimizerConfig
from train.recipes.common import learning_rate_option, muon_rate_option
from train.trainer.config import FitConfig
from train.trainer.options import NOT_NEGATIVE, CommonOptions, OptionError, chosen, option
from transformer_jax.models.config import SequenceToSequenceConfig
from transformer_jax.nn.config import StackConfig


@dataclass(frozen=True)
class Recipe:
    """The model and schedule; the vocabulary size is set once the texts are read."""

    tokenizer: str
    model: SequenceToSequenceConfig
    fit: FitConfig
    batch_tokens: int
    label_smoothing: float
    buckets: int  # number of different batch lengths


@dataclass(frozen=True)
class TranslationOptions(CommonOptions):
    """The options of `train.translate`."""

    may_change = CommonOptions.may_change | {"beams", "alpha"}

    data: str = option(
        "sample",
        "WHAT",
        "sample (default): generated numbers and dates; a folder of train, val and "
        "test*.LANGUAGE files, which may be .gz; a .tsv file; or hub:NAME, a data set on the "
        "Hugging Face hub",
    )
    source: str = option("en", "LANGUAGE", "source language (default: en)")
    target: str = option("de", "LANGUAGE", "target language (default: de)")
    tokenizer: str | None = option(
        None,
        "SPEC",
        "char, or bpe:N: byte-pair encoding trained to N tokens; one vocabulary for both "
        "languages (default: bpe:6000; sample: bpe:400)",
    )
    max_length: int = option(128, "N", "tokens read of each text (default: 128)", least=3)
    layers: int | None = option(
        None, "L", "layers in the encoder and in the decoder (default: 3; sample: 2)", least=1
    )
    embed_dim: int | None = option(None, "D", "width of the model (default: 128)", least=1)
    heads: int = option(4, "N", "attention heads per layer (default: 4)", least=1)
    norm: str = option(
        "pre",
        None,
        "layer norm before each sublayer (pre, the default) or after it (post, as in 2017)",
        choices=("pre", "post"),
    )
    dropout: float | None = option(None, "P", "dropout rate (default: 0.15; sample: 0)")
    label_smoothing: float | None = option(
        None,
        "E",
        "label smoothing (default: 0.1; sample: 0)",
        must=(lambda e: 0 <= e < 1, "in [0, 1)"),
    )
    beams: int = option(4, "W", "beam width for the test texts (default: 4)", least=1)
    alpha: float = option(
        0.6, "A", "length penalty of the beam search (default: 0.6)", must=NOT_NEGATIVE
    )
    learning_rate: float | None = learning_rate_option("0.004; sample: 0.002")
    muon_rate: float | None = muon_rate_option("0.02; sample: 0")

    def __post_init__(self):
        super().__post_init__()
        if self.batch_tokens is not None and self.batch_tokens < self.max_length:
            raise OptionError(
                f"--batch-tokens {self.batch_tokens} is less than one text of {self.max_length} "
                "tokens; pass more, or a smaller --max-length"
            )
        recipe_of(self)

    def check_paths(self) -> None:
        """Raise DataError if there are no pairs at `data`, or not in these languages."""
        check_source(self.data, self.source, self.target)


def recipe_of(options: TranslationOptions) -> Recipe:
    """Return the recipe of a small Transformer of 2017 with the sizes of the options."""
    sample = options.data == "sample"
    D = options.embed_dim or 128
    dropout = chosen(options.dropout, 0.0 if sample else 0.15)
    stack = StackConfig(
        num_layers=options.layers or (2 if sample else 3),
        embed_dim=D,
        num_heads=options.heads,
        hidden_dim=(2 if sample else 4) * D,
        norm=options.norm,
        final_norm=options.norm == "pre",
        dropout_rate=dropout,
        attention_dropout_rate=0.0,
    )
    model = SequenceToSequenceConfig(
        vocab_size=1,
        max_length=options.max_length,
        encoder=stack,
        decoder=stack,
        embedding_dropout_rate=dropout,
    )
    optimizer = OptimizerConfig(
        learning_rate=chosen(options.learning_rate, 2e-3 if sample else 4e-3),
        muon_rate=chosen(options.muon_rate, 0.0 if sample else 0.02),
        warmup_fraction=0.1,
        weight_decay=0.01,
        b2=0.98,
    )
    config = FitConfig(3 if sample else 12, average_decay=0.99, optimizer=optimizer)
    return Recipe(
        options.tokenizer or ("bpe:400" if sample else "bpe:6000"),
        model,
        options.fit_config(config),
        options.batch_tokens or (1024 if sample else 4096),
        chosen(options.label_smoothing, 0.0 if sample else 0.1),
        1 if sample else 3,
    )
