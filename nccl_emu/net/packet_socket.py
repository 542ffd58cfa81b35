"""Raw frames of one network interface, with a queue of those that the kernel has no room for yet."""

from __future__ import annotations

import errno
from collections import deque
from collections.abc import Iterable

from capture.frame_socket import FrameSocket
from nccl_emu.errors import LinkError

BUFFER_BYTES = 32 << 20
"""Kernel buffer for each direction: the usual 212 kB lose what arrives while a step is computed."""
_BURST = 256


class PacketSocket:
    """Non-blocking; frames that do not fit into the kernel's buffer wait here."""

    def __init__(self, interface: str) -> None:
        """Open the interface in promiscuous mode (the rank's MAC address need not be the interface's).

        Raises:
            LinkError: no such interface, or no permission.
        """
        try:
            self._socket = FrameSocket(interface, BUFFER_BYTES)
        except OSError as error:
            message = f"interface {interface} cannot be opened for raw frames: {error}"
            raise LinkError("interface", message) from error
        self.interface = interface
        """Its name."""
        self.lost_sends = 0
        """Frames that the kernel had no room for; TCP sends their bytes again."""
        self._waiting: deque[bytes] = deque()

    def fileno(self) -> int:
        """Return the descriptor, for ``select``."""
        return self._socket.fileno()

    @property
    def waiting(self) -> bool:
        """Whether frames wait for the socket to become writable."""
        return bool(self._waiting)

    def receive(self) -> list[bytes]:
        """Return the frames that have arrived, at most a burst; none where none have.

        Raises:
            LinkError: the interface is gone or down.
        """
        try:
            return self._socket.receive(_BURST)
        except OSError as error:
            raise self._failed("receive", error) from error

    def send(self, frames: Iterable[bytes]) -> None:
        """Send frames, or keep them until `flush` where the kernel's buffer is full.

        Raises:
            LinkError: the interface is gone or down, or a frame is larger than its MTU.
        """
        self._waiting.extend(frames)
        self.flush()

    def flush(self) -> None:
        """Send the frames that wait; see `send`."""
        while self._waiting:
            try:
                self._socket.send(self._waiting[0])
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise self._failed("send", error) from error
                self.lost_sends += 1
            self._waiting.popleft()

    def forget_waiting(self) -> None:
        """Drop the frames that wait."""
        self._waiting.clear()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def _failed(self, what: str, error: OSError) -> LinkError:
        hint = ": a frame is larger than the MTU, raise it" if error.errno == errno.EMSGSIZE else ""
        return LinkError("interface", f"interface {self.interface} does not {what}: {error}{hint}")
