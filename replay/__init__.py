"""Captures of gradient traffic, replayed: what they hold, and what follows from it."""
