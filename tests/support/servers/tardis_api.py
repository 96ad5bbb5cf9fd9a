"""A local server that speaks the Tardis.dev historical API, and fails as it is told to."""

import gzip
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import zstandard

from tardis_machine.history import sample
from tardis_machine.history.cache import MINUTE
from tardis_machine.history.filters import Filter

Lines = Callable[[str, int], bytes]
"""An exchange's lines of one minute."""


@dataclass
class Fault:
    """What goes wrong with one answer: a status, a body cut short, a cut connection, a wait."""

    status: int = 200
    body: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    truncate: int = 0
    """Bytes left away at the end of an otherwise well-formed answer."""
    corrupt: bool = False
    cut_after: int | None = None
    """Bytes of the body after which the connection ends."""
    wait_for: threading.Event | None = None
    drop_headers: tuple[str, ...] = ()


@dataclass
class Call:
    """One request as it came in."""

    exchange: str
    minute: int
    minutes: int
    query: str
    filters: list[dict[str, Any]]
    headers: dict[str, str]


class TardisApi:
    """Serves `lines(exchange, minute)`; `faults` are used up one per request."""

    def __init__(self, lines: Lines) -> None:
        self.lines = lines
        self.calls: list[Call] = []
        self.faults: deque[Fault | None] = deque()
        self.faults_at: dict[int, deque[Fault]] = {}
        self.api_key = ""
        self.encoding = "zstd"
        self.frames_per_slice = 2
        self.suggested_minutes = 1
        self.max_minutes = 60
        self.under_way = 0
        self.most_under_way = 0
        self.held = 0
        """Requests that a fault's `wait_for` keeps waiting."""
        self.delay_s = 0.0
        self.aborted = threading.Semaphore(0)
        self.lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._server.block_on_close = False
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def minutes_called(self) -> list[int]:
        return [call.minute for call in self.calls]

    def fail(self, *faults: Fault) -> None:
        """Let the next requests fail, in this order."""
        self.faults.extend(faults)

    def fail_at(self, minute: int, *faults: Fault) -> None:
        """Let the next requests for a minute fail, in this order."""
        self.faults_at.setdefault(minute, deque()).extend(faults)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def body(self, call: Call) -> bytes:
        """A slice's compressed body, filtered as asked for."""
        wanted = {
            each["channel"]: None if each.get("symbols") is None else tuple(each["symbols"])
            for each in call.filters
        }
        minutes = range(call.minute, call.minute + call.minutes)
        parts = [self.selected(call.exchange, minute, wanted) for minute in minutes]
        if self.encoding == "gzip":
            return gzip.compress(b"".join(parts), 1)
        compressor = zstandard.ZstdCompressor(level=3, write_checksum=True)
        if self.frames_per_slice > 1:
            whole = b"".join(parts)
            middle = whole.find(b"\n", len(whole) // 2) + 1
            parts = [whole[:middle], whole[middle:]]
        return b"".join(compressor.compress(part) for part in parts)

    def selected(
        self, exchange: str, minute: int, wanted: Mapping[str, tuple[str, ...] | None]
    ) -> bytes:
        """A minute's disconnects and the lines of wanted channels and symbols."""
        lines = self.lines(exchange, minute)
        if not wanted or exchange not in sample.EXCHANGES:
            return lines
        select = sample.SAMPLE.selection(exchange, [Filter(*each) for each in wanted.items()])
        return lines if select is None else select(lines)


def _handler(api: TardisApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            with api.lock:
                api.under_way += 1
                api.most_under_way = max(api.most_under_way, api.under_way)
            try:
                self._answer()
            except OSError:
                api.aborted.release()
                self.close_connection = True
            finally:
                with api.lock:
                    api.under_way -= 1

        def _answer(self) -> None:
            call = self._call()
            with api.lock:
                api.calls.append(call)
                fault = api.faults.popleft() if api.faults else None
                at = api.faults_at.get(call.minute)
                if fault is None and at:
                    fault = at.popleft()
            fault = fault or Fault()
            if api.delay_s:
                time.sleep(api.delay_s)
            if fault.wait_for is not None:
                self._hold(fault.wait_for)
            if api.api_key and self.headers["Authorization"] != f"Bearer {api.api_key}":
                fault = Fault(401, json.dumps({"message": "Invalid API key"}))
            if fault.status != 200:
                self._send(fault.status, fault.body.encode(), fault.headers)
                return
            body = api.body(call)
            if fault.corrupt:
                middle = len(body) // 2
                body = body[:middle] + bytes([body[middle] ^ 0xFF]) + body[middle + 1 :]
            if fault.truncate:
                body = body[: -fault.truncate]
            headers = {
                "Content-Encoding": api.encoding,
                "x-slice-size": str(call.minutes),
                "x-suggested-slice-size": str(api.suggested_minutes),
                **fault.headers,
            }
            for name in fault.drop_headers:
                del headers[name]
            self._send(200, body, headers, fault.cut_after)

        def _hold(self, event: threading.Event) -> None:
            with api.lock:
                api.held += 1
            try:
                self._wait(event)
            finally:
                with api.lock:
                    api.held -= 1

        def _wait(self, event: threading.Event) -> None:
            # A client that leaves while it waits is noticed as a server would: by its socket.
            self.connection.settimeout(0.02)
            while not event.is_set():
                try:
                    if not self.connection.recv(1):
                        raise ConnectionResetError
                except TimeoutError:
                    continue
            self.connection.settimeout(None)

        def _call(self) -> Call:
            parts = urlsplit(self.path)
            query = {name: values[0] for name, values in parse_qs(parts.query).items()}
            start = datetime.fromisoformat(query["from"]).replace(tzinfo=UTC)
            return Call(
                exchange=parts.path.rpartition("/")[2],
                minute=int(start.timestamp()) // 60 + int(query["offset"]),
                minutes=min(int(query.get("sliceSize", 1)), api.max_minutes),
                query=parts.query,
                filters=json.loads(query.get("filters", "[]")),
                headers=dict(self.headers),
            )

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], cut_after: int | None = None
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[:cut_after])
            if cut_after is not None:
                self.close_connection = True

    return Handler


def numbered_lines(exchange: str, minute: int) -> bytes:
    """Ten plain lines a minute, told apart by their numbers: enough where content is no matter."""
    stamp = datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M")
    return "".join(
        f'{stamp}:{5 * each:02}.0000000Z {{"exchange":"{exchange}","n":{minute * 10 + each}}}\n'
        for each in range(10)
    ).encode()


def sample_lines(exchange: str, minute: int) -> bytes:
    """The bundled sample data, for what needs an exchange's own messages over the network."""
    with sample.sample_history() as history:
        return b"".join(history.read(exchange, [], minute * MINUTE, (minute + 1) * MINUTE))


@pytest.fixture
def tardis_api() -> Iterator[TardisApi]:
    """An API that serves numbered lines until a test gives it others."""
    api = TardisApi(numbered_lines)
    yield api
    api.close()
