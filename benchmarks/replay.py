"""Replay over loopback: CPU of the server per message in, beside the yardstick; memory; fairness.

    python -m benchmarks.replay [--minutes 60] [--rounds 1] [--exchange bitmex] [--only HTTP]
        [--kernel python]

Generates the data once (about 20,000 messages a minute and exchange), starts a server per case,
consumes its answer in a process of its own, and prints a table. A case's CPU time is that of
the server process, all threads, from the request to the last byte: cache file to socket. Each
server replays the range raw first, unmeasured: that warms its caches, and each file is checked
for damage the first time a process opens it. The yardstick is the CPU time msgspec takes to
decode each raw line (untyped) and encode it again, measured anew beside each case: on a machine
that others use, everything takes longer, and not always by the same factor.
"""

import argparse
import asyncio
import json
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import quote

import msgspec
import picows

from benchmarks.generate import DIRECTORY, START, WORKLOADS, Workload, generate
from tardis_machine import exchanges
from tardis_machine.engine.choice import VARIABLE, kernel
from tardis_machine.exchanges.base.dialect import ConnectionContext
from tardis_machine.history import History
from tardis_machine.history.filters import normalize
from tardis_machine.history.recorded_lines import MESSAGE, split
from tests.support.ports import free_port_pair

PER_MINUTE: Final = 20_000
BASE: Final = ("trade", "book_change")
_CLIENTS: Final = 8
_HEALTH_CHECKS: Final = 300
_SCHEDULED: Final = 2
"""CPUCLOCK_SCHED: to the nanosecond, where /proc counts hundredths of a second."""


class Case(NamedTuple):
    """What is asked for, and the compiled kernel's goal in yardsticks."""

    name: str
    transport: str
    data_types: tuple[str, ...]
    goal: float | None = None


CASES: Final = (
    Case("raw", "HTTP", (), 0.45),
    Case("trade+book_change", "HTTP", BASE, 0.8),
    Case("… with book_snapshot_50_0ms", "HTTP", (*BASE, "book_snapshot_50_0ms"), 1.5),
    Case("… with trade_bar_1s", "HTTP", (*BASE, "trade_bar_1s")),
    Case(
        "… with book_snapshot_20_grouped5_100ms",
        "HTTP",
        (*BASE, "book_snapshot_20_grouped5_100ms"),
        1.5,
    ),
    Case("raw, as the exchange sent it", "WebSocket", (), 0.7),
    Case("trade+book_change", "WebSocket", BASE, 1.1),
    Case("… with book_snapshot_50_0ms", "WebSocket", (*BASE, "book_snapshot_50_0ms")),
    Case("… with trade_bar_1s", "WebSocket", (*BASE, "trade_bar_1s")),
    Case(
        "… with book_snapshot_20_grouped5_100ms",
        "WebSocket",
        (*BASE, "book_snapshot_20_grouped5_100ms"),
    ),
)
_MEMORY_GOAL_MB: Final = 120
KERNELS: Final = ("python",) if kernel().module is None else ("python", "compiled")


class Measured(NamedTuple):
    """What a case took."""

    messages_out: int
    megabytes: float
    wall_s: float
    cpu_s: float
    peak_mb: float


class Yardstick(NamedTuple):
    """The raw lines of a workload, and what msgspec alone takes for them."""

    messages: int
    cpu_s: float


def yardstick(workload: Workload, cache_dir: Path, minutes: int) -> Yardstick:
    """Decode and encode every raw line, nothing else in the measured time."""
    decode, encode = msgspec.json.Decoder().decode, msgspec.json.Encoder().encode
    start = int(START.timestamp()) * 1_000_000
    messages = 0
    cpu = 0.0
    with History(cache_dir=cache_dir) as history:
        reader = history.read(
            workload.exchange, workload.filters, start, start + minutes * 60_000_000
        )
        for piece in reader:
            raw = [line[MESSAGE:] for line in split(piece) if line]
            messages += len(raw)
            began = time.process_time()
            for line in raw:
                encode(decode(line))
            cpu += time.process_time() - began
    return Yardstick(messages, cpu)


