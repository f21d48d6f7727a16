"""The claims that texts about transformers make, each measured: `python -m bench.claims` writes
docs/research/claims.md.
"""
