"""Live streams through a local exchange: from the frame's sending to the client, and to a bus.

    python -m benchmarks.live [--seconds 20] [--only 10,000]

Starts an exchange, a server that streams from it, a client and a NATS consumer, each a process of
its own, and prints how long trades take from the exchange's `send` to the client and the consumer,
and the server's CPU and peak memory. The exchange writes the time of sending into each trade's id.
A recorded minute is 20,000 messages of trades and books of bitmex over one connection; "as fast as
possible" measures the rate that is held, its latency is queueing.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import picows

from benchmarks.generate import DIRECTORY, START, WORKLOADS, generate
from benchmarks.replay import PER_MINUTE, _cpu_s, _peak_mb
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.history import History
from tardis_machine.history.recorded_lines import MESSAGE, STAMP, split
from tests.support.ports import free_port_pair
from tests.support.servers.nats import NatsServer

_SYMBOL: Final = re.compile(rb'"[A-Za-z0-9]+:(\w+)"')
_ID: Final = re.compile(rb'"trdMatchID":"[^"]*"')
_IDLE_S: Final = 3.0
_MOST_UNSENT: Final = 1 << 20
_CONNECTIONS: Final = 20
_SUBJECT: Final = "bench"


class Case(NamedTuple):
    """One line of the table; `speed` is a factor on a recorded minute, `rate` trades a second."""

    name: str
    speed: float = 0.0
    rate: int = 0
    bus: bool = False
    goal_ms: float | None = None


CASES: Final = (
    Case("a recorded minute, 1×", speed=1),
    Case("a recorded minute, 10×", speed=10),
    Case("a recorded minute, as fast as possible", speed=float("inf")),
    Case("10,000 trades/s from 20 connections", rate=10_000, goal_ms=5),
    Case("10,000 trades/s from 20 connections, NATS on", rate=10_000, bus=True, goal_ms=5),
)


def symbols_of(case: Case) -> list[list[str]]:
    """The symbols of each connection."""
    if case.rate:
        return [[f"S{number:02}USD"] for number in range(_CONNECTIONS)]
    return [list(WORKLOADS[0].symbols)]


# The exchange


class _Subscriber(picows.WSListener):
    """A connection of the server's, kept by the first symbol that it subscribes to."""

    def __init__(self, subscribed: dict[str, picows.WSTransport]) -> None:
        self._subscribed = subscribed

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        found = _SYMBOL.search(frame.get_payload_as_bytes())
        if frame.msg_type == picows.WSMsgType.TEXT and found is not None:
            self._subscribed.setdefault(found[1].decode(), transport)


async def exchange(port: int, case: Case, seconds: float) -> None:
    """Wait for all connections to subscribe, send, and stay."""
    subscribed: dict[str, picows.WSTransport] = {}
    await picows.ws_create_server(lambda _: _Subscriber(subscribed), "127.0.0.1", port)
    print("ready", flush=True)
    while len(subscribed) < len(symbols_of(case)):  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.5)
    if case.rate:
        await _send_trades([subscribed[each] for [each] in symbols_of(case)], case, seconds)
    else:
        await _send_minute(next(iter(subscribed.values())), case.speed)
    await asyncio.sleep(3600)


async def _send_trades(sockets: Sequence[picows.WSTransport], case: Case, seconds: float) -> None:
    began = time.monotonic()
    turns = itertools.cycle(range(len(sockets)))
    sent = 0
    while (elapsed := time.monotonic() - began) < seconds:
        while sent < elapsed * case.rate:
            number = next(turns)
            message = (
                b'{"table":"trade","action":"insert","data":[{"timestamp":'
                b'"2024-03-01T00:00:00.500Z","symbol":"S%02dUSD","side":"Buy","size":100,'
                b'"price":61130.5,"trdMatchID":"%d"}]}' % (number, time.monotonic_ns())
            )
            sockets[number].send(picows.WSMsgType.TEXT, message)
            sent += 1
        await asyncio.sleep(0.001)


async def _send_minute(connection: picows.WSTransport, speed: float) -> None:
    began = time.monotonic()
    for offset, message in _minute():
        wait = offset / speed - (time.monotonic() - began)
        if wait > 0.001:
            await asyncio.sleep(wait)
        while connection.underlying_transport.get_write_buffer_size() > _MOST_UNSENT:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        now = b'"trdMatchID":"%d"' % time.monotonic_ns()
        connection.send(picows.WSMsgType.TEXT, _ID.sub(now, message))


