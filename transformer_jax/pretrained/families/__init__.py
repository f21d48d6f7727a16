"""One module a model family: its configuration and its parameter names."""
