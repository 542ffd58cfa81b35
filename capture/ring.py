"""Live capture through rings that the kernel fills (packet(7), TPACKET_V3): batches of packets without a copy.

The kernel writes packets consecutively into blocks, and hands over a block when it is full or its timeout has passed.
So there is one system call for thousands of packets, and no copy.
"""

from __future__ import annotations

import mmap
import os
import select
import socket
import struct
import time
from collections.abc import Iterator, Sequence

import numpy as np

from capture.frame_socket import ALL_PROTOCOLS, SOL_PACKET, be_promiscuous, dropped_since_last_call, ignore_outgoing
from capture.walk import walk_block
from packets.batch import PacketBatch
from packets.headers import LinkType

BLOCK_BYTES = 1 << 19
"""Default size of a block: many times the largest packet that segmentation offload makes (64 KiB)."""
BLOCKS = 256
"""Default number of blocks: packets wait there while the reader is busy. Little traffic takes a block each time that
one is retired, so that `BLOCKS` times `RETIRE_MS` (6 s) is what the ring bears at any rate."""
RETIRE_MS = 25
"""After how many milliseconds the kernel hands over a block that is not full."""
_PAUSE_S = 0.001

# linux/if_packet.h and linux/if_ether.h
_RX_RING, _VERSION, _RESERVE = 5, 10, 12
_TPACKET_V3 = 2
_STATUS_USER = 1
_FRAME_BYTES = 2048  # without meaning in version 3, but it must divide the block size
_RESERVED_BYTES = 4
_BLOCK_HEADER = struct.Struct("=8xIII")  # status, packets, offset of the first
_STATUS_AT = 8
_HARDWARE = {1: LinkType.ETHERNET, 772: LinkType.ETHERNET, 0xFFFE: LinkType.RAW}
"""ARPHRD_ETHER, ARPHRD_LOOPBACK (whose packets have an Ethernet header of zeros), ARPHRD_NONE (tunnels)."""


class RingBlock:
    """Packets in a block of a ring, which belongs to the reader until `release`."""

    def __init__(self, ring: PacketRing, number: int, batch: PacketBatch) -> None:
        """Created only by `PacketRing.take`."""
        self.batch = batch
        """The packets; must not be used after `release`."""
        self._ring, self._number = ring, number

    def release(self) -> None:
        """Give the block back to the kernel."""
        self._ring.give_back(self._number)


