"""The settings of the optimizer. Reading them imports neither JAX nor optax."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """Factors of the learning rate, and so of weight decay; by default all parameters have 1."""

    layer_decay: float = 1.0  # place p has the factor layer_decay ** (L + 1 - p)
    head: float = 1.0  # factor of the head
    unfreeze: float = 0.0  # fraction of all steps: place p is frozen for L + 1 - p times as many
    frozen: tuple[str, ...] = ()  # name prefixes of parameters that are never updated
    faster: tuple[tuple[str, float], ...] = ()  # ((prefix of a parameter's name, factor), ...)

    def __post_init__(self):
        if not 0.0 < self.layer_decay <= 1.0:
            raise ValueError(f"layer_decay must be above 0, at most 1; got {self.layer_decay}")
        if not 0.0 <= self.unfreeze < 1.0:
            raise ValueError(f"unfreeze must be in [0, 1); got {self.unfreeze}")


@dataclass(frozen=True)
class OptimizerConfig:
    """The settings of AdamW and Muon.

    AdamW: Loshchilov and Hutter, 2019, https://arxiv.org/abs/1711.05101.

    Muon: Jordan et al., 2024, https://kellerjordan.github.io/posts/muon. It orthogonalizes the
    momentum of each layer matrix. All other parameters are then updated by AdamW with Nesterov
    momentum, as in optax.
    """

    learning_rate: float = 1e-3
    schedule: str = "cosine"  # "cosine" falls to zero at the last step, "constant" stays the same
    warmup_fraction: float = 0.1  # fraction of all steps with a linear warm-up from zero
    weight_decay: float = 0.01
    decay_everything: bool = False  # False: kernels only; not embeddings, norms or biases
    clip_norm: float | None = 1.0  # maximum global norm of the gradient; None: no clipping
    b1: float = 0.9
    b2: float = 0.999
    epsilon: float = 1e-8
    rates: Rates = Rates()  # learning-rate factors of single parameters
    muon_rate: float = 0.0  # peak Muon learning rate for layer kernels; 0: AdamW only

    def __post_init__(self):
        if self.schedule not in ("cosine", "constant"):
            raise ValueError(f"schedule must be cosine or constant; got {self.schedule!r}")
        if self.muon_rate < 0:
            raise ValueError(f"muon_rate must be 0 or more; got {self.muon_rate}")
        if self.muon_rate and self.rates != Rates():
            raise ValueError("rates apply to AdamW only: leave them out, or set muon_rate to 0")
