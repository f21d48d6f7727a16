"""Explanations of predictions: attributions, activations and attention patterns."""
