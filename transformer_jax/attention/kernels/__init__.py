"""The implementations of attention and the function that chooses between them."""
