"""Whole Ethernet frames in and out of a network interface, one at a time: an AF_PACKET socket (packet(7)).

Needs CAP_NET_RAW. Frames have their form on the wire: a VLAN tag that the kernel removed is restored. Frames that this
machine sends are not received. `capture.ring` receives many packets without a system call for each.
"""

from __future__ import annotations

import errno
import socket
import struct

SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _AUXDATA, _IGNORE_OUTGOING = 1, 6, 8, 23  # <linux/if_packet.h>
_PROMISCUOUS = 1
_OUTGOING = 4
_SO_SNDBUFFORCE, _SO_RCVBUFFORCE = 32, 33  # socket(7); Python has no names for them
ALL_PROTOCOLS = 3
_ETHERTYPE_VLAN = 0x8100
_CHECKSUM_NOT_READY, _VLAN_VALID, _VLAN_TPID_VALID = 1 << 3, 1 << 4, 1 << 6
_AUX = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata
_MAX_FRAME = 1 << 17


class FrameSocket:
    """Non-blocking; promiscuous while open, if it receives."""

    def __init__(self, interface: str, buffer_bytes: int, *, receives: bool = True) -> None:
        """Open the interface, with kernel buffers of `buffer_bytes` in each direction as far as permitted.

        With `receives` off it only sends.

        Raises:
            OSError: no such interface (ENODEV), no permission (PermissionError), or it cannot be opened.
        """
        self.interface = interface
        """Its name."""
        self.oversized = 0
        """Frames that were too long for the receive buffer, and were dropped."""
        self.unfinished_checksums = 0
        """Frames whose transport checksum was left to the sender's network card."""
        self._kernel_drops = 0
        self._failure: OSError | None = None
        try:
            self._index = socket.if_nametoindex(interface)
        except OSError:
            raise OSError(errno.ENODEV, "there is no such interface") from None
        # Protocol 0: nothing is received before the bind, in particular nothing from other interfaces.
        self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        try:
            self._configure(buffer_bytes, receives)
        except BaseException:
            self._socket.close()
            raise
        self._view = memoryview(bytearray(_MAX_FRAME))

    def _configure(self, buffer_bytes: int, receives: bool) -> None:
        sock = self._socket
        sock.setblocking(False)
        for forced, ordinary in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, forced, buffer_bytes)
            except PermissionError:  # without CAP_NET_ADMIN the system's limit holds
                sock.setsockopt(socket.SOL_SOCKET, ordinary, buffer_bytes)
        if not receives:
            sock.bind((self.interface, 0))
            return
        sock.setsockopt(SOL_PACKET, _AUXDATA, 1)
        ignore_outgoing(sock)
        sock.bind((self.interface, ALL_PROTOCOLS))
        be_promiscuous(sock, self._index)

    def fileno(self) -> int:
        """Return the file descriptor, to wait for frames."""
        return self._socket.fileno()

    def receive(self, limit: int) -> list[bytes]:
        """Return up to `limit` frames that have arrived, without waiting.

        Raises:
            OSError: the interface was set down or removed (ENETDOWN). Earlier frames have been returned by then,
                and the next call works normally.
        """
        frames: list[bytes] = []
        buffers = (self._view,)
        while len(frames) < limit and self._failure is None:
            try:
                size, control, flags, address = self._socket.recvmsg_into(buffers, 64)
            except BlockingIOError:
                break
            except OSError as error:
                self._failure = error
                break
            if address[2] == _OUTGOING:
                continue
            if flags & socket.MSG_TRUNC:
                self.oversized += 1
                continue
            frame = bytes(self._view[:size])
            for level, kind, data in control:
                if level == SOL_PACKET and kind == _AUXDATA:
                    frame = self._restore(frame, data)
            frames.append(frame)
        if self._failure is not None and not frames:
            failure, self._failure = self._failure, None
            raise failure
        return frames

    def send(self, frame: bytes) -> None:
        """Send a frame.

        Raises:
            OSError: no room (BlockingIOError, ENOBUFS), too long for the MTU (EMSGSIZE), or the interface is down.
        """
        self._socket.send(frame)

    def exists(self) -> bool:
        """Return whether the interface still exists (in this network namespace, under its name)."""
        try:
            return socket.if_nametoindex(self.interface) == self._index
        except OSError:
            return False

    def kernel_drops(self) -> int:
        """Return the number of frames that the kernel has dropped because this process was too slow."""
        self._kernel_drops += dropped_since_last_call(self._socket)
        return self._kernel_drops

    def close(self) -> None:
        """Close the socket; the interface leaves promiscuous mode."""
        self._socket.close()

    def _restore(self, frame: bytes, auxdata: bytes) -> bytes:
        status, _, _, _, _, tci, tpid = _AUX.unpack_from(auxdata)
        self.unfinished_checksums += bool(status & _CHECKSUM_NOT_READY)
        if not status & _VLAN_VALID:
            return frame
        tpid = tpid if status & _VLAN_TPID_VALID else _ETHERTYPE_VLAN
        return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]


def ignore_outgoing(sock: socket.socket) -> None:
    """Receive no frames that this machine sends. Before Linux 4.20 they have to be filtered."""
    try:
        sock.setsockopt(SOL_PACKET, _IGNORE_OUTGOING, 1)
    except OSError as error:
        if error.errno != errno.ENOPROTOOPT:
            raise


def be_promiscuous(sock: socket.socket, index: int) -> None:
    """Receive frames to any address at the interface of that index, as long as the socket is open."""
    sock.setsockopt(SOL_PACKET, _ADD_MEMBERSHIP, struct.pack("=iHH8x", index, _PROMISCUOUS, 0))


def dropped_since_last_call(sock: socket.socket) -> int:
    """Return how many packets the kernel dropped for lack of room; reading the number resets it."""
    # struct tpacket_stats_v3, of which older versions fill the first two fields.
    statistics = sock.getsockopt(SOL_PACKET, _STATISTICS, 12)
    return int(struct.unpack_from("=II", statistics)[1])
