"""Data sets, their readers and their splits."""
