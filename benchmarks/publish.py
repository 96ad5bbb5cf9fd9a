"""Publishing: what it costs the server, how fast the buses are filled, and how soon.

    python -m benchmarks.publish [--minutes 30] [--messages 500000] [--seconds 20] [--only cost]
        [--bus kafka]

`cost`: the server's CPU time per million messages with publishing off, with a bus that takes
everything, and with one that is not there. The runs take turns and the medians are compared; the
publisher is a process of its own and not counted. `rate`: events per second from the journal to
the acknowledgement, beside the bus's own client sending as many records of the same mean size,
constant bytes, with the same headers and in batches of the same count. `latency`: 1,000 messages
a second, from the journal to the acknowledgement. Brokers run on the same machine; those of
Kinesis and SQS are ministack, in Python, and set the pace themselves.
"""

import argparse
import asyncio
import base64
import os
import platform
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, NamedTuple

import boto3
import nats
import redis
from botocore.config import Config
from confluent_kafka import Producer

from benchmarks.generate import DIRECTORY, START, WORKLOADS, generate
from benchmarks.replay import CASES, PER_MINUTE, _consume, _cpu_s, _free_ports, _url
from tardis_machine.history import History
from tardis_machine.journal import Directory, Provenance, Writer
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.kernel import kernel
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.aws import AwsConfig
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.buses.fates import SendResult
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.kinesis import KinesisConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.buses.sqs import SQSConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.publisher import Publisher, tune
from tardis_machine.publish.record import Record
from tardis_machine.replay import replay_normalized
from tests.servers.aws import KEYS, REGION, Ministack
from tests.servers.kafka import KafkaBroker
from tests.servers.nats import NatsServer
from tests.servers.redis import RedisServer

_COST_GOAL: Final = 1.05
_RATE_GOAL: Final = 0.5
_ROUNDS: Final = 5
_DESTINATION: Final = "bench"
_PARTS: Final = {"kinesis": 5, "sqs": 50}
"""What part of the messages a service gets whose stand-in is slow."""
_PROVENANCE: Final = encode_provenance(
    Provenance("bench", "request", "session", 2, "http", "/replay-normalized")
)


class Broker(NamedTuple):
    """A running broker and the bus that goes to it."""

    bus: str
    config: BusConfig
    alone: Callable[[Any, int, int], float]


def _kafka(folder: Path, started: ExitStack) -> Broker:
    server = KafkaBroker(folder / "kafka")
    server.start()
    started.callback(server.kill)
    config = KafkaConfig(brokers=(server.address,), topic=_DESTINATION, create=True)
    return Broker("kafka", config, kafka_alone)


def _nats(folder: Path, started: ExitStack) -> Broker:
    server = NatsServer(folder / "nats")
    server.start()
    started.callback(server.kill)
    config = NatsConfig(
        servers=(server.url,), subject=_DESTINATION, stream=_DESTINATION, create=True
    )
    return Broker("nats", config, nats_alone)


def _kinesis(folder: Path, started: ExitStack) -> Broker:
    aws = _ministack(folder / "kinesis", started)
    config = KinesisConfig(stream=_DESTINATION, create=True, **_place(aws))
    return Broker("kinesis", config, kinesis_alone)


def _sqs(folder: Path, started: ExitStack) -> Broker:
    aws = _ministack(folder / "sqs", started)
    queue = aws.client("sqs").create_queue(QueueName=_DESTINATION)["QueueUrl"]
    return Broker("sqs", SQSConfig(queue_url=queue, **_place(aws)), sqs_alone)


def _redis(folder: Path, started: ExitStack) -> Broker:
    server = RedisServer(folder / "redis", "appendfsync everysec")
    server.start()
    started.callback(server.kill)
    return Broker("redis", RedisConfig(url=server.url, stream=_DESTINATION), redis_alone)


def _ministack(folder: Path, started: ExitStack) -> Ministack:
    server = Ministack(folder)
    server.start()
    started.callback(server.kill)
    return server


def _place(aws: Ministack) -> dict[str, Any]:
    return {"region": REGION, "endpoint_url": aws.url, **KEYS}


_BROKERS: Final = {
    "kafka": _kafka,
    "nats": _nats,
    "kinesis": _kinesis,
    "sqs": _sqs,
    "redis": _redis,
}


