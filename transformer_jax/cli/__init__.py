"""The commands of `python -m transformer_jax`, one module each.

The docstring of a module is its help text, `add_arguments` declares its options and `run` runs it.
"""
