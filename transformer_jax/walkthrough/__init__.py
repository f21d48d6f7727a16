"""Attention computed step by step, and worked examples from textbooks."""