def brokers(folder: Path, buses: Sequence[str]) -> Iterator[Broker]:
    """Start one broker after the other."""
    for bus in buses:
        with ExitStack() as started:
            yield _BROKERS[bus](folder, started)


def fill_journal(path: Path, bus: str, cache_dir: Path, minutes: int, wanted: int) -> int:
    """Journal a replay as the server would; give the number of messages."""
    workload = WORKLOADS[0]
    writer = Writer(path, "bench", [bus], max_bytes=64 << 30)
    position = 0
    with History(cache_dir=cache_dir) as history:
        replay = replay_normalized(
            exchange=workload.exchange,
            from_=START.isoformat(),
            to=(START + timedelta(minutes=minutes)).isoformat(),
            symbols=workload.symbols,
            data_types=("trade", "book_change"),
            history=history,
        )
        for batch in replay.batches():
            if batch.data:
                assert writer.append(_PROVENANCE, batch.data, batch.count, position)
                position += batch.count
            if position >= wanted:
                break
        replay.close()
    writer.close()
    return position


class Published(NamedTuple):
    """What a publisher did: events and seconds, and the mean size of its records."""

    events: int
    seconds: float
    mean_bytes: int


def publish(path: Path, broker: Broker, events: int) -> Published:
    """Deliver a journal, counting from the first record that is read to the last acknowledged."""
    sizes: list[int] = []
    times: list[float] = []
    with timed(broker.bus, lambda records: sizes.append(sum(len(r.value) for r in records))):
        directory = Directory(path)
        directory.lock()
        publisher = Publisher({broker.bus: broker.config}, directory, PublishConfig())
        times.append(time.perf_counter())
        publisher.start()
        publisher.drain(None)
        times.append(time.perf_counter())
        publisher.stop(time.monotonic() + 10)
        directory.unlock()
    return Published(events, times[1] - times[0], sum(sizes) // events)


@contextmanager
def timed(bus: str, look: Callable[[Sequence[Record]], object]) -> Iterator[None]:
    """Look at each batch once it is acknowledged."""
    plain = BUSES[bus]

    class Timed(plain):  # type: ignore[misc, valid-type]  # a class of the registry
        def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
            result: SendResult = super().send(records, timeout_s)
            look(records)
            return result

    BUSES[bus] = Timed
    try:
        yield
    finally:
        BUSES[bus] = plain


_HEADERS: Final = (
    ("event-id", "0123456789abcdef0123456789abcdef"),
    ("payload-case", "bookChange"),
    ("content-type", "application/x-protobuf"),
)


def kafka_alone(config: KafkaConfig, events: int, size: int) -> float:
    """Fill the same batches with constant bytes; give the seconds."""
    producer = Producer(config.producer_properties())
    producer.list_topics(timeout=10)
    value, headers, count = bytes(size), list(_HEADERS), config.limits.records
    began = time.perf_counter()
    for start in range(0, events, count):
        for _ in range(min(count, events - start)):
            producer.produce(_DESTINATION, value, "bitmex|XBTUSD|bookChange", headers=headers)
        assert producer.flush(60) == 0
    return time.perf_counter() - began


def nats_alone(config: NatsConfig, events: int, size: int) -> float:
    """Fill the same batches with constant bytes, 2,000 acknowledgements in flight."""

    async def send() -> float:
        client = await nats.connect(config.servers[0])
        inbox = client.new_inbox()
        acknowledged = 0
        moved = asyncio.Event()

        async def on_reply(_: object) -> None:
            nonlocal acknowledged
            acknowledged += 1
            moved.set()

        await client.subscribe(f"{inbox}.*", cb=on_reply)
        value, headers, count = bytes(size), dict(_HEADERS), config.limits.records
        began = time.perf_counter()
        for start in range(0, events, count):
            end = min(start + count, events)
            for number in range(start, end):
                await client.publish(
                    _DESTINATION,
                    value,
                    reply=f"{inbox}.{number}",
                    headers=headers | {"Nats-Msg-Id": str(number)},
                )
                while number - acknowledged > 2_000:
                    moved.clear()
                    await moved.wait()
            while acknowledged < end:
                moved.clear()
                await moved.wait()
        seconds = time.perf_counter() - began
        await client.close()
        return seconds

    return asyncio.run(send())


def kinesis_alone(config: KinesisConfig, events: int, size: int) -> float:
    """Make the same calls with constant bytes, as many at a time."""
    client = _aws_client("kinesis", config)
    record = {"Data": bytes(size), "PartitionKey": "bitmex|XBTUSD|bookChange"}

    def call(count: int) -> None:
        client.put_records(StreamName=_DESTINATION, Records=[record] * count)

    return _call_alone(config, call, events)


def sqs_alone(config: SQSConfig, events: int, size: int) -> float:
    """Make the same calls with constant bytes, as many at a time."""
    client = _aws_client("sqs", config)
    body = base64.b64encode(bytes(size)).decode()
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in _HEADERS}

    def call(count: int) -> None:
        entries = [
            {"Id": str(number), "MessageBody": body, "MessageAttributes": attributes}
            for number in range(count)
        ]
        client.send_message_batch(QueueUrl=config.queue_url, Entries=entries)

    return _call_alone(config, call, events)


