"""Surfaces that fail in every way, for the test of the runner."""
