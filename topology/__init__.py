"""Testbed runs of a job on a fabric (in-process simulation or Mininet), their report, and the acceptance test."""
