"""Fabrics that a job runs on (in-process simulation, Mininet), impairments, and the testbed run with its report."""
