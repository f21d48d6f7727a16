"""Claims that texts about transformers make, measured; run as `python -m bench.claims`."""
