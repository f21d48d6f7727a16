"""The settings of a training run. Reading them imports neither JAX nor optax."""

from dataclasses import dataclass

from train.optim.config import OptimizerConfig


@dataclass(frozen=True)
class FitConfig:
    """The settings of a training run: its length, precision, averaging and optimizer."""

    epochs: int = 10
    max_steps: int | None = None  # stops earlier; the learning-rate schedule ends there too
    seed: int = 0
    dtype: str = "float32"  # of activations and matrix products; parameters stay float32
    remat: bool = False  # compute each layer again in the backward pass, to keep less for it
    accumulate: int = 1  # number of microbatches, one after the other, whose gradients are added
    average_decay: float = 0.999
    checkpoint_minutes: float = 5.0  # between checkpoints; also at every best validation score
    optimizer: OptimizerConfig = OptimizerConfig()

    def __post_init__(self):
        if self.accumulate < 1:
            raise ValueError(f"accumulate must be at least 1; got {self.accumulate}")
        if not 0 <= self.average_decay < 1:
            raise ValueError(f"average_decay must be in [0, 1); got {self.average_decay}")
