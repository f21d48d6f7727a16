"""The benchmarks that `pytest --benchmark-only` runs.

To add one, write `test_NAME.py` here, and its title in `TITLES` of `bench.pages.benchmarks`.
"""