def _aws_client(service: str, config: AwsConfig) -> Any:
    return boto3.client(
        service,
        region_name=config.region,
        endpoint_url=config.endpoint_url,
        aws_access_key_id=config.access_key_id,
        aws_secret_access_key=config.secret_access_key,
        config=Config(parameter_validation=False, max_pool_connections=config.in_flight),
    )


def _call_alone(config: AwsConfig, call: Callable[[int], None], events: int) -> float:
    full, rest = divmod(events, config.max_batch_size)
    counts = [config.max_batch_size] * full + ([rest] if rest else [])
    with ThreadPoolExecutor(config.in_flight) as pool:
        began = time.perf_counter()
        list(pool.map(call, counts))
        return time.perf_counter() - began


def redis_alone(config: RedisConfig, events: int, size: int) -> float:
    """Fill the same transactions with constant bytes."""
    fields = {"value": bytes(size), **dict(_HEADERS)}
    with redis.Redis.from_url(config.address) as client:
        began = time.perf_counter()
        for start in range(0, events, config.max_batch_size):
            pipeline = client.pipeline(transaction=True)
            for _ in range(min(config.max_batch_size, events - start)):
                pipeline.xadd(_DESTINATION, fields)
            pipeline.execute()
        return time.perf_counter() - began


def rates(cache_dir: Path, minutes: int, messages: int, folder: Path, buses: Sequence[str]) -> None:
    print("\n| bus | events/s, journal to acknowledged | its client alone | ratio | goal |")
    print("|---|---|---|---|---|")
    for broker in brokers(folder, buses):
        path = folder / f"journal-{broker.bus}"
        wanted = messages // _PARTS.get(broker.bus, 1)
        events = fill_journal(path, broker.bus, cache_dir, minutes, wanted)
        done = publish(path, broker, events)
        client = broker.alone(broker.config, events, done.mean_bytes)
        ratio = client / done.seconds
        print(
            f"| {broker.bus} | {events / done.seconds:,.0f} ({done.mean_bytes} B each) "
            f"| {events / client:,.0f} | {ratio:.2f} "
            f"| ≥ {_RATE_GOAL} {'✓' if ratio >= _RATE_GOAL else '✗'} |",
            flush=True,
        )


def latencies(seconds: float, folder: Path, buses: Sequence[str]) -> None:
    """Trickle 1,000 messages a second, five at a time, each with the local time of its making."""
    print("\n| bus | p50 ms | p99 ms | messages |\n|---|---|---|---|")
    for broker in brokers(folder, buses):
        found: list[int] = []

        def look(records: Sequence[Record], found: list[int] = found) -> None:
            now = time.time_ns() // 1000
            found += [now - record.event.local_us for record in records]

        path = folder / f"trickle-{broker.bus}"
        writer = Writer(path, "bench", [broker.bus], max_bytes=1 << 30)
        trickle = threading.Thread(target=_trickle, args=(writer, seconds))
        with timed(broker.bus, look):
            directory = Directory(path)
            directory.lock()
            publisher = Publisher({broker.bus: broker.config}, directory, PublishConfig())
            publisher.start()
            time.sleep(2)
            trickle.start()
            trickle.join()
            publisher.drain(None)
            publisher.stop(time.monotonic() + 10)
            directory.unlock()
        found.sort()
        print(
            f"| {broker.bus} | {found[len(found) // 2] / 1000:.1f} "
            f"| {found[int(len(found) * 0.99)] / 1000:.1f} | {len(found):,} |",
            flush=True,
        )


