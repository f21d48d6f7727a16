"""Markdown pages, tables and figures made from result files."""
