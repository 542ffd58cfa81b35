"""Capture of replicas from a network interface, in a thread that feeds the node in batches."""

from __future__ import annotations

import os
import select
import socket
import struct
import threading

from scapy.arch.linux import L2ListenSocket

from shadow_rx.node import ShadowNode

RECEIVE_BUFFER_BYTES = 64 << 20
"""Socket buffer: what arrives while an optimizer step is applied waits here."""
_BATCH = 256
"""Most frames that are handed to the node at a time."""
_SO_RCVBUFFORCE = 33
"""Of asm-generic/socket.h: SO_RCVBUF beyond net.core.rmem_max, for CAP_NET_ADMIN."""
_SOL_PACKET = 263
_PACKET_STATISTICS = 6
"""packet(7): frames seen and dropped since the option was last read."""


class LiveCapture:
    """Captures from one interface until it is stopped.

    A packet socket sees frames before the kernel's own IP, so the replica address needs not belong to the
    node (it must not, or the kernel would answer each replica with a reset).
    """

    def __init__(self, node: ShadowNode, interface: str) -> None:
        """Open a promiscuous packet socket on `interface`; frames that arrive from now on are captured.

        Raises:
            OSError: no such interface, or no permission (CAP_NET_RAW).
        """
        self._node = node
        self._socket = L2ListenSocket(iface=interface, promisc=True)
        try:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, RECEIVE_BUFFER_BYTES)
        except PermissionError:
            self._socket.ins.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER_BYTES)
        self._socket.ins.setblocking(False)
        self._wake_read, self._wake_write = os.pipe()
        self._thread = threading.Thread(target=self._run, name="shadow-capture", daemon=True)
        self.error: str | None = None
        """Why capturing ended by itself (the interface vanished), None while it did not."""

    def start(self) -> None:
        """Start to feed the node."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over what was captured so far, then stop; also before `start`."""
        os.write(self._wake_write, b"x")
        if self._thread.ident is not None:
            self._thread.join()
        self._socket.close()
        os.close(self._wake_read)
        os.close(self._wake_write)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._socket.ins, select.POLLIN)
        poll.register(self._wake_read, select.POLLIN)
        stopping = False
        while not stopping:
            stopping = any(descriptor == self._wake_read for descriptor, _ in poll.poll())
            try:
                while self._take_batch():
                    continue
            except OSError as error:
                self.error = str(error)
                return

    def _take_batch(self) -> int:
        """Hand at most one batch to the node; return how many frames it had."""
        frames: list[bytes] = []
        while len(frames) < _BATCH:
            try:
                _, frame, _ = self._socket.recv_raw()
            except BlockingIOError:
                break
            if frame:
                frames.append(frame)
        if frames:
            self._node.on_frames(frames)
        dropped = self._kernel_drops()
        if dropped:
            self._node.count_kernel_drops(dropped)
        return len(frames)

    def _kernel_drops(self) -> int:
        """Return the frames that the kernel dropped since the last call, for want of buffer space."""
        statistics = self._socket.ins.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, 8)
        return int(struct.unpack("II", statistics)[1])
