"""Parameter groups of the optimizer: seven groups, determined by a parameter's name.

    group       weight decay   Muon   parameters
    table                             a row for each token, position or segment
    matrix      yes            yes    the kernels of the encoder's and decoder's layers
    kernel      yes                   the kernels before and after them: projections, poolers
    head        yes                   the kernel that gives the logits
    scale                             the factors of norms
    bias                              the biases of kernels, norms and features
    factor                            A and B of LoRA, for a kernel

Weight decay applies to kernels, whose size other parameters can compensate. A table's row is used
only where its token occurs, so it would decay without being trained. Muon applies to the kernels
inside the layers (Jordan et al., 2024, https://kellerjordan.github.io/posts/muon). The optimizers'
own rules, which go by the number of axes, would include tables and leave out attention.
"""

from flax import nnx

from transformer_jax.parallel.axes import named_parameters

DECAYED = ("matrix", "kernel", "head")


def param_groups(model: nnx.Module) -> dict[str, str]:
    """Return the group of every parameter of a model, by its dotted name."""
    return {name: group_of(name) for name, _ in named_parameters(nnx.state(model, nnx.Param))}


def group_of(name: str) -> str:
    """Return the group of a parameter, given its dotted name.

    Raises ValueError for a name that no rule covers.
    """
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
    raise ValueError(f"{name}: no group for this name; rename the parameter or add a rule here")
