"""Single frames, read as the decoder reads batches."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from packets.batch import PacketBatch
from packets.decode import decode
from rocev2.headers import Verdict, read


class RoceFrame(NamedTuple):
    """One RoCEv2 packet with a right iCRC."""

    source: bytes
    destination: bytes
    udp_source: int
    opcode: int
    dest_qp: int
    psn: int
    address: int
    length: int
    immediate: int
    syndrome: int
    payload: bytes


def parse(data: bytes, original_length: int) -> RoceFrame | Verdict:
    """Return what a frame is, or why it is not used."""
    batch = PacketBatch.of([data], 1, [original_length])
    headers = decode(batch, verify=False)
    (header,), (frame,) = headers, read(batch, headers, np.zeros(1, np.int64))
    if frame["verdict"] != Verdict.GOOD:
        return Verdict(int(frame["verdict"]))
    network, width = int(header["network"]), 4 if header["ip_version"] == 4 else 16
    source = network + (12 if width == 4 else 8)
    fields = int(header["source_port"]), int(frame["opcode"]), int(header["dest_qp"])
    rest = (int(frame[name]) for name in ("psn", "address", "length", "immediate", "syndrome"))
    begin, size = int(frame["payload"]), int(frame["size"])
    ends = data[source : source + width], data[source + width : source + 2 * width]
    return RoceFrame(*ends, *fields, *rest, data[begin : begin + size])
