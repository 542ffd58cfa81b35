"""Where a testbed runs: in this process, or in Mininet."""