def _minute() -> Iterator[tuple[float, bytes]]:
    workload = WORKLOADS[0]
    cache = generate(workload, DIRECTORY, count=1, messages=PER_MINUTE)
    start = int(START.timestamp()) * 1_000_000
    with History(cache_dir=cache) as history:
        for piece in history.read(workload.exchange, workload.filters, start, start + 60_000_000):
            for line in split(piece):
                if line:
                    yield float(line[STAMP - 11 : STAMP - 1]), line[MESSAGE:]


# The client


class _Reader(picows.WSListener):
    """Notes how long each trade took, and when the last message came."""

    def __init__(self) -> None:
        self.latencies: list[int] = []
        self.messages = 0
        self.first = self.last = 0.0

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        del transport
        if frame.msg_type != picows.WSMsgType.TEXT:
            return
        now = time.monotonic_ns()
        payload = frame.get_payload_as_bytes()
        self.messages += 1
        self.last = now / 1e9
        self.first = self.first or self.last
        if payload.startswith(b'{"type":"trade"'):
            at = payload.index(b'"id":"') + 6
            self.latencies.append(now - int(payload[at : payload.index(b'"', at)]))


async def client(url: str) -> None:
    """Read until nothing comes any more; print what was found as JSON."""
    transport, reader = await picows.ws_connect(_Reader, url, max_frame_size=1 << 26)
    assert isinstance(reader, _Reader)
    while not reader.last or time.monotonic() - reader.last < _IDLE_S:  # noqa: ASYNC110
        await asyncio.sleep(0.2)
    transport.disconnect()
    found = {
        "messages": reader.messages,
        "seconds": reader.last - reader.first,
        "latency": _percentiles(reader.latencies),
    }
    print(json.dumps(found))


# The consumer


def consumer(port: int) -> None:
    """Take events from the subject until none comes any more; print how long they took.

    A socket and no client library: ten thousand events a second would keep one busy.
    """
    latencies: list[int] = []
    with socket.create_connection(("127.0.0.1", port)) as server:
        server.sendall(
            b'CONNECT {"verbose":false,"headers":true}\r\nSUB %s.> 1\r\nPING\r\n'
            % _SUBJECT.encode()
        )
        buffer = b""
        with contextlib.suppress(TimeoutError):
            while received := server.recv(1 << 20):
                now = time.monotonic_ns()
                buffer += received
                events, rest = _events(buffer)
                buffer = buffer[rest:]
                latencies += [now - int(event.trade.trade_id) for event in events]
                if b"PING\r\n" in received:
                    server.sendall(b"PONG\r\n")
                if b"PONG" in received and not latencies:
                    print("ready", flush=True)
                if latencies:
                    server.settimeout(_IDLE_S)
    print(json.dumps({"events": len(latencies), "latency": _percentiles(latencies)}))


def _events(buffer: bytes) -> tuple[list[pb.NormalizedEvent], int]:
    """Read the messages that are whole, `HMSG subject sid header-bytes bytes` each; and how far."""
    events = []
    at = 0
    while (end := buffer.find(b"\r\n", at)) >= 0:
        words = buffer[at:end].split()
        if words[0] != b"HMSG":
            at = end + 2
            continue
        start, size = end + 2 + int(words[-2]), end + 2 + int(words[-1])
        if size + 2 > len(buffer):
            break
        events.append(pb.NormalizedEvent.FromString(buffer[start:size]))
        at = size + 2
    return events, at


def _percentiles(times: list[int]) -> list[float]:
    times.sort()
    if not times:
        return []
    return [times[min(int(len(times) * p), len(times) - 1)] / 1e6 for p in (0.5, 0.99, 0.999)]


# The table


