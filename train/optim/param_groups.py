"""What each parameter is to the optimizer: seven groups, told by a parameter's name.

    group       weight decay   Muon   what is in it
    table                             a row for each token, position or segment
    matrix      yes            yes    the kernels of the encoder's and decoder's layers
    kernel      yes                   the kernels before and behind them: projections, poolers
    head        yes                   the kernel that gives the logits
    scale                             the factors of norms
    bias                              what is added: the biases of kernels, norms and features
    factor                            A and B beside a kernel, of LoRA

Decay pulls at what a product can undo; a table's row is only met where its token is. Muon takes
what multiplies inside the layers (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon):
the optimizers' own rules, which go by the number of axes, would take tables and leave out
attention.
"""

from flax import nnx

from transformer_jax.nn.parameters import named_parameters

DECAYED = ("matrix", "kernel", "head")


def param_groups(model: nnx.Module) -> dict[str, str]:
    """The group of every parameter of a model, by its dotted name."""
    return {name: group_of(name) for name, _ in named_parameters(nnx.state(model, nnx.Param))}


def group_of(name: str) -> str:
    """Of a parameter, by its dotted name. Raises ValueError for one that no rule knows."""
    *places, last = name.split(".")
    if last == "embedding" or (places[-1:] == ["evidence"] and last in ("weight", "square")):
        return "table"
    if last.endswith("kernel"):
        return "matrix" if "layers" in places else "head" if places[-1:] == ["head"] else "kernel"
    if last == "scale":
        return "scale"
    if last.endswith("bias"):
        return "bias"
    if places and places[-1].endswith("kernel"):
        return "factor"
    raise ValueError(f"{name}: no group for it; name it as its kind, or give it a rule here")
