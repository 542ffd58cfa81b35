"""A peer that does what a test says: builds segments by relative positions and reads the endpoint's."""

from __future__ import annotations

from typing import Any

from nccl_emu.tcp import Segment, TcpConfig, TcpEndpoint, TcpFlags, TcpState, seq_add, seq_diff

SYN, ACK, FIN, RST, PSH = TcpFlags.SYN, TcpFlags.ACK, TcpFlags.FIN, TcpFlags.RST, TcpFlags.PSH
ISN, IRS = 0xFFFFFF00, 0xFFFFFFF0  # both streams wrap within their first few hundred bytes


class Peer:
    """The other side of `endpoint`. Positions: 0 is a SYN, 1 the first byte."""

    def __init__(self, config: TcpConfig | None = None, *, remote_port: int | None = 2000) -> None:
        self.endpoint = TcpEndpoint(config or TcpConfig(mss=1000, rto_min=0.2), 1000, remote_port, ISN)
        self.window = 60_000

    def send(
        self, flags: TcpFlags, position: int, ack: int, payload: bytes = b"", *, now: float, **fields: Any
    ) -> None:
        """Give the endpoint a segment of ours."""
        fields.setdefault("window", self.window)
        number = seq_add(ISN, ack) if TcpFlags.ACK in flags else 0
        segment = Segment(2000, 1000, seq_add(IRS, position), number, flags, payload=payload, **fields)
        self.endpoint.on_segment(segment, now)

    def ack(self, ack: int, *, now: float, position: int = 1, **fields: Any) -> None:
        """Give the endpoint a bare ACK."""
        self.send(ACK, position, ack, now=now, **fields)

    def take(self, now: float) -> list[tuple[str, int, int, int]]:
        """Return the endpoint's output as (flags, position, length of payload, acknowledged position)."""
        return [describe(segment) for segment in self.endpoint.take_output(now)]

    def connect(self, *, mss: int | None = 1000, window_scale: int | None = None, now: float = 0.0) -> None:
        """Complete the handshake, the endpoint being the active opener."""
        self.endpoint.open(now)
        assert self.take(now) == [("S", 0, 0, 0)]
        self.send(SYN | ACK, 0, 1, now=now, mss=mss, window_scale=window_scale)
        assert self.take(now) == [("A", 1, 0, 1)]
        assert self.endpoint.state is TcpState.ESTABLISHED


def describe(segment: Segment) -> tuple[str, int, int, int]:
    """Return (flags without PSH, position, length of payload, acknowledged position or 0)."""
    letters = {SYN: "S", FIN: "F", RST: "R", ACK: "A"}
    flags = "".join(letter for flag, letter in letters.items() if flag in segment.flags)
    ack = seq_diff(segment.ack, IRS) if ACK in segment.flags else 0
    return flags, seq_diff(segment.seq, ISN), len(segment.payload), ack
