"""A switch port on a network interface."""

from __future__ import annotations

import errno
from dataclasses import dataclass

from capture.frame_socket import FrameSocket
from softswitch.errors import ErrorKind, SwitchError

_BUFFER_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class PortStats:
    """Counters of a port."""

    received: int = 0
    """Frames received."""
    sent: int = 0
    """Frames sent."""
    send_failures: int = 0
    """Frames that the interface did not accept (down, full, or too long for its MTU)."""


class EthernetPort:
    """An interface as a port of the switch; promiscuous while open."""

    def __init__(self, number: int, interface: str) -> None:
        """Open `interface` as port `number` of the program.

        Raises:
            SwitchError: NOT_FOUND if there is no such interface, PERMISSION_DENIED without CAP_NET_RAW.
        """
        self.number = number
        """Port number in the program."""
        self.interface = interface
        """Name of the interface."""
        self.stats = PortStats()
        """Frames and failures so far."""
        place = f"port {number} ({interface})"
        try:
            self.socket = FrameSocket(interface, _BUFFER_BYTES)
            """Where frames come from; counts those that it drops."""
        except PermissionError as error:
            what = "raw sockets are not allowed; run as root or with CAP_NET_RAW"
            raise SwitchError(ErrorKind.PERMISSION_DENIED, what, place) from error
        except OSError as error:
            what = "" if error.errno == errno.ENODEV else "cannot be opened: "
            raise SwitchError(ErrorKind.NOT_FOUND, f"{what}{error.strerror}", place) from error

    def receive(self, limit: int) -> list[bytes]:
        """Return up to `limit` waiting frames; see `FrameSocket.receive`."""
        frames = self.socket.receive(limit)
        self.stats.received += len(frames)
        return frames

    def send(self, frame: bytes) -> OSError | None:
        """Send a frame; return why the interface did not accept it, None if it did."""
        try:
            self.socket.send(frame)
        except OSError as error:
            self.stats.send_failures += 1
            return error
        self.stats.sent += 1
        return None
