"""The program that a switch must run: the committed artifacts, and the cookie that identifies them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from finsy import P4Schema
from finsy.proto import p4i, p4r
from google.protobuf import text_format

from p4src.artifacts import device_config, p4info_text


class PipelineStatus(StrEnum):
    """Which program a switch runs."""

    CURRENT = "current"
    """This version's program."""
    OTHER = "other"
    """Another program, or another version of it."""
    MISSING = "missing"
    """Nothing yet."""


@dataclass(frozen=True)
class Pipeline:
    """A compiled program in P4Runtime form."""

    p4info: p4i.P4Info
    """Tables, actions and other entities of the program."""
    device_config: bytes
    """BMv2 JSON."""

    @classmethod
    def committed(cls) -> Pipeline:
        """Return the program of this version of Checkmate."""
        return cls(text_format.Parse(p4info_text(), p4i.P4Info()), device_config())

    @cached_property
    def cookie(self) -> int:
        """The first 64 bits of SHA-256 over P4Info and device config: equal cookies mean the same program."""
        digest = hashlib.sha256(self.p4info.SerializeToString(deterministic=True))
        digest.update(b"\0" + self.device_config)
        return int.from_bytes(digest.digest()[:8], "big")

    @cached_property
    def schema(self) -> P4Schema:
        """The P4Info as a schema for encoding and decoding entities."""
        return P4Schema(self.p4info)

    def config(self) -> p4r.ForwardingPipelineConfig:
        """Return the message that is pushed to a switch."""
        return p4r.ForwardingPipelineConfig(
            p4info=self.p4info,
            p4_device_config=self.device_config,
            cookie=p4r.ForwardingPipelineConfig.Cookie(cookie=self.cookie),
        )

    def status_of(self, config: p4r.ForwardingPipelineConfig | None) -> PipelineStatus:
        """Return which program a switch runs, from the config (at least its cookie) that it reports; None if none."""
        if config is None:
            return PipelineStatus.MISSING
        same = config.HasField("cookie") and config.cookie.cookie == self.cookie
        return PipelineStatus.CURRENT if same else PipelineStatus.OTHER
