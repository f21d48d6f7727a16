"""Recipes and command-line options of the training programs."""
