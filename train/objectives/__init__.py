"""Losses and batches, one module a task."""
