"""Metrics, the linear baseline and reports."""
