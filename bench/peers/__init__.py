"""Implementations and models that are compared with this library."""
