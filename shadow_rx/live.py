"""Capture of replicas from network interfaces, in a thread that feeds the node in batches."""

from __future__ import annotations

import ctypes
import os
import select
import socket
import struct
from collections.abc import Callable, Sequence

import scapy.layers.l2  # noqa: F401 - tells the socket what Ethernet is
from scapy.arch.linux import L2ListenSocket

from jobspec.supervised import SupervisedThread, Told
from shadow_rx.health import Part
from shadow_rx.node import ShadowNode

RECEIVE_BUFFER_BYTES = 64 << 20
"""Socket buffer: what arrives while an optimizer step is applied waits here."""
_BATCH = 256
"""Most frames of an interface that are handed to the node at a time, before it is another one's turn."""
_SO_RCVBUFFORCE = 33
"""Of asm-generic/socket.h: SO_RCVBUF beyond net.core.rmem_max, for CAP_NET_ADMIN."""
_SO_ATTACH_FILTER = 26
_TAKE_NOTHING = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A socket filter (linux/filter.h) of one instruction: return 0 bytes of each packet."""
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
"""packet(7): frames seen and dropped since the option was last read."""


class LiveCapture:
    """Captures until it is stopped, from one interface or from several.

    A packet socket sees frames before the kernel's own IP, so the replica address needs not belong to the
    node (it must not, or the kernel would answer each replica with a reset).

    A node that is attached to a switch and to its standby captures on both: a replica has its position in it, so it
    does not matter which way it came, nor in which order.

    Attributes:
        error: which interfaces were given up by and by and why (they vanished or were set down), None while none was.
    """

    def __init__(self, node: ShadowNode, interfaces: Sequence[str], on_death: Told | None = None) -> None:
        """Open a promiscuous packet socket on each interface; frames that arrive from now on are captured.

        Args:
            node: is fed, in a thread of its own.
            interfaces: their names.
            on_death: told where the thread ends by what nobody expected.

        Raises:
            OSError: no such interface, or no permission (CAP_NET_RAW).
        """
        self._node = node
        self._sockets: dict[int, L2ListenSocket] = {}
        self._names: dict[int, str] = {}
        try:
            for interface in interfaces:
                self._open(interface)
        except BaseException:
            self._close_sockets()
            raise
        self._sockets_left = set(self._sockets)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = SupervisedThread("capture", self._run, on_death)
        self.error: str | None = None

    def start(self) -> None:
        """Start to feed the node."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over what was captured so far, then stop; also before `start`."""
        os.write(self._wake_write, b"x")
        self._thread.join()
        self._close_sockets()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def part(self) -> Part:
        """Return how it is."""
        return Part("capture", self._thread.trouble or self.error)

    def _open(self, interface: str) -> None:
        wire = L2ListenSocket(iface=interface, promisc=True)
        descriptor = wire.ins.fileno()
        self._sockets[descriptor], self._names[descriptor] = wire, interface
        try:
            wire.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except PermissionError:
            wire.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        wire.ins.setblocking(False)

    def _close_sockets(self) -> None:
        for wire in self._sockets.values():
            wire.close()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in self._sockets:
            poll.register(descriptor, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        while self._sockets_left:
            ready = {descriptor for descriptor, _ in poll.poll()}
            if self._wake_read in ready:
                break
            # One batch of each, so that one that is flooded does not keep out the others.
            for descriptor in sorted(ready):
                if self._try(descriptor, self._take_batch) is None:
                    poll.unregister(descriptor)
        # What came before `stop` is handed over too; nothing more comes in, so that it ends.
        for descriptor in sorted(self._sockets_left):
            self._try(descriptor, _take_no_more)
            while self._try(descriptor, self._take_batch):
                continue

    def _try(self, descriptor: int, action: Callable[[L2ListenSocket], int]) -> int | None:
        """Return what `action` does with a socket; give the socket up, and return None, where it fails."""
        try:
            return action(self._sockets[descriptor])
        except OSError as error:
            self._sockets_left.discard(descriptor)
            trouble = f"interface {self._names[descriptor]}: {error}"
            self.error = f"{self.error}; {trouble}" if self.error else trouble
            return None

    def _take_batch(self, wire: L2ListenSocket) -> int:
        """Hand at most one batch to the node; return how many frames were read."""
        frames: list[bytes] = []
        read = 0
        while read < _BATCH:
            try:
                _, frame, _ = wire.recv_raw()
            except BlockingIOError:
                break
            read += 1
            if frame:
                frames.append(frame)
        if frames:
            self._node.on_frames(frames)
        # Frames that the kernel dropped since the last call, for want of buffer space.
        dropped = int(struct.unpack("II", wire.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8))[1])
        if dropped:
            self._node.count_kernel_drops(dropped)
        return read


def _take_no_more(wire: L2ListenSocket) -> int:
    """Have the kernel keep further frames from a socket; what is in its buffer stays."""
    code = ctypes.create_string_buffer(_TAKE_NOTHING)
    wire.ins.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("HP", 1, ctypes.addressof(code)))
    return 0
