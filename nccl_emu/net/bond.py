"""Several interfaces as one: frames leave by the first whose carrier is up, as with active-backup bonding.

A rank that is attached to a switch and to its standby goes on through the standby when the switch's port loses its
carrier. The kernel tells of that at once (rtnetlink(7), RTMGRP_LINK), so nothing is polled.
"""

from __future__ import annotations

import fcntl
import socket
import struct
from collections.abc import Iterable, Sequence

from nccl_emu.errors import LinkError
from nccl_emu.net.packet_socket import PacketSocket

_SIOCGIFFLAGS = 0x8913  # netdevice(7)
_IFF_RUNNING = 0x40
_RTMGRP_LINK = 1  # rtnetlink(7)
_IFREQ = struct.Struct("16sH14x")


class CarrierWatch:
    """Tells whether interfaces have a carrier, and when that may have changed."""

    def __init__(self) -> None:
        """Listen to the kernel's notices of this network namespace."""
        self._notices = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
        self._notices.setblocking(False)
        self._notices.bind((0, _RTMGRP_LINK))

    def fileno(self) -> int:
        """Return the descriptor that is readable when something has changed."""
        return self._notices.fileno()

    def changed(self) -> bool:
        """Return whether anything may have changed since the last call."""
        found = False
        while True:
            try:
                self._notices.recv(1 << 16)
            except BlockingIOError:
                return found
            except OSError:
                pass  # ENOBUFS: notices were lost, which is a reason to look too
            found = True

    def has_carrier(self, interface: str) -> bool:
        """Return whether `interface` is there, up, and has a carrier."""
        request = _IFREQ.pack(interface.encode(), 0)
        try:
            answer = fcntl.ioctl(self._notices, _SIOCGIFFLAGS, request)
        except OSError:
            return False
        return bool(_IFREQ.unpack(answer)[1] & _IFF_RUNNING)

    def close(self) -> None:
        """Stop listening."""
        self._notices.close()


class Bond:
    """Non-blocking raw frames over one interface, or over the best of several.

    Frames are taken from all of them: while two hosts change over one after the other, what the other has sent by the
    new way already is as good as any. A frame reaches a host by one way only, so none arrives twice.

    Attributes:
        active: name of the interface that frames leave by.
    """

    def __init__(self, interfaces: Sequence[str]) -> None:
        """Open the interfaces, the preferred one first.

        Raises:
            LinkError: one of them cannot be opened.
        """
        self._sockets: dict[str, PacketSocket] = {}
        # One interface has nothing to change over to: its state is its error.
        self._watch = CarrierWatch() if len(interfaces) > 1 else None
        try:
            for interface in interfaces:
                self._sockets[interface] = PacketSocket(interface)
        except BaseException:
            self.close()
            raise
        self.active = interfaces[0]
        self._choose()

    def readers(self) -> list[int]:
        """Return the descriptors to wait for, for ``select``."""
        watch = [self._watch.fileno()] if self._watch is not None else []
        return [*(wire.fileno() for wire in self._sockets.values()), *watch]

    def writers(self) -> list[int]:
        """Return the descriptors that frames wait for."""
        wire = self._sockets[self.active]
        return [wire.fileno()] if wire.waiting else []

    def receive(self) -> list[bytes]:
        """Return the frames that have arrived.

        Raises:
            LinkError: an interface fails although it has a carrier, or the only one fails.
        """
        if self._watch is not None and self._watch.changed():
            self._choose()
        frames: list[bytes] = []
        for wire in self._sockets.values():
            try:
                frames += wire.receive()
            except LinkError:
                if not self._is_excused(wire):
                    raise
        return frames

    def send(self, frames: Iterable[bytes]) -> None:
        """Send frames; those that an interface without a carrier does not take are lost: TCP sends their bytes again.

        Raises:
            LinkError: as in `receive`; or a frame is larger than the MTU.
        """
        wire = self._sockets[self.active]
        try:
            wire.send(frames)
        except LinkError:
            if not self._is_excused(wire):
                raise

    def close(self) -> None:
        """Close everything."""
        for wire in self._sockets.values():
            wire.close()
        if self._watch is not None:
            self._watch.close()

    def _is_excused(self, wire: PacketSocket) -> bool:
        """Whether a failure of `wire` is its lost carrier's, for which there are the others."""
        if self._watch is None or self._watch.has_carrier(wire.interface):
            return False
        wire.forget_waiting()
        self._choose()
        return True

    def _choose(self) -> None:
        """Take the first interface with a carrier; where none has one, stay: one will come, or patience will end."""
        if self._watch is None:
            return
        best = next((name for name in self._sockets if self._watch.has_carrier(name)), self.active)
        if best != self.active:
            self._sockets[self.active].forget_waiting()
            self.active = best
