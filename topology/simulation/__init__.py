"""Seeded simulation of links, ranks and switches on one virtual clock."""
