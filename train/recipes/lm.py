"""The recipe of `train.lm`: its options, and the model and schedule built from them."""

from dataclasses import dataclass

from train.data.text_files import check_source
from train.recipes.common import learning_rate_option, muon_rate_option, muon_schedule, rms_stack
from train.trainer.config import FitConfig
from train.trainer.options import CommonOptions, OptionError, option
from transformer_jax.models.config import LanguageModelConfig
from transformer_jax.nn.position_schemes import POSITION_SCHEMES


@dataclass(frozen=True)
class Recipe:
    """The model and schedule; the vocabulary size is set once the texts are read."""

    model: LanguageModelConfig
    fit: FitConfig
    batch_tokens: int


@dataclass(frozen=True)
class LanguageModelOptions(CommonOptions):
    """The options of `train.lm`."""

    may_change = CommonOptions.may_change | {"gpt2_files"}

    data: str = option(
        "sample",
        "WHAT",
        "sample (default): generated reviews; a text file; a folder of .txt files; or hub:NAME, "
        "a data set on the Hugging Face hub",
    )
    tokenizer: str = option(
        "char",
        "SPEC",
        "char (default); bpe:N, byte-pair encoding trained to N tokens; or gpt2",
    )
    gpt2_files: str | None = option(
        None,
        "DIR",
        "folder with encoder.json and vocab.bpe, for a gpt2 tokenizer that tiktoken cannot load",
    )
    length: int = option(256, "T", "tokens per window (default: 256)", least=2)
    layers: int = option(4, "L", "number of layers (default: 4)", least=1)
    embed_dim: int = option(128, "D", "width of the model (default: 128)", least=1)
    heads: int = option(2, "N", "attention heads per layer (default: 2)", least=1)
    positions: str = option(
        "rotary", None, "position scheme (default: rotary)", choices=POSITION_SCHEMES
    )
    window: int | None = option(
        None,
        "W",
        "sliding-window attention: each token sees itself and the W tokens before it (default: "
        "all)",
        least=0,
    )
    dropout: float = option(
        0.0, "P", "dropout rate (default: 0); use 0.1 for more than about five epochs"
    )
    learning_rate: float | None = learning_rate_option("0.005")
    muon_rate: float | None = muon_rate_option("0.04")

    def __post_init__(self):
        super().__post_init__()
        if self.batch_tokens is not None and self.batch_tokens < self.length:
            raise OptionError(
                f"--batch-tokens {self.batch_tokens} is less than one window of {self.length} "
                "tokens; pass more, or a smaller --length"
            )
        recipe_of(self)

    def check_paths(self) -> None:
        """Raise DataError if there are no texts at `data`."""
        check_source(self.data)


def recipe_of(options: LanguageModelOptions) -> Recipe:
    """Return the recipe of a small GPT with the sizes of the options."""
    model = LanguageModelConfig(
        vocab_size=1,
        max_length=options.length,
        decoder=rms_stack(options.layers, options.embed_dim, options.heads, options.dropout),
        positions=options.positions,
        window=options.window,
        embedding_dropout_rate=options.dropout,
    )
    tokens = options.batch_tokens or 8 * options.length
    return Recipe(model, muon_schedule(options, epochs=10), tokens)
