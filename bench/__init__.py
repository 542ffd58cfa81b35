"""Benchmarks: `make bench` runs those that `bench.run` lists."""
