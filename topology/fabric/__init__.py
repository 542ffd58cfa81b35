"""The fabrics of a testbed run: in-process simulation and Mininet."""
