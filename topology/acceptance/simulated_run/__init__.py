"""One acceptance run in the seeded simulation."""
