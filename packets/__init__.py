"""Packets in batches, and one decoder of their headers: link type to TCP segment or RoCEv2 transport header.

`packets.batch` says how a capture source hands over packets, `packets.headers` what is known of each once it is
decoded. Decoding runs compiled (`packets.kernels`) or, without numba or for little data, as plain Python
(`packets.reference`); `packets.compiled` chooses.
"""
