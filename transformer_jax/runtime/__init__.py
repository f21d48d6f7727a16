"""Error types, file handling and memory settings that every layer may use."""