def run(case: Case, seconds: float) -> str:
    """Run one case; give its line."""
    here = Path(__file__).parent.parent
    port, exchange_port = free_port_pair(), free_port_pair()
    role = [sys.executable, "-m", "benchmarks.live", "--seconds", str(seconds)]
    with tempfile.TemporaryDirectory() as folder:
        broker = NatsServer(Path(folder)) if case.bus else None
        if broker is not None:
            broker.start()
        number = str(CASES.index(case))
        sender = subprocess.Popen(
            [*role, "--exchange", str(exchange_port), number], stdout=subprocess.PIPE, cwd=here
        )
        environ = os.environ | {"WSS_URL_BITMEX": f"ws://127.0.0.1:{exchange_port}"}
        flags = ["--port", str(port), "--sample-data"]
        if broker is not None:
            flags += ["--nats-servers", broker.url, "--nats-subject", f"{_SUBJECT}.all"]
            flags += ["--nats-stream", _SUBJECT, "--nats-create"]
            flags += ["--journal-dir", f"{folder}/journal"]
        taker = None
        if broker is not None:
            taker = subprocess.Popen(
                [*role, "--consumer", str(broker.port)], stdout=subprocess.PIPE, cwd=here
            )
        command = "import sys; from tardis_machine.cli import main; sys.exit(main())"
        server = subprocess.Popen(
            [sys.executable, "-c", command, *flags],
            stderr=subprocess.PIPE,
            env={name: value for name, value in environ.items() if name != "PORT"},
        )
        try:
            assert sender.stdout is not None
            assert server.stderr is not None
            sender.stdout.readline()
            if taker is not None:
                assert taker.stdout is not None
                taker.stdout.readline()
            while b"listening" not in (line := server.stderr.readline()):
                if not line:
                    raise RuntimeError("the server did not start")
            before = _cpu_s(server.pid)
            options = quote(json.dumps([_options(each, case) for each in symbols_of(case)]))
            url = f"ws://127.0.0.1:{port + 1}/ws-stream-normalized?options={options}"
            found = json.loads(subprocess.check_output([*role, "--client", url], cwd=here))
            cost = _cpu_s(server.pid) - before, _peak_mb(server.pid)
            if found["messages"] < 0.99 * case.rate * seconds:
                raise RuntimeError(f"{found['messages']} messages are not all that were sent")
            taken = None
            if taker is not None:
                taken = json.loads(taker.communicate(timeout=60)[0])
                if taken["events"] != found["messages"]:
                    raise RuntimeError(f"{taken['events']} events of {found['messages']} messages")
            return _report(case, found, taken, *cost)
        finally:
            for process in (sender, server, taker):
                if process is not None:
                    process.terminate()
                    process.communicate(timeout=60)
            if broker is not None:
                broker.stop()


def _options(symbols: Sequence[str], case: Case) -> dict[str, object]:
    types = ["trade"] if case.rate else ["trade", "book_change"]
    return {"exchange": "bitmex", "symbols": symbols, "dataTypes": types, "timeoutIntervalMS": 0}


def _report(
    case: Case, found: dict[str, Any], taken: dict[str, Any] | None, cpu_s: float, peak_mb: float
) -> str:
    messages, seconds = found["messages"], found["seconds"]
    p50, p99, p999 = found["latency"]
    goal = ""
    if case.goal_ms is not None:
        goal = f"p99 ≤ {case.goal_ms:g} {'✓' if p99 <= case.goal_ms else '✗'}"
    bus = ""
    if taken is not None:
        middle, late, _ = taken["latency"]
        bus = f"{middle:.1f} / {late:.1f} {'✓' if late <= 50 else '✗'}"
    return (
        f"| {case.name} | {messages / seconds:,.0f}/s | {p50:.2f} / {p99:.2f} / {p999:.2f} "
        f"| {goal} | {bus} | {cpu_s / messages * 1e6:.1f} | {peak_mb:.0f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", default="", help="only cases whose line contains this text")
    parser.add_argument("--exchange", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--client", help=argparse.SUPPRESS)
    parser.add_argument("--consumer", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.exchange:
        port, number = map(int, arguments.exchange)
        asyncio.run(exchange(port, CASES[number], arguments.seconds))
        return
    if arguments.client:
        asyncio.run(client(arguments.client))
        return
    if arguments.consumer:
        consumer(arguments.consumer)
        return
    print(
        f"Python {platform.python_version()}, {os.cpu_count()} cores\n\n"
        "| | messages | to the client, p50 / p99 / p99.9 ms | goal "
        "| to NATS, p50 / p99 ms (goal 50) | CPU µs per message | peak MB |\n"
        "|---|---|---|---|---|---|---|"
    )
    for case in CASES:
        if arguments.only in case.name:
            print(run(case, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()
