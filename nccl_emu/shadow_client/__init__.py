"""What a rank tells its shadow nodes, and what it restores from them."""