@contextmanager
def server(cache_dir: Path, with_kernel: str) -> Iterator[tuple[int, int]]:
    """Start a server on free ports; give its process id and port."""
    port = free_port_pair()
    command = "import sys; from tardis_machine.cli import main; sys.exit(main())"
    arguments = ("--port", str(port), "--cache-dir", str(cache_dir))
    environ = {name: value for name, value in os.environ.items() if name != "PORT"}
    environ[VARIABLE] = with_kernel
    process = subprocess.Popen(
        [sys.executable, "-c", command, *arguments], stderr=subprocess.PIPE, env=environ
    )
    try:
        assert process.stderr is not None
        line = process.stderr.readline()
        if b"listening" not in line:
            raise RuntimeError(line.decode() + process.stderr.read().decode())
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def measure(
    case: Case, workload: Workload, cache_dir: Path, minutes: int, with_kernel: str, rounds: int
) -> tuple[Measured, Yardstick]:
    """Run one case in a server of its own, by turns with the yardstick; the least of each."""
    found: list[Measured] = []
    sticks: list[Yardstick] = []
    with server(cache_dir, with_kernel) as (pid, port):
        _consume("HTTP", _url(CASES[0], workload, port, minutes))
        url = _url(case, workload, port, minutes)
        for _ in range(rounds):
            sticks.append(yardstick(workload, cache_dir, minutes))
            before = _cpu_s(pid)
            began = time.perf_counter()
            messages, size = _consume(case.transport, url, _subscriptions(case, workload))
            wall = time.perf_counter() - began
            cpu = _cpu_s(pid) - before
            found.append(Measured(messages, size / 1e6, wall, cpu, _peak_mb(pid)))
    least = min(found, key=lambda each: each.cpu_s)
    return least, min(sticks, key=lambda each: each.cpu_s)


def health_under_load(
    workload: Workload, cache_dir: Path, minutes: int, with_kernel: str
) -> tuple[float, float]:
    """Ask for /health-check while eight clients replay; give p50 and p99 in milliseconds."""
    case = CASES[2]
    with server(cache_dir, with_kernel) as (_, port):
        url = _url(case, workload, port, minutes)
        clients = [_consumer("HTTP", url) for _ in range(_CLIENTS)]
        try:
            time.sleep(1)
            times = [_health_check(port) for _ in range(_HEALTH_CHECKS)]
            if any(client.poll() is not None for client in clients):
                print("(a client had finished before the last health check: use more --minutes)")
        finally:
            for client in clients:
                client.kill()
                client.communicate()
    times.sort()
    return statistics.median(times), times[int(len(times) * 0.99)]


def _health_check(port: int) -> float:
    time.sleep(0.02)
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = b"GET /health-check HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(head)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    if b'"Healthy"' not in answer:
        raise RuntimeError(answer.decode())
    return (time.perf_counter() - began) * 1000


def _url(case: Case, workload: Workload, port: int, minutes: int) -> str:
    options: dict[str, object] = {
        "exchange": workload.exchange,
        "from": START.isoformat(),
        "to": (START + timedelta(minutes=minutes)).isoformat(),
    }
    if not case.data_types and case.transport == "WebSocket":
        query = "&".join(f"{name}={quote(str(value))}" for name, value in options.items())
        return f"ws://127.0.0.1:{port + 1}/ws-replay?{query}"
    if case.data_types:
        options |= {"symbols": workload.symbols, "dataTypes": case.data_types}
        path = "/replay-normalized" if case.transport == "HTTP" else "/ws-replay-normalized"
    else:
        options["filters"] = msgspec.to_builtins(workload.filters)
        path = "/replay"
    scheme, number = ("http", port) if case.transport == "HTTP" else ("ws", port + 1)
    return f"{scheme}://127.0.0.1:{number}{path}?options={quote(json.dumps(options))}"


def _subscriptions(case: Case, workload: Workload) -> list[str]:
    """What a client of the exchange sends, where the case is a native replay."""
    if case.data_types or case.transport == "HTTP":
        return []
    dialect = exchanges.get(workload.exchange).live
    assert dialect is not None
    messages = dialect.subscribe(normalize(workload.filters), ConnectionContext(0))
    return [msgspec.json.encode(each).decode() for each in messages]


def _consumer(transport: str, url: str, said: Sequence[str] = ()) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.replay", "--consume", transport, url, *said],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parent.parent,
    )


def _consume(transport: str, url: str, said: Sequence[str] = ()) -> tuple[int, int]:
    output, _ = _consumer(transport, url, said).communicate()
    messages, size = map(int, output.split())
    return messages, size


