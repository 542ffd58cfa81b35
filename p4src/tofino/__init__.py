"""Compiling the data plane for Tofino with p4c's open backend, and checking the result."""
