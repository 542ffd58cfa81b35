"""Durable state: base snapshots and a log of reduced gradients in a directory or an object store, and recovery."""
