"""Flax NNX layers and stacks: encoder, decoder, embeddings and the key/value cache."""
