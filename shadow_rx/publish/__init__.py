"""Recovery points in memory, and their way to storage."""