def consume_http(url: str) -> tuple[int, int]:
    """Read a chunked answer to its end; count messages and bytes."""
    head, _, path = url.removeprefix("http://").partition("/")
    host, _, port = head.partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"GET /{path} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        stream = connection.makefile("rb", buffering=1 << 20)
        status = stream.readline()
        if b" 200 " not in status:
            raise RuntimeError(status.decode() + stream.read(2000).decode())
        while stream.readline() != b"\r\n":
            pass
        messages = size = 0
        while length := int(stream.readline(), 16):
            data = stream.read(length)
            stream.read(2)
            messages += data.count(b"\n")
            size += length
    return messages, size


class _Counter(picows.WSListener):
    def __init__(self) -> None:
        self.messages = 0
        self.size = 0

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        if frame.msg_type == picows.WSMsgType.TEXT:
            self.messages += 1
            self.size += frame.payload_size
        elif frame.msg_type == picows.WSMsgType.CLOSE:
            if frame.get_close_code() != picows.WSCloseCode.OK:
                raise RuntimeError(frame.get_close_reason())
            transport.send_close(picows.WSCloseCode.OK)
            transport.disconnect()


async def consume_websocket(url: str, said: Sequence[str]) -> tuple[int, int]:
    """Read frames until the server closes; count messages and bytes."""
    transport, listener = await picows.ws_connect(_Counter, url)
    for message in said:
        transport.send(picows.WSMsgType.TEXT, message.encode())
    await transport.wait_disconnected()
    assert isinstance(listener, _Counter)
    return listener.messages, listener.size


def _cpu_s(pid: int) -> float:
    """The CPU time of a process, all its threads, by the clock that Linux keeps for each."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)


def _peak_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000


def _report(case: Case, stick: Yardstick, found: Measured, with_kernel: str) -> str:
    millions = stick.messages / 1e6
    times = found.cpu_s / stick.cpu_s
    goal = ""
    if case.goal is not None and with_kernel == "compiled":
        goal = f"{case.goal:g} {'✓' if times <= case.goal else '✗'}"
    memory = "" if found.peak_mb <= _MEMORY_GOAL_MB else " ✗"
    return (
        f"| {case.transport} | {case.name} | {with_kernel} "
        f"| {stick.messages / found.wall_s / 1000:,.0f} k "
        f"| {found.messages_out / 1e6:.2f} M, {found.megabytes:,.0f} MB "
        f"| {found.cpu_s / millions:.2f} | {stick.cpu_s / millions:.2f} | {times:.2f} | {goal} "
        f"| {found.peak_mb:.0f}{memory} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    parser.add_argument("--rounds", type=int, default=1, help="of each case; the least counts")
    parser.add_argument("--exchange", choices=[each.exchange for each in WORKLOADS])
    parser.add_argument("--kernel", choices=KERNELS, help="only this one")
    parser.add_argument("--only", default="", help="only cases whose line contains this text")
    parser.add_argument("--consume", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.consume:
        transport, url, *said = arguments.consume
        http = transport == "HTTP"
        result = consume_http(url) if http else asyncio.run(consume_websocket(url, said))
        print(*result)
        return
    minutes = arguments.minutes
    kernels = KERNELS if arguments.kernel is None else (arguments.kernel,)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, {minutes} minutes of data")
    for workload in WORKLOADS:
        if arguments.exchange not in {None, workload.exchange}:
            continue
        cache_dir = generate(
            workload, arguments.directory, count=minutes, messages=PER_MINUTE * minutes
        )
        print(
            f"\n### {workload.exchange}\n\n"
            "| | asked for | kernel | messages in/s | sent | CPU s per million in | yardstick "
            "| yardsticks | goal | peak MB |\n|---|---|---|---|---|---|---|---|---|---|",
            flush=True,
        )
        for case in CASES:
            if arguments.only in f"{case.transport} {case.name}":
                for each in kernels:
                    measured, stick = measure(
                        case, workload, cache_dir, minutes, each, arguments.rounds
                    )
                    print(_report(case, stick, measured, each), flush=True)
        for each in () if arguments.only else kernels:
            p50, p99 = health_under_load(workload, cache_dir, minutes, each)
            print(
                f"\nHealth check with {_CLIENTS} clients replaying {CASES[2].name[2:]}, {each}: "
                f"p50 {p50:.1f} ms, p99 {p99:.1f} ms (goal: p99 below 100 ms "
                f"{'✓' if p99 < 100 else '✗'})",
                flush=True,
            )


if __name__ == "__main__":
    main()
