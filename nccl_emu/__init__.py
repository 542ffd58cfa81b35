"""Emulated ranks: ring all-reduce over TCP connections that the ranks speak themselves."""
