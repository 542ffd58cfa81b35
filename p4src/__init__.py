"""The data plane: P4_16 sources, their compiled artifacts, and the names and constants that Python shares with them."""
