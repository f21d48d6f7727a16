"""Counts of parameters, FLOPs and bytes of a model, and power laws fitted to measurements."""