class PacketRing:
    """Captures the packets that arrive at one interface from now on, not those that this machine sends there.

    A packet socket sees frames before the kernel's IP layer, so an address in them need not belong to this machine.
    VLAN tags that the kernel removed from a frame are restored.
    """

    def __init__(
        self, interface: str, *, block_bytes: int = BLOCK_BYTES, blocks: int = BLOCKS, promiscuous: bool = True
    ) -> None:
        """Open a ring of `blocks` blocks of `block_bytes`, a multiple of the page size.

        Raises:
            OSError: no such interface, no permission (CAP_NET_RAW), no memory, or a link type that is not decoded.
        """
        self.name = interface
        """The interface."""
        self._block_bytes, self._blocks, self._next = block_bytes, blocks, 0
        self._held: set[int] = set()
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._socket.setsockopt(SOL_PACKET, _VERSION, _TPACKET_V3)
            self._socket.setsockopt(SOL_PACKET, _RESERVE, _RESERVED_BYTES)
            ignore_outgoing(self._socket)  # before Linux 4.20 the walk skips them
            frames = block_bytes // _FRAME_BYTES * blocks
            request = struct.pack("=7I", block_bytes, blocks, _FRAME_BYTES, frames, RETIRE_MS, 0, 0)
            self._socket.setsockopt(SOL_PACKET, _RX_RING, request)
            self._memory = mmap.mmap(self._socket.fileno(), block_bytes * blocks)
            self._bytes = np.frombuffer(self._memory, np.uint8)
            if promiscuous:
                be_promiscuous(self._socket, socket.if_nametoindex(interface))
            self._socket.bind((interface, ALL_PROTOCOLS))
            hardware = self._socket.getsockname()[3]
            if hardware not in _HARDWARE:
                raise OSError(f"{interface}: interfaces of hardware type {hardware} are not supported, only Ethernet")
            self.link_type = _HARDWARE[hardware]
            """LINKTYPE_* of the packets."""
        except BaseException:
            self._socket.close()
            raise

    def fileno(self) -> int:
        """Return the file descriptor that becomes readable when there is a block."""
        return self._socket.fileno()

    def take(self) -> RingBlock | None:
        """Return the next block that the kernel has handed over, None if there is none yet.

        Several may be held at a time, as long as the ring is large enough for the packets that arrive meanwhile.
        """
        number = self._next
        if number in self._held:
            return None
        begin = number * self._block_bytes
        status, count, first = _BLOCK_HEADER.unpack_from(self._memory, begin)
        if not status & _STATUS_USER:
            return None
        self._held.add(number)
        self._next = (number + 1) % self._blocks
        block = self._bytes[begin : begin + self._block_bytes]
        starts, lengths = np.zeros(count, np.int64), np.zeros(count, np.int32)
        wire_lengths, times_ns = np.zeros(count, np.int64), np.zeros(count, np.int64)
        tags = self.link_type == LinkType.ETHERNET
        found = walk_block(block, first, count, tags, starts, lengths, wire_lengths, times_ns)
        links = np.full(found, self.link_type, np.uint16)
        batch = PacketBatch(block, starts[:found], lengths[:found], wire_lengths[:found], times_ns[:found], links)
        return RingBlock(self, number, batch)

    def give_back(self, number: int) -> None:
        """Let the kernel write to a block again."""
        if number in self._held:
            self._held.remove(number)
            struct.pack_into("=I", self._memory, number * self._block_bytes + _STATUS_AT, 0)

    def dropped(self) -> int:
        """Return the number of packets dropped for lack of room since the last call."""
        return dropped_since_last_call(self._socket)

    def failure(self) -> OSError | None:
        """Return the interface's error, for example that it was set down; None while it works."""
        number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        return OSError(number, os.strerror(number)) if number else None

    def close(self) -> None:
        """Stop capturing. Batches that are still held stay readable, and are not overwritten."""
        self._socket.close()


class RingReader:
    """Blocks of several rings, in turns: a flooded interface delays neither the others nor `stop`."""

    def __init__(self, rings: Sequence[PacketRing]) -> None:
        """Read `rings`."""
        self._rings = {ring.fileno(): ring for ring in rings}
        self._wake = os.eventfd(0)

    def blocks(self) -> Iterator[tuple[PacketRing, RingBlock | OSError]]:
        """Yield a block of one ring at a time, at most one of each ring per round; the caller releases it.

        An interface that fails is yielded with its error once, and skipped from then on. Ends after `stop`, once
        everything captured before it was yielded, or when no interface is left.
        """
        poll = select.poll()
        poll.register(self._wake, select.POLLIN)
        working = dict(self._rings)
        for descriptor in working:
            poll.register(descriptor, select.POLLIN)
        while working:
            events = dict(poll.poll())
            if self._wake in events:
                break
            idle = True
            for descriptor, event in events.items():
                ring = working[descriptor]
                block = ring.take()
                idle = idle and block is None
                if block is not None:
                    yield ring, block
                elif event & ~select.POLLIN and (failure := ring.failure()) is not None:
                    poll.unregister(descriptor)
                    del working[descriptor]
                    yield ring, failure
            if idle:  # the kernel reports a ring as readable while its last block is held
                time.sleep(_PAUSE_S)
        time.sleep(3 * RETIRE_MS / 1000)  # by then the kernel has handed over the blocks that it was filling
        for _ in range(BLOCKS):
            taken = [(ring, block) for ring in working.values() if (block := ring.take()) is not None]
            if not taken:
                return
            yield from taken

    def stop(self) -> None:
        """Make `blocks` end; may be called from another thread or a signal handler, and before it begins."""
        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Close the rings; `blocks` must have ended."""
        for ring in self._rings.values():
            ring.close()
        os.close(self._wake)
