"""The model families, one module each, with their configurations and tensor names."""
