"""One file a command of `python -m transformer_jax`: its docstring is its help, `add_arguments` and
`run` the rest.
"""
