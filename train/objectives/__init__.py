"""Losses and batches, one module per task."""
