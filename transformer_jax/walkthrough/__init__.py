"""Attention computed step by step, and the worked examples of the textbooks."""
