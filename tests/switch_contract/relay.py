"""A TCP port in front of a Unix socket: the switch's gRPC server is in another network namespace, its file is not."""

from __future__ import annotations

import selectors
import socket
import threading
from types import TracebackType


class Relay:
    """Passes bytes between clients of `address` and the Unix socket at `path`, in a thread of its own."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._stop_receive, self._stop_send = socket.socketpair()
        self._peers: dict[socket.socket, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        for sock in (self._listener, self._stop_receive):
            self._selector.register(sock, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stop_send.send(b"\0")
        self._thread.join()
        for sock in (*self._peers, self._listener, self._stop_receive, self._stop_send):
            sock.close()
        self._selector.close()

    def __enter__(self) -> Relay:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                sock = key.fileobj
                assert isinstance(sock, socket.socket)
                if sock is self._stop_receive:
                    return
                if sock is self._listener:
                    self._accept()
                elif sock in self._peers:
                    self._pass_on(sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        # Without this a small answer waits for the acknowledgement of the one before.
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        server = socket.socket(socket.AF_UNIX)
        try:
            server.connect(self._path)
        except OSError:  # the switch is not there (any more): the client sees its connection end
            client.close()
            server.close()
            return
        self._peers |= {client: server, server: client}
        for sock in (client, server):
            self._selector.register(sock, selectors.EVENT_READ)

    def _pass_on(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(1 << 18)
            if data:
                self._peers[sock].sendall(data)
                return
        except OSError:
            pass  # one side was reset: both end
        for end in (sock, self._peers.pop(sock)):
            self._selector.unregister(end)
            self._peers.pop(end, None)
            end.close()
