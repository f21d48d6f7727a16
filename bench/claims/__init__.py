"""Measurements of claims that texts about transformers make: `python -m bench.claims` writes
docs/research/claims.md.
"""
