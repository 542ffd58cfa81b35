"""The sending side of one NCCL connection: its queue pairs, receive buffer, steps and PSNs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rocev2.control import Announcement, announce
from rocev2.frames import Transport
from rocev2.opcodes import (
    ACKNOWLEDGE,
    WRITE_FIRST,
    WRITE_LAST,
    WRITE_LAST_IMM,
    WRITE_MIDDLE,
    WRITE_ONLY,
    WRITE_ONLY_IMM,
)
from rocev2.protocols import LL, SIMPLE, STEPS
from rocev2.psn import wrap
from rocev2.steps import ADAPTIVE_ROUTING_BYTES

_SIMPLE_OFFSET = 0x200000  # where the buffer of plain data begins, away from that of LL
_CONTROL_STRIDE = 0x100
_ACK = 0x1F  # AETH syndrome: ACK without credits


@dataclass(frozen=True, slots=True)
class Sent:
    """A packet and the connection's UDP source port."""

    packet: Transport
    udp_source: int


def to_lines(data: bytes, flag: int) -> bytes:
    """Return data as LL lines with a flag; the last line is filled up with zeros."""
    padded = np.frombuffer(data + bytes(-len(data) % LL.line_data), "<u4")
    lines = np.empty(2 * len(padded), "<u4")
    lines[0::2] = padded
    lines[1::2] = flag
    return lines.tobytes()


class Connection:
    """Data from a rank to its successor on one channel, and the control writes back."""

    def __init__(
        self,
        sender: int,
        channel: int,
        tag: int,
        mtu: int,
        first_psn: int,
        late_sizes: bool,
        split: bool,
        control: str,
    ) -> None:
        """Open a connection.

        Args:
            sender: rank of the sender of data.
            channel: its channel; queue pair numbers grow with it.
            tag: rank that control writes name.
            mtu: path MTU in bytes.
            first_psn: PSN of the first packet in both directions.
            late_sizes: whether large messages have no immediate and an empty message follows.
            split: whether every packet of a message without immediate is a message of its own.
            control: layout of control writes.
        """
        self.sender = sender
        self.tag = tag
        self.mtu = mtu
        self.data_qp = 0x1000 + 0x40 * sender + channel
        self.control_qp = 0x9000 + 0x40 * sender + channel
        self.udp_source = 49152 + 0x40 * sender + channel
        self.rkey = 0x200000 + 0x100 * sender + channel
        self.base = 0x7F0000000000 + 0x100000000 * sender + 0x1000000 * channel
        self.late_sizes = late_sizes
        self.split = split
        self._layout = control
        self._psn = self._control_psn = first_psn
        self._step = self._announced = 0

    def _take(self) -> int:
        psn, self._psn = self._psn, wrap(self._psn + 1)
        return psn

    def control(self) -> Sent:
        """Return the control write that announces the buffer of the next step."""
        slot = self.base + self._announced % STEPS * LL.slot_bytes
        self._announced += 1
        entry = announce(self._layout, Announcement(slot, LL.slot_bytes, self.rkey, self.tag, self._announced - 1))
        address = 0x7E0000000000 + (self._announced - 1) % STEPS * _CONTROL_STRIDE
        psn, self._control_psn = self._control_psn, wrap(self._control_psn + 1)
        packet = Transport(WRITE_ONLY, self.control_qp, psn, entry, address, 0x1234, len(entry), ack_requested=True)
        return Sent(packet, self.udp_source)

    def acknowledge_control(self) -> Sent:
        """Return the acknowledgement of the newest control write."""
        psn = wrap(self._control_psn - 1)
        packet = Transport(ACKNOWLEDGE, self.data_qp, psn, message_number=self._announced)
        return Sent(packet, self.udp_source)

    def acknowledge_data(self) -> Sent:
        """Return the acknowledgement of the newest data packet."""
        psn = wrap(self._psn - 1)
        packet = Transport(ACKNOWLEDGE, self.control_qp, psn, syndrome=_ACK, message_number=self._step)
        return Sent(packet, self.udp_source)

    def negative(self, psn: int) -> Sent:
        """Return the NAK that asks for packets from `psn` on again (PSN sequence error, syndrome 0x60)."""
        packet = Transport(ACKNOWLEDGE, self.control_qp, psn, syndrome=0x60, message_number=self._step)
        return Sent(packet, self.udp_source)

    def data(self, data: bytes) -> Iterator[tuple[Sent, tuple[int, int]]]:
        """Yield the packets of the next LL step, each with the range of data bytes that it carries."""
        lines = to_lines(data, self._step + 1)
        address = self.base + self._step % STEPS * LL.slot_bytes
        self._step += 1
        late = self.late_sizes and len(lines) > ADAPTIVE_ROUTING_BYTES
        ratio = LL.line_bytes // LL.line_data
        for packet, (low, high) in self._write(lines, address, late):
            yield Sent(packet, self.udp_source), (low // ratio, high // ratio)

    def plain(self, data: bytes) -> Iterator[tuple[Sent, tuple[int, int]]]:
        """Yield the packets of one plain (Simple) message, each with the range of bytes that it carries."""
        assert len(data) <= SIMPLE.slot_bytes
        for packet, span in self._write(data, self.base + _SIMPLE_OFFSET, False):
            yield Sent(packet, self.udp_source), span

    def _write(self, data: bytes, address: int, late: bool) -> Iterator[tuple[Transport, tuple[int, int]]]:
        size = len(data)
        starts = range(0, max(size, 1), self.mtu)
        for number, start in enumerate(starts):
            part = data[start : start + self.mtu]
            last = number == len(starts) - 1
            if late and self.split:
                opcode, at, length = WRITE_ONLY, address + start, len(part)
            elif len(starts) == 1:
                opcode, at, length = (WRITE_ONLY if late else WRITE_ONLY_IMM), address, size
            elif last:
                opcode, at, length = (WRITE_LAST if late else WRITE_LAST_IMM), 0, 0
            else:
                opcode, at, length = (WRITE_FIRST if number == 0 else WRITE_MIDDLE), address, size
            packet = Transport(
                opcode, self.data_qp, self._take(), part, at, self.rkey, length, size, ack_requested=last
            )
            yield packet, (start, start + len(part))
        if late:
            yield Transport(WRITE_ONLY_IMM, self.data_qp, self._take(), immediate=size, ack_requested=True), (0, 0)
