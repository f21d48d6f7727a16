"""The device mesh and how batches are distributed over it."""