def _trickle(writer: Writer, seconds: float) -> None:
    began = time.perf_counter()
    number = 0
    while number < seconds * 1000:
        lines = []
        for _ in range(5):
            now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
            lines.append(
                f'{{"type":"trade","symbol":"S{number % 20}","exchange":"bitmex",'
                f'"id":"{number}","price":1.5,"amount":2,"side":"buy",'
                f'"timestamp":"{now}","localTimestamp":"{now}"}}\n'
            )
            number += 1
        writer.append(_PROVENANCE, "".join(lines).encode(), 5, number - 5)
        time.sleep(max(0.0, began + number / 1000 - time.perf_counter()))
    writer.close()


@contextmanager
def server(cache_dir: Path, flags: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Start a server with these flags; give its process id and port."""
    port = _free_ports()
    command = "import sys; from tardis_machine.cli import main; sys.exit(main())"
    environ = {name: value for name, value in os.environ.items() if name != "PORT"}
    log = tempfile.TemporaryFile()  # noqa: SIM115 - the publisher may outlive this function
    process = subprocess.Popen(
        [sys.executable, "-c", command, "--port", str(port), "--cache-dir", cache_dir, *flags],
        stderr=log,
        env=environ,
    )
    try:
        while True:
            log.seek(0)
            text = log.read()
            if b"listening" in text:
                break
            if process.poll() is not None:
                raise RuntimeError(text.decode())
            time.sleep(0.05)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=120)
        log.close()


def costs(cache_dir: Path, minutes: int, folder: Path) -> None:
    workload, case = WORKLOADS[0], CASES[1]
    idle = NatsServer(folder / "idle")
    idle.start()
    journal = folder / "journal-cost"
    shared = ("--journal-dir", str(journal), "--drain-timeout-s", "0", "--nats-subject", "bench")
    created = ("--nats-stream", "bench", "--nats-create")
    cases = {
        "off": (),
        "idle bus": (*shared, *created, "--nats-servers", idle.url),
        "dead bus": (*shared, "--nats-servers", "nats://127.0.0.1:1"),
    }
    found: dict[str, list[float]] = {name: [] for name in cases}
    try:
        for _ in range(_ROUNDS):
            for name, flags in cases.items():
                shutil.rmtree(journal, ignore_errors=True)
                with server(cache_dir, flags) as (pid, port):
                    _consume("HTTP", _url(CASES[0], workload, port, minutes))
                    time.sleep(1)
                    before = _cpu_s(pid)
                    messages, _ = _consume("HTTP", _url(case, workload, port, minutes))
                    found[name].append((_cpu_s(pid) - before) / messages * 1e6)
    finally:
        idle.kill()
    off = statistics.median(found["off"])
    print("\n| publishing | server CPU s per million messages | × off | goal |\n|---|---|---|---|")
    for name, values in found.items():
        middle = statistics.median(values)
        ratio = middle / off
        goal = "" if name == "off" else f"≤ {_COST_GOAL} {'✓' if ratio <= _COST_GOAL else '✗'}"
        spread = f"{min(values):.2f}–{max(values):.2f}"
        print(f"| {name} | {middle:.2f} ({spread}) | {ratio:.3f} | {goal} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=int, default=30, help="of data, for `cost`")
    parser.add_argument("--messages", type=int, default=500_000, help="for `rate`")
    parser.add_argument("--seconds", type=float, default=20, help="for `latency`")
    parser.add_argument("--only", choices=("cost", "rate", "latency"))
    parser.add_argument("--bus", choices=_BROKERS, help="only this one")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    arguments = parser.parse_args()
    minutes = arguments.minutes
    buses = tuple(_BROKERS) if arguments.bus is None else (arguments.bus,)
    print(f"Python {platform.python_version()}, {os.cpu_count()} cores, kernel: {kernel()}")
    tune()  # this process publishes, as the publisher's own would
    cache_dir = generate(
        WORKLOADS[0], arguments.directory, count=minutes, messages=PER_MINUTE * minutes
    )
    arguments.directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=arguments.directory) as name:
        folder = Path(name)
        if arguments.only in {None, "cost"}:
            costs(cache_dir, minutes, folder / "cost")
        if arguments.only in {None, "rate"}:
            rates(cache_dir, minutes, arguments.messages, folder / "rate", buses)
        if arguments.only in {None, "latency"}:
            latencies(arguments.seconds, folder / "latency", buses)


if __name__ == "__main__":
    main()
