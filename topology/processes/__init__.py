"""Processes that a testbed starts and supervises."""
