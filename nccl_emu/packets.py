"""The packet codec, which lives in `jobspec.packets`."""

from __future__ import annotations

from jobspec.packets import FrameTemplate, PacketError, ParsedFrame, parse_frame

__all__ = ["FrameTemplate", "PacketError", "ParsedFrame", "parse_frame"]
