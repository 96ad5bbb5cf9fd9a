"""A TCP proxy that cuts connections, is slow, holds answers back, and remembers what was said."""

import contextlib
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

_CHUNK = 65_536


class Proxy:
    """Listens on a free port and forwards to `target`, which may be set later.

    With `tls` it speaks TLS to clients, for servers that cannot.
    """

    def __init__(self, target: int | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.target = target
        self._tls = tls
        self.said = bytearray()
        """Everything clients have sent, over all connections."""
        self.pause_s = 0.0
        """How long it rests after every piece that clients send."""
        self._cut_after: int | None = None
        self._changed = threading.Condition()
        self._answers = threading.Event()
        self._answers.set()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Reset every connection; new ones are welcome."""
        with self._changed:
            sockets, self._sockets = self._sockets, set()
        for end in sockets:
            with contextlib.suppress(OSError):
                # Lingering for no time at all makes close() send a reset.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut_after(self, size: int) -> None:
        """Cut once, when clients have sent so many more bytes."""
        with self._changed:
            self._cut_after = len(self.said) + size

    def hold_answers(self) -> None:
        """Let nothing through from the server, until `release_answers`."""
        self._answers.clear()

    def release_answers(self) -> None:
        self._answers.set()

    def wait_until(self, condition: Callable[[bytearray], bool], timeout_s: float = 30) -> None:
        """Wait until what clients have said fulfils a condition."""
        with self._changed:
            if not self._changed.wait_for(lambda: condition(self.said), timeout_s):
                raise TimeoutError("clients have not said that")

    def reset(self) -> None:
        """Cut what is there, and forget what was said and asked for."""
        self.cut()
        with self._changed:
            self.said.clear()
            self._cut_after = None
        self._answers.set()

    def close(self) -> None:
        self._closed = True
        self._answers.set()
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closed:
            try:
                client, _ = self._listener.accept()
                if self._tls is not None:
                    client = self._tls.wrap_socket(client, server_side=True)
                server = socket.create_connection(("127.0.0.1", self.target or 0))
            except OSError:
                if not self._closed and "client" in locals():
                    client.close()
                continue
            with self._changed:
                self._sockets |= {client, server}
            for pump in (self._forward, self._answer):
                threading.Thread(target=pump, args=(client, server), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                with self._changed:
                    due = self._cut_after
                    if due is not None and len(self.said) + len(data) >= due:
                        data = data[: due - len(self.said)]
                        self._cut_after = None
                    else:
                        due = None
                    self.said += data
                    self._changed.notify_all()
                time.sleep(self.pause_s)
                server.sendall(data)
                if due is not None:
                    self.cut()
        self._end(client, server)

    def _answer(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(_CHUNK):
                self._answers.wait()
                client.sendall(data)
        self._end(client, server)

    def _end(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
            with self._changed:
                self._sockets.discard(end)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    """A proxy whose target the test sets."""
    made = Proxy()
    yield made
    made.close()
