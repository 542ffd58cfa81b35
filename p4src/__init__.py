"""The data plane: P4_16 sources, compiled artifacts, and the names and constants shared with Python."""
