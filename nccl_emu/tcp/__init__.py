"""TCP of an emulated rank as pure objects; `TcpEndpoint` is the door."""

from __future__ import annotations

from nccl_emu.tcp.config import TcpConfig
from nccl_emu.tcp.endpoint import TcpEndpoint
from nccl_emu.tcp.errors import TcpError, TcpErrorKind
from nccl_emu.tcp.segment import Segment, TcpFlags, reset_reply
from nccl_emu.tcp.seqnum import seq_add, seq_diff
from nccl_emu.tcp.stats import TcpStats
from nccl_emu.tcp.tcb import TcpState

__all__ = [
    "Segment",
    "TcpConfig",
    "TcpEndpoint",
    "TcpError",
    "TcpErrorKind",
    "TcpFlags",
    "TcpState",
    "TcpStats",
    "reset_reply",
    "seq_add",
    "seq_diff",
]
