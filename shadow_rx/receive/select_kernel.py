"""Takes the segments out of a batch in which nothing else is. Compiled (`packets.compiled`)."""
# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import numpy as np

from packets.compiled import jit
from packets.headers import Checksum, Kind

_TCP, _OK = int(Kind.TCP), int(Checksum.OK)
_SYN, _RST = 0x02, 0x04
_MASK = (1 << 32) - 1


@jit
def take_all(rows, mac, ip, base_port, source_of_port, starts, lengths, sequences, flows, source_ports):
    """Fill the last five arrays (see `ReplicaFilter.select`), or return False: a row is not simply a good replica."""
    for index in range(len(rows)):
        row = rows[index]
        port = np.int64(row.destination_port)
        source = source_of_port[port]
        if (
            row.ethernet_destination != mac or row.kind != _TCP or row.ip_version != 4 or row.destination_low != ip
            or row.ip_checksum != _OK or row.checksum != _OK or row.flags & _RST or source == 0
            or row.source_low != source
        ):  # fmt: skip
            return False
        starts[index], lengths[index] = row.payload, row.payload_length
        sequences[index] = (np.int64(row.seq) + (1 if row.flags & _SYN else 0)) & _MASK
        flows[index], source_ports[index] = port - base_port, row.source_port
    return True
