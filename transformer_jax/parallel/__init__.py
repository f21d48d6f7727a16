"""The device mesh: where parameters and batches lie on it, and the processes that share it."""
