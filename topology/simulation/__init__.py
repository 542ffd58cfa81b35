"""Seeded simulation: links, ranks and switch on one virtual clock."""
