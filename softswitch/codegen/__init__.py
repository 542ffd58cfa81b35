"""Turns a `Program` into the source text of one Python module that processes packets.

The generated functions keep every header field, validity bit and metadata field in a local integer; there is no object
per packet or header and no walk over the program per packet. Headers are read and written as runs of big-endian words
of 1, 2, 4 or 8 bytes, so only 128-bit fields need more than 64 bits, and a JIT could compile the functions.
"""
