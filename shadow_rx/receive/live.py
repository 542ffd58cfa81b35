"""Capture of replicas from network interfaces, in a thread that feeds the node in batches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

from capture.ring import PacketRing, RingReader
from checkmate_common.supervised import OnDeath, SupervisedThread
from shadow_rx.node import ShadowNode
from shadow_rx.status.health import Part


class LiveCapture:
    """Captures until it is stopped, from one interface or from several.

    The node takes packets where the kernel wrote them. What arrives while it applies an optimizer step waits in the
    ring; what finds no room there is counted.

    A node that is attached to a switch and to its standby captures on both: a replica has its position in it, so it
    does not matter which way it came, nor in which order.

    Attributes:
        error: which interfaces were given up, one after the other, and why (removed, or set down), None while none was.
    """

    def __init__(self, node: ShadowNode, interfaces: Sequence[str], on_death: OnDeath | None = None) -> None:
        """Open a ring on each interface; frames that arrive from now on are captured.

        Args:
            node: is fed, in a thread of its own.
            interfaces: their names.
            on_death: told where the thread ends by what nobody expected.

        Raises:
            OSError: no such interface, or no permission (CAP_NET_RAW).
        """
        self._node = node
        self._rings: list[PacketRing] = []
        with ExitStack() as opened:
            for interface in interfaces:
                try:
                    self._rings.append(PacketRing(interface))
                except OSError as error:
                    raise OSError(error.errno, f"interface {interface}: {error.strerror or error}") from error
                opened.callback(self._rings[-1].close)
            opened.pop_all()
        self._reader = RingReader(self._rings)
        self._thread = SupervisedThread("capture", self._run, on_death)
        self.error: str | None = None

    def start(self) -> None:
        """Start to feed the node."""
        self._thread.start()

    def stop(self) -> None:
        """Hand over what was captured so far, then stop; also before `start`."""
        self._reader.stop()
        self._thread.join()
        self._reader.close()

    def part(self) -> Part:
        """Return how it is."""
        return Part("capture", self._thread.trouble or self.error)

    def _run(self) -> None:
        for ring, found in self._reader.blocks():
            if isinstance(found, OSError):
                trouble = f"interface {ring.name}: {found}"
                self.error = f"{self.error}; {trouble}" if self.error else trouble
                continue
            self._node.on_batch(found.batch)
            found.release()
            self._count_drops(ring)
        for ring in self._rings:
            self._count_drops(ring)

    def _count_drops(self, ring: PacketRing) -> None:
        """Tell of frames that the kernel dropped since the last call, because the ring was full."""
        dropped = ring.dropped()
        if dropped:
            self._node.count_kernel_drops(dropped)
