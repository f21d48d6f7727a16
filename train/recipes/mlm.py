"""The recipe of `train.mlm`: its options, and the model and schedule built from them."""

from dataclasses import asdict, dataclass, replace
from typing import ClassVar

from train.data.load import check_source
from train.recipes.common import learning_rate_option, muon_rate_option, muon_schedule, rms_stack
from train.recipes.imdb import FINETUNE
from train.trainer.config import FitConfig
from train.trainer.options import CommonOptions, OptionError, chosen, option
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.position_schemes import POSITION_SCHEMES

# The same as in fine-tuning, so that its validation texts are not trained on.
VALIDATION_FRACTION = FINETUNE.validation_fraction


@dataclass(frozen=True)
class Sizes:
    """The sizes that the options can change."""

    length: int
    layers: int
    embed_dim: int
    heads: int
    epochs: int
    batch_tokens: int


SIZES = Sizes(length=256, layers=4, embed_dim=256, heads=4, epochs=1, batch_tokens=8192)
# The sample has a quarter of a million tokens of 600 distinct words; this takes two minutes.
SAMPLE_SIZES = Sizes(length=128, layers=2, embed_dim=128, heads=2, epochs=10, batch_tokens=2048)


@dataclass(frozen=True)
class Recipe:
    """The model and schedule; the vocabulary size is set once the texts are read."""

    model: TextEncoderConfig
    fit: FitConfig
    batch_tokens: int
    mask_rate: float
    dtype: str | None  # of the computation; None: chosen by train/optim/precision.py


def _size(name: str, metavar: str, what: str = "", *, least: int = 1):
    usual = f"default: {getattr(SIZES, name)}; sample: {getattr(SAMPLE_SIZES, name)}"
    return option(None, metavar, f"{what} ({usual})" if what else usual, least=least)


@dataclass(frozen=True)
class MaskedLanguageModelOptions(CommonOptions):
    """The options of `train.mlm`."""

    # Labels are ignored, so texts without one are as good as others.
    reviews: ClassVar[bool] = True
    unlabelled: ClassVar[bool] = True
    skip_bad: ClassVar[bool] = True
    encoding: ClassVar[str | None] = None

    data: str = option("auto", "WHAT", "as for train.imdb: auto (default), imdb, sample, or a path")
    text_column: str = option("text", "NAME", "column of the texts (default: text)")
    label_column: str = option("label", "NAME", "column of the labels (default: label)")
    classes: int | None = option(
        None, "N", "number of distinct labels in the data (default: any)", least=2
    )
    tokenizer: str = option(
        "word:30000",
        "SPEC",
        "word:N (default: word:30000) or bpe:N (byte-pair encoding), trained to N tokens",
    )
    length: int | None = _size("length", "T", "tokens per row", least=3)
    layers: int | None = _size("layers", "L", "number of layers")
    embed_dim: int | None = _size("embed_dim", "D", "width of the model")
    heads: int | None = _size("heads", "N", "attention heads per layer")
    positions: str = option(
        "rotary", None, "position scheme (default: rotary)", choices=POSITION_SCHEMES
    )
    mask_rate: float = option(
        0.15,
        "P",
        "fraction of the tokens to mask, by whole words (default: 0.15; more may be better)",
        must=(lambda rate: 0 < rate < 1, "above 0 and below 1"),
    )
    dropout: float = option(0.0, "P", "dropout rate (default: 0)")
    learning_rate: float | None = learning_rate_option("0.005")
    muon_rate: float | None = muon_rate_option("0.04")

    def __post_init__(self):
        super().__post_init__()
        if self.tokenizer == "gpt2":
            raise OptionError("--tokenizer gpt2 has no mask token; pass word:N or bpe:N")
        recipe = recipe_of(self, self.data)
        if recipe.batch_tokens < recipe.model.max_length:
            raise OptionError(
                f"--batch-tokens {recipe.batch_tokens} is less than one row of "
                f"{recipe.model.max_length} tokens; pass more, or a smaller --length"
            )

    def check_paths(self) -> None:
        """Raise DataError if `data` names no data set."""
        check_source(self.data, self.text_column, self.label_column, reviews=self.reviews)


def recipe_of(options: MaskedLanguageModelOptions, data: str) -> Recipe:
    """Return the recipe of a small BERT with the sizes of the options, for the data set `data`."""
    usual = SAMPLE_SIZES if data == "sample" else SIZES
    given = {k: v for k in asdict(usual) if (v := getattr(options, k)) is not None}
    sizes = replace(usual, **given)
    model = TextEncoderConfig(
        vocab_size=1,
        max_length=sizes.length,
        encoder=rms_stack(
            sizes.layers, sizes.embed_dim, sizes.heads, options.dropout, first_norm=False
        ),
        num_segments=0,
        positions=options.positions,
        embedding_dropout_rate=options.dropout,
    )
    return Recipe(
        model,
        muon_schedule(options, sizes.epochs),
        chosen(options.batch_tokens, max(sizes.batch_tokens, sizes.length)),
        options.mask_rate,
        "float32" if data == "sample" else None,  # few words: bfloat16 is too coarse for them
    )
