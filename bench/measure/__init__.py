"""Timing, memory measurement and records of the machine."""
