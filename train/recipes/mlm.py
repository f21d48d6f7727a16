"""The recipe of `train.mlm`: its options, and the model and schedule that they make."""

from dataclasses import asdict, dataclass, replace

from train.recipes.common import learning_rate_option, muon_rate_option, muon_schedule, rms_stack
from train.recipes.imdb import FINETUNE
from train.trainer.options import CommonOptions, OptionError, chosen, option
from train.trainer.step import FitConfig
from transformer_jax.models.config import TextEncoderConfig
from transformer_jax.nn.position_schemes import POSITION_SCHEMES

VALIDATION_FRACTION = (
    FINETUNE.validation_fraction
)  # so that what fine-tuning validates on is not read


@dataclass(frozen=True)
class Sizes:
    """What the options change."""

    length: int
    layers: int
    embed_dim: int
    heads: int
    epochs: int
    batch_tokens: int


SIZES = Sizes(length=256, layers=4, embed_dim=256, heads=4, epochs=1, batch_tokens=8192)
# A quarter of a million tokens of 600 words: two minutes.
SAMPLE_SIZES = Sizes(length=128, layers=2, embed_dim=128, heads=2, epochs=10, batch_tokens=2048)


@dataclass(frozen=True)
class Recipe:
    """Model and schedule; the size of the vocabulary comes with the texts."""

    model: TextEncoderConfig
    fit: FitConfig
    batch_tokens: int
    mask_rate: float
    dtype: str | None  # of the computation; None: that of train/optim/precision.py


def _size(name: str, metavar: str, what: str = "", *, least: int = 1):
    usual = f"default: {getattr(SIZES, name)}, for the sample {getattr(SAMPLE_SIZES, name)}"
    return option(None, metavar, f"{what} ({usual})" if what else usual, least=least)


@dataclass(frozen=True)
class MaskedLanguageModelOptions(CommonOptions):
    """The options of `train.mlm`."""

    data: str = option("auto", "WHAT", "as of train.imdb: auto (default), imdb, sample, or a path")
    text_column: str = option("text", "NAME", "of a file (default: text)")
    label_column: str = option("label", "NAME", "of a file (default: label)")
    classes: int = option(2, "N", "how many labels (default: 2)", least=2)
    tokenizer: str = option("word:30000", "SPEC", "word:N (default: 30000) or bpe:N")
    length: int | None = _size("length", "T", "tokens of a row", least=3)
    layers: int | None = _size("layers", "L")
    embed_dim: int | None = _size("embed_dim", "D")
    heads: int | None = _size("heads", "N")
    positions: str = option("rotary", choices=POSITION_SCHEMES)
    mask_rate: float = option(
        0.15,
        "P",
        "the share of the words that are hidden (default: 0.15; more may be better)",
        must=(lambda rate: 0 < rate < 1, "above 0 and below 1"),
    )
    dropout: float = option(0.0, "P", "default: 0")
    learning_rate: float | None = learning_rate_option("0.005")
    muon_rate: float | None = muon_rate_option("0.04")

    def __post_init__(self):
        super().__post_init__()
        if self.tokenizer == "gpt2":
            raise OptionError("--tokenizer gpt2 has no token for a mask; pass word:N or bpe:N")
        recipe = recipe_of(self, self.data)
        if recipe.batch_tokens < recipe.model.max_length:
            raise OptionError(
                f"--batch-tokens {recipe.batch_tokens} is less than one row of "
                f"{recipe.model.max_length} tokens; pass more, or a smaller --length"
            )


def recipe_of(options: MaskedLanguageModelOptions, data: str) -> Recipe:
    """Return a small BERT of the sizes that the options name, for data of this name."""
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
        "float32" if data == "sample" else None,  # its words are few, and few digits tell them
    )
