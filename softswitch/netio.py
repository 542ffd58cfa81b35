"""A switch port on a network interface: whole Ethernet frames in and out of an AF_PACKET socket.

Needs CAP_NET_RAW. See packet(7). Frames are restored to their form on the wire: a VLAN tag that the kernel has removed
from the frame is put back, and frames that this host sent are ignored.
"""

from __future__ import annotations

import errno
import socket
import struct
from dataclasses import dataclass

from softswitch.errors import ErrorKind, SwitchError

_ETH_P_ALL = 0x0003
_ETH_P_8021Q = 0x8100
_SOL_PACKET = 263
_PACKET_ADD_MEMBERSHIP = 1
_PACKET_STATISTICS = 6
_PACKET_AUXDATA = 8
_PACKET_IGNORE_OUTGOING = 23
_PACKET_MR_PROMISC = 1
_PACKET_OUTGOING = 4
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33
_TP_STATUS_CSUMNOTREADY = 1 << 3
_TP_STATUS_VLAN_VALID = 1 << 4
_TP_STATUS_VLAN_TPID_VALID = 1 << 6
_AUXDATA = struct.Struct("=IIIHHHH")  # struct tpacket_auxdata of <linux/if_packet.h>
_MEMBERSHIP = struct.Struct("=iHH8s")  # struct packet_mreq
_STATISTICS = struct.Struct("=II")  # struct tpacket_stats: packets, drops

_BUFFER_BYTES = 64 * 1024 * 1024
_MAX_FRAME = 1 << 17


@dataclass(slots=True)
class PortStats:
    """Counters of a port.

    Attributes:
        received: frames received.
        sent: frames sent.
        send_failures: frames that the interface did not accept (down, full, or too long for its MTU).
        oversized: frames received that were too long for the receive buffer.
        unfinished_checksums: frames received whose transport checksum was left to the sender's network card.
    """

    received: int = 0
    sent: int = 0
    send_failures: int = 0
    oversized: int = 0
    unfinished_checksums: int = 0


class EthernetPort:
    """An interface as a port of the switch; promiscuous while open.

    Args:
        number: port number in the program.
        interface: name of the interface.

    Attributes:
        number: port number in the program.
        interface: name of the interface.
        stats: frames and failures so far.

    Raises:
        SwitchError: NOT_FOUND if there is no such interface, PERMISSION_DENIED without CAP_NET_RAW.
    """

    def __init__(self, number: int, interface: str) -> None:
        """Open a socket on the interface."""
        self.number = number
        self.interface = interface
        self.stats = PortStats()
        self._kernel_drops = 0
        self._trouble: OSError | None = None
        place = f"port {number} ({interface})"
        try:
            self._index = socket.if_nametoindex(interface)
        except OSError as error:
            raise SwitchError(ErrorKind.NOT_FOUND, "there is no such interface", place) from error
        try:
            # Protocol 0: nothing is received before the bind, in particular nothing from other interfaces.
            self._socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        except PermissionError as error:
            what = "raw sockets are not allowed; run as root or with CAP_NET_RAW"
            raise SwitchError(ErrorKind.PERMISSION_DENIED, what, place) from error
        try:
            self._configure()
        except OSError as error:
            self._socket.close()
            raise SwitchError(ErrorKind.NOT_FOUND, f"cannot be opened: {error.strerror}", place) from error
        self._buffer = bytearray(_MAX_FRAME)
        self._view = memoryview(self._buffer)

    def fileno(self) -> int:
        """Return the file descriptor, to wait for frames."""
        return self._socket.fileno()

    def receive(self, limit: int) -> list[bytes]:
        """Return up to `limit` waiting frames, without blocking.

        Raises:
            OSError: the interface went down or disappeared (ENETDOWN). Earlier frames have been returned by then, and
                the next call works normally.
        """
        if self._trouble is not None:
            trouble, self._trouble = self._trouble, None
            raise trouble
        frames: list[bytes] = []
        stats = self.stats
        buffers = (self._view,)
        while len(frames) < limit:
            try:
                size, control, flags, address = self._socket.recvmsg_into(buffers, 64)
            except BlockingIOError:
                break
            except OSError as error:
                self._trouble = error
                break
            if address[2] == _PACKET_OUTGOING:
                continue
            if flags & socket.MSG_TRUNC:
                stats.oversized += 1
                continue
            frame = bytes(self._view[:size])
            for level, kind, data in control:
                if level == _SOL_PACKET and kind == _PACKET_AUXDATA:
                    frame = self._restore(frame, data)
            frames.append(frame)
        stats.received += len(frames)
        if self._trouble is not None and not frames:
            trouble, self._trouble = self._trouble, None
            raise trouble
        return frames

    def send(self, frame: bytes) -> OSError | None:
        """Send a frame; return why the interface did not accept it, None if it did."""
        try:
            self._socket.send(frame)
        except OSError as error:
            self.stats.send_failures += 1
            return error
        self.stats.sent += 1
        return None

    def exists(self) -> bool:
        """Return whether the interface still exists (in this network namespace, under its name)."""
        try:
            return socket.if_nametoindex(self.interface) == self._index
        except OSError:
            return False

    def kernel_drops(self) -> int:
        """Return the number of frames that the kernel has dropped because this process was too slow."""
        # The kernel resets its count with every reading.
        data = self._socket.getsockopt(_SOL_PACKET, _PACKET_STATISTICS, _STATISTICS.size)
        self._kernel_drops += int(_STATISTICS.unpack(data)[1])
        return self._kernel_drops

    def close(self) -> None:
        """Close the socket; the interface leaves promiscuous mode."""
        self._socket.close()

    def _configure(self) -> None:
        sock = self._socket
        sock.setblocking(False)
        for option, fallback in ((_SO_RCVBUFFORCE, socket.SO_RCVBUF), (_SO_SNDBUFFORCE, socket.SO_SNDBUF)):
            try:
                sock.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
            except PermissionError:
                # Without CAP_NET_ADMIN the system's limit applies, and frames of large bursts are lost.
                sock.setsockopt(socket.SOL_SOCKET, fallback, _BUFFER_BYTES)
        sock.setsockopt(_SOL_PACKET, _PACKET_AUXDATA, 1)
        try:
            sock.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
        except OSError as error:
            # Before Linux 4.20 `receive` has to filter them.
            if error.errno != errno.ENOPROTOOPT:
                raise
        sock.bind((self.interface, _ETH_P_ALL))
        promiscuous = _MEMBERSHIP.pack(self._index, _PACKET_MR_PROMISC, 0, b"")
        sock.setsockopt(_SOL_PACKET, _PACKET_ADD_MEMBERSHIP, promiscuous)

    def _restore(self, frame: bytes, auxdata: bytes) -> bytes:
        status, _, _, _, _, tci, tpid = _AUXDATA.unpack_from(auxdata)
        if status & _TP_STATUS_CSUMNOTREADY:
            self.stats.unfinished_checksums += 1
        if not status & _TP_STATUS_VLAN_VALID:
            return frame
        if not status & _TP_STATUS_VLAN_TPID_VALID:
            tpid = _ETH_P_8021Q
        return frame[:12] + struct.pack("!HH", tpid, tci) + frame[12:]
