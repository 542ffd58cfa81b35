"""The HTML report and the tables of a testbed run."""
