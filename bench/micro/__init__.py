"""The benchmarks that `pytest --benchmark-only` runs."""
