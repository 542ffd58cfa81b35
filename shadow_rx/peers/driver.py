"""Asks the other shadow nodes of a group for what this one lost, in a thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Self

from checkmate_common.supervised import SupervisedThread
from checkmate_common.tls import ClientTls
from shadow_rx.node import ShadowNode
from shadow_rx.peers.connections import GrpcPeer
from shadow_rx.peers.repair import ask_peers, use_no_peers, use_peers
from shadow_rx.status.health import Part

_GRACE_SECONDS = 0.05
"""How late bytes may be before they count as lost."""
_POLL_SECONDS = 0.02
"""How often the thread looks whether something is missing."""


class PeerDriver:
    """Asks the peers in a thread of its own, from `__enter__` to `__exit__`."""

    def __init__(
        self,
        node: ShadowNode,
        addresses: Mapping[str, str],
        tls: ClientTls | None = None,
        on_trouble: Callable[[str, str], None] | None = None,
    ) -> None:
        """Fill holes of `node` from other shadow nodes.

        Args:
            node: the node.
            addresses: of the other nodes, by their names.
            tls: own credentials, None for plain text.
            on_trouble: told, in the thread that asks, when a node (its name) refuses us or we it, and why.
        """
        self._on_trouble = on_trouble
        self._reported: dict[str, str | None] = {}
        self._node = node
        self._peers = {name: GrpcPeer(address, tls) for name, address in addresses.items()}
        self._stop = threading.Event()
        # What nobody asks for any more must not be waited for.
        self._thread = SupervisedThread("peers", self._run, lambda *_: use_no_peers(node))

    def part(self) -> Part:
        """Return how it is: the nodes that refuse us or we them."""
        troubles = [f"{name}: {peer.trouble}" for name, peer in self._peers.items() if peer.trouble is not None]
        return Part("peers", self._thread.trouble or "; ".join(troubles) or None)

    def __enter__(self) -> Self:
        """Begin to ask."""
        use_peers(self._node, self._peers, _GRACE_SECONDS)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop asking."""
        self._stop.set()
        for peer in self._peers.values():
            peer.close()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(_POLL_SECONDS):
            try:
                ask_peers(self._node, self._peers)
                self._report_troubles()
            except ValueError:
                # gRPC says so of a channel that was closed in between.
                if not self._stop.is_set():
                    raise

    def _report_troubles(self) -> None:
        for name, peer in self._peers.items():
            if peer.trouble != self._reported.get(name):
                self._reported[name] = peer.trouble
                if peer.trouble is not None and self._on_trouble is not None:
                    self._on_trouble(name, peer.trouble)
