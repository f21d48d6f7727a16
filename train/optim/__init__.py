"""Optimizers, parameter groups, learning rates and precision."""
