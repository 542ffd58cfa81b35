"""The loop that moves frames between network interfaces and a device.

One thread processes all packets; the gRPC server's threads only wake it.
"""

from __future__ import annotations

import errno
import logging
import select
import socket
import time
from collections.abc import Sequence
from pathlib import Path

from capture.writer import PcapWriter
from checkmate_common.files.private_files import private
from softswitch.netio import EthernetPort
from softswitch.p4rt.device import Device, Frames

_BATCH = 64
"""Frames taken from one port before the others get their turn."""

_SEND_HINTS = {
    errno.EMSGSIZE: "the frame is longer than the interface's MTU; raise it, or turn off the sender's "
    "segmentation offload (ethtool -K IFACE tso off gso off)",
    errno.ENETDOWN: "the interface is down",
    errno.ENXIO: "the interface is gone",
}


class SwitchDriver:
    """Runs a device on network interfaces until it is stopped.

    Args:
        device: the device; the driver sets its `wake`.
        ports: open ports with distinct numbers; closed by `close`.
        log: for events.
        start_ns: value of `time.monotonic_ns()` at the device's time 0.
        pcap_dir: existing directory for `<interface>_in.pcap` and `<interface>_out.pcap`, None for none.

    Raises:
        OSError: a capture file cannot be created.
    """

    def __init__(
        self,
        device: Device,
        ports: Sequence[EthernetPort],
        *,
        log: logging.Logger,
        start_ns: int,
        pcap_dir: Path | None = None,
    ) -> None:
        """Register the ports and open the captures; nothing is forwarded before `run`."""
        self._device = device
        self._ports = {port.number: port for port in ports}
        self._log = log
        self._start_ns = start_ns
        self._stopping = False
        self._warned: set[tuple[int, object]] = set()
        self._captures: dict[tuple[int, str], PcapWriter] = {}
        if pcap_dir is not None:
            for port in ports:
                for direction in ("in", "out"):
                    path = pcap_dir / f"{port.interface}_{direction}.pcap"
                    self._captures[port.number, direction] = PcapWriter(path, private)
        self._wake_receive, self._wake_send = socket.socketpair()
        self._wake_receive.setblocking(False)
        self._wake_send.setblocking(False)
        self._epoll = select.epoll()
        self._epoll.register(self._wake_receive, select.EPOLLIN)
        self._by_descriptor: dict[int, EthernetPort] = {}
        for port in ports:
            self._by_descriptor[port.socket.fileno()] = port
            self._epoll.register(port.socket, select.EPOLLIN)
        device.wake = self.wake

    def wake(self) -> None:
        """Make the loop poll the device; callable from any thread and from signal handlers."""
        try:
            self._wake_send.send(b"\0")
        except BlockingIOError:
            pass  # enough wake-ups are already pending
        except OSError:
            pass  # closed: the loop has ended

    def stop(self) -> None:
        """Make `run` return soon; callable from any thread and from signal handlers."""
        self._stopping = True
        self.wake()

    def run(self) -> None:
        """Move frames until `stop`."""
        while not self._stopping:
            events = self._epoll.poll(0)
            if not events:
                # Idle: flush captures to disk before the loop sleeps.
                self._flush_captures()
                events = self._epoll.poll(self._timeout_s())
            for descriptor, _ in events:
                port = self._by_descriptor.get(descriptor)
                if port is not None:
                    self._serve(port)
                else:
                    self._drain_wakes()
            self._transmit(self._device.poll(self._now_us()))

    def close(self) -> None:
        """Close ports and captures, and report losses; `run` must have returned."""
        self._device.wake = None
        for port in self._by_descriptor.values():
            self._report_losses(port)
            port.socket.close()
        self._by_descriptor.clear()
        for key in list(self._captures):
            self._end_capture(key)
        self._epoll.close()
        self._wake_receive.close()
        self._wake_send.close()

    def _serve(self, port: EthernetPort) -> None:
        try:
            frames = port.receive(_BATCH)
        except OSError as error:
            self._port_failed(port, error)
            return
        self._switch(port, frames)
        if port.socket.unfinished_checksums:
            self._warn_once(
                port,
                "checksums",
                "frames arrive with unfinished checksums, and receivers will drop them; "
                "turn off the sender's checksum offload (ethtool -K IFACE tx off)",
            )

    def _switch(self, port: EthernetPort, frames: Sequence[bytes]) -> None:
        for frame in frames:
            self._capture(port.number, "in", frame)
            self._transmit(self._device.inject(port.number, frame, self._now_us()))

    def _transmit(self, frames: Frames) -> None:
        for number, frame in frames:
            port = self._ports.get(number)
            if port is None:
                continue  # as on BMv2: frames to a port without an interface are silently dropped
            error = port.send(frame)
            if error is None:
                self._capture(number, "out", frame)
            else:
                hint = _SEND_HINTS.get(error.errno or 0, str(error))
                self._warn_once(port, error.errno, f"a frame of {len(frame)} bytes was not sent: {hint}")

    def _port_failed(self, port: EthernetPort, error: OSError) -> None:
        if port.socket.exists():
            # The socket recovers by itself once the interface is up again.
            self._log.warning("port %d (%s): %s", port.number, port.interface, error.strerror)
            return
        self._log.error("port %d (%s): the interface is gone; the other ports continue", port.number, port.interface)
        while frames := port.receive(_BATCH):
            self._switch(port, frames)
        self._epoll.unregister(port.socket)
        del self._by_descriptor[port.socket.fileno()]
        del self._ports[port.number]
        port.socket.close()
        for direction in ("in", "out"):
            self._end_capture((port.number, direction))

    def _capture(self, number: int, direction: str, frame: bytes) -> None:
        writer = self._captures.get((number, direction))
        if writer is not None:
            try:
                writer.write(time.time_ns(), frame)
            except OSError as error:
                self._capture_failed((number, direction), error)

    def _flush_captures(self) -> None:
        for key, writer in list(self._captures.items()):
            try:
                writer.flush()
            except OSError as error:
                self._capture_failed(key, error)

    def _end_capture(self, key: tuple[int, str]) -> None:
        writer = self._captures.pop(key, None)
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                self._log.error("capture %s is incomplete: %s", writer.path, error.strerror)

    def _capture_failed(self, key: tuple[int, str], error: OSError) -> None:
        self._log.error("capture %s ends here: %s", self._captures[key].path, error.strerror)
        self._end_capture(key)

    def _report_losses(self, port: EthernetPort) -> None:
        stats, drops, oversized = port.stats, port.socket.kernel_drops(), port.socket.oversized
        self._log.info(
            "port %d (%s): %d frames received, %d sent",
            port.number,
            port.interface,
            stats.received,
            stats.sent,
        )
        if drops or stats.send_failures or oversized:
            self._log.warning(
                "port %d (%s): lost %d frames that arrived too fast, %d that were too long, %d not sent",
                port.number,
                port.interface,
                drops,
                oversized,
                stats.send_failures,
            )

    def _warn_once(self, port: EthernetPort, kind: object, text: str) -> None:
        if (port.number, kind) not in self._warned:
            self._warned.add((port.number, kind))
            self._log.warning("port %d (%s): %s", port.number, port.interface, text)

    def _drain_wakes(self) -> None:
        try:
            while self._wake_receive.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _now_us(self) -> int:
        return (time.monotonic_ns() - self._start_ns) // 1000

    def _timeout_s(self) -> float | None:
        deadline = self._device.next_deadline_us()
        if deadline is None:
            return None
        return max(0, deadline - self._now_us()) / 1e6
