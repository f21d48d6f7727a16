"""Options, stack and schedule shared by the recipes of `train.lm`, `.mlm` and `.translate`."""

from typing import Any

from train.optim.config import OptimizerConfig
from train.trainer.config import FitConfig
from train.trainer.options import ABOVE_0, NOT_NEGATIVE, CommonOptions, chosen, option
from transformer_jax.nn.config import StackConfig


def learning_rate_option(default: str) -> Any:
    """Return the option of the peak learning rate of AdamW."""
    return option(None, "R", f"peak learning rate of AdamW (default: {default})", must=ABOVE_0)


def muon_rate_option(default: str) -> Any:
    """Return the option of the peak learning rate of Muon, which updates the layers' matrices."""
    what = "peak learning rate of Muon for layer weights; 0: AdamW only"
    return option(None, "R", f"{what} (default: {default})", must=NOT_NEGATIVE)


def rms_stack(layers: int, embed_dim: int, heads: int, dropout: float, **more: Any) -> StackConfig:
    """Return a stack that is cheap on a CPU at no loss of quality: RMS norm, relu, no biases."""
    return StackConfig(
        num_layers=layers,
        embed_dim=embed_dim,
        num_heads=heads,
        hidden_dim=4 * embed_dim,
        norm="pre",
        final_norm=True,
        norm_kind="rms",
        biases=False,
        activation="relu",
        dropout_rate=dropout,
        attention_dropout_rate=0.0,
        **more,
    )


def muon_schedule(options: CommonOptions, epochs: int) -> FitConfig:
    """Return the training schedule for an `rms_stack`, with the options of the command line."""
    optimizer = OptimizerConfig(
        learning_rate=chosen(options.learning_rate, 5e-3),
        muon_rate=chosen(options.muon_rate, 0.04),
        warmup_fraction=0.05,
        weight_decay=0.1,
        b2=0.99,
    )
    return options.fit_config(FitConfig(epochs, average_decay=0.99, optimizer=optimizer))
