"""The model families, one module each, with their configurations and tensor names.

To add a family, write `NAME.py` here with the attributes of `pretrained.family.Family`: every
module of this package is a family.
"""
