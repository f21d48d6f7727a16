"""Run folders and the typed JSON in them."""
