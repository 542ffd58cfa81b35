"""Puts bytes of streams where they belong, by their position."""
