"""Logs of a shadow node: events, accesses, and the side channel's messages."""
