"""Kinesis and SQS as ministack has them, behind a proxy that makes them fail as AWS does."""

import contextlib
import http.client
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import boto3
import pytest
from botocore.config import Config  # type: ignore[import-untyped]

from tests.support.ports import free_ports
from tests.support.servers.process import ServerProcess

REGION = "eu-west-1"
KEYS: dict[str, Any] = {"access_key_id": "AKIDTESTS", "secret_access_key": "right-horse-secret"}
_ENTRIES = {"PutRecords": "Records", "SendMessageBatch": "Entries"}


class Ministack(ServerProcess):
    """One ministack; what it holds is in its memory."""

    def __init__(self, folder: Path) -> None:
        [self.port] = free_ports(1)
        folder.mkdir(parents=True, exist_ok=True)
        super().__init__(
            [Path(sys.executable).with_name("ministack")],
            port=self.port,
            log=folder / "ministack.log",
            environ={
                **os.environ,
                "BIND_HOST": "127.0.0.1",
                "GATEWAY_PORT": str(self.port),
                "MINISTACK_HOST": "127.0.0.1",
            },
        )

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, service: str) -> Any:
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.url,
            aws_access_key_id=KEYS["access_key_id"],
            aws_secret_access_key=KEYS["secret_access_key"],
            config=Config(retries={"total_max_attempts": 2}),
        )


class Call(NamedTuple):
    """A call as the service would see it."""

    operation: str
    destination: str
    entries: list[dict[str, Any]]
    size: int


class Fault(NamedTuple):
    """What goes wrong with a call.

    `refuse`: these entries fail inside a success, with code and whether the sender is to blame.
    `status`, `code` and `message`: the call fails as a whole. `cut`: the connection ends without
    an answer. `hang`: there is no answer until the proxy is released. `taken` lets the service have
    the call all the same; then a hanging call is answered after all.
    """

    refuse: dict[int, tuple[str, bool]] | None = None
    status: int = 0
    code: str = ""
    message: str = "injected"
    cut: bool = False
    hang: bool = False
    taken: bool = False


def no_fault(_: Call) -> Fault | None:
    return None


class FaultProxy:
    """Forwards calls to a service; `fault(call)` says what goes wrong with each."""

    def __init__(self, target: int) -> None:
        self._target = target
        [self.port] = free_ports(1)
        self.fault: Callable[[Call], Fault | None] = no_fault
        self.calls: list[Call] = []
        self.bodies: list[bytes] = []
        self._hanging = threading.Event()
        self._server: ThreadingHTTPServer | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._connections: set[socket.socket] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._hanging.clear()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                proxy._connections.add(self.connection)

            def finish(self) -> None:
                proxy._connections.discard(self.connection)
                with contextlib.suppress(OSError):
                    super().finish()

            def do_POST(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    size = int(self.headers["Content-Length"])
                    body = self.rfile.read(size)
                    if len(body) == size:  # else the client is gone
                        proxy._handle(self, body)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def kill(self) -> None:
        """Let nobody in any more; what hangs is let go."""
        self._hanging.set()
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join()
            self._server.server_close()
            self._server = None
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Let the calls go that hang, and those to come."""
        self.fault = no_fault
        self._hanging.set()

    def wait_for_calls(self, count: int, timeout_s: float = 30) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.calls) >= count, timeout_s):
                raise TimeoutError(f"{len(self.calls)} calls, not {count}")

    def _handle(self, handler: BaseHTTPRequestHandler, body: bytes) -> None:
        operation = handler.headers.get("X-Amz-Target", "").rpartition(".")[2]
        request = json.loads(body or b"{}")
        fault = None
        if operation in _ENTRIES:
            call = Call(
                operation,
                request.get("StreamName") or request.get("QueueUrl"),
                request[_ENTRIES[operation]],
                len(body),
            )
            with self._changed:
                fault = self.fault(call)
                self.calls.append(call)
                self.bodies.append(body)
                self._changed.notify_all()
        fault = fault or Fault(taken=True)
        status, answer = 200, b"{}"
        if fault.refuse:
            status, answer = self._refuse(handler, operation, request, fault.refuse)
        elif fault.taken:
            status, answer = self._forward(handler, body)
        if fault.hang:
            self._hanging.wait()
        if fault.cut or (fault.hang and not fault.taken):
            handler.close_connection = True
            handler.connection.close()
            return
        if fault.status:
            status = fault.status
            answer = json.dumps({"__type": fault.code, "message": fault.message}).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "application/x-amz-json-1.1")
        handler.send_header("Content-Length", str(len(answer)))
        handler.end_headers()
        handler.wfile.write(answer)

    def _forward(self, handler: BaseHTTPRequestHandler, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self._target, timeout=30)
        try:
            headers = {
                name: value
                for name, value in handler.headers.items()
                if name.lower() not in {"content-length", "connection"}
            }
            connection.request("POST", handler.path, body, headers)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def _refuse(
        self,
        handler: BaseHTTPRequestHandler,
        operation: str,
        request: dict[str, Any],
        refused: dict[int, tuple[str, bool]],
    ) -> tuple[int, bytes]:
        """Let the service take the others, and answer as if it had refused these itself."""
        name = _ENTRIES[operation]
        entries = request[name]
        kept = [entry for place, entry in enumerate(entries) if place not in refused]
        answer: dict[str, Any] = {}
        if kept:
            status, data = self._forward(handler, json.dumps({**request, name: kept}).encode())
            if status != 200:
                return status, data
            answer = json.loads(data)
        if operation == "PutRecords":
            taken = iter(answer.get("Records", ()))
            answer["Records"] = [
                {"ErrorCode": refused[place][0], "ErrorMessage": "injected"}
                if place in refused
                else next(taken)
                for place in range(len(entries))
            ]
            answer["FailedRecordCount"] = len(refused)
        else:
            answer.setdefault("Successful", [])
            answer["Failed"] = [
                *answer.get("Failed", ()),
                *(
                    {"Id": entries[place]["Id"], "Code": code, "SenderFault": fault}
                    for place, (code, fault) in refused.items()
                ),
            ]
        return 200, json.dumps(answer).encode()


@pytest.fixture(scope="session")
def ministack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ministack]:
    """One service for all tests; each takes streams and queues of its own."""
    server = Ministack(tmp_path_factory.mktemp("ministack"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def aws(ministack: Ministack) -> Iterator[FaultProxy]:
    """The way to it, on which things go wrong."""
    proxy = FaultProxy(ministack.port)
    proxy.start()
    yield proxy
    proxy.kill()
