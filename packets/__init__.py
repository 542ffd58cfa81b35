"""Packets in batches, and one decoder of their headers: link type to TCP segment or RoCEv2 transport header.

`packets.batch` is the form in which capture sources return packets, `packets.headers` the result of decoding them.
Decoding runs compiled (`packets.kernels`) or, without numba or for little data, as plain Python (`packets.reference`);
`packets.compiled` chooses.
"""
