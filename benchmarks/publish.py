"""Publishing: what it costs the server, how fast the buses are filled, and how soon.

    python -m benchmarks.publish [--only cost] [--bus kafka] [--servers 6] [--turns 100]
        [--minutes 30] [--messages 500000] [--seconds 20]

`cost`: the server's CPU time per million messages of responses that are published, beside that of
others of the same server: two servers differ by more than what is looked for, by where their memory
lies, and the machine by ten times as much from one minute to the next. So the responses are short,
every second one is left out of publishing, and hundreds follow quickly on each other, either kind
when all of the last is delivered, or, with a bus that is not there, journalled, and after as long a
rest. Each that is published is compared with those before and after it. What counts is the
geometric mean of servers that are started anew a few times, with its standard error; within a
server ratios far from their median are left out. The publisher is a process of its own and not
counted.
`rate`: events per second from the journal to the acknowledgement, beside the bus's own client
sending as many records, envelopes that are ready made, with constant headers and in batches of the
same count. They take turns, each turn has a destination of its own, and medians are compared; the
first turn, in which a broker warms up, counts for neither. `latency`: 1,000 messages a second, from
the journal to the acknowledgement. Brokers run on the same machine; those of Kinesis and SQS are
ministack, in Python, and set the pace themselves.
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
from itertools import cycle, islice, pairwise
from math import sqrt
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.request import urlopen

import boto3
import nats
import redis
from botocore.config import Config
from confluent_kafka import Producer

from benchmarks.generate import DIRECTORY, START, WORKLOADS, generate
from benchmarks.replay import CASES, PER_MINUTE, _cpu_s, _url, consume_http
from tardis_machine.engine.choice import kernel
from tardis_machine.history import History
from tardis_machine.journal import Directory, Entry, Provenance, Reader, Writer
from tardis_machine.journal.entry import encode_provenance
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
from tardis_machine.publish.encoding import Encoding
from tardis_machine.publish.publisher import Publisher, tune
from tardis_machine.publish.record import Record
from tardis_machine.replays import replay_normalized
from tests.support.ports import free_port_pair
from tests.support.servers.aws import KEYS, REGION, Ministack
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.redis import RedisServer

_COST_GOAL: Final = 1.05
_RATE_GOAL: Final = 0.5
_COST_MINUTES: Final = 3
_REST_S: Final = 0.06
_WARM_TURNS: Final = 10
_FAR: Final = 1.3
"""A ratio so many times its server's median tells of the machine, not of publishing."""
_TURNS: Final = 3
_SAMPLE: Final = 100_000
"""How many envelopes a bus's client sends, again and again."""
_DESTINATION: Final = "bench"
_PARTS: Final = {"kinesis": 5, "sqs": 50}
"""What part of the messages a service gets whose stand-in is slow."""
_PROVENANCE: Final = encode_provenance(
    Provenance("bench", "request", "session", 2, "http", "/replay-normalized")
)


class Broker(NamedTuple):
    """A running broker, the bus that goes to a destination on it, and the bus's client alone."""

    bus: str
    config: Callable[[str], BusConfig]
    alone: Callable[[Any, int, Sequence[bytes]], float]


def _kafka(folder: Path, started: ExitStack) -> Broker:
    server = KafkaBroker(folder / "kafka")
    server.start()
    started.callback(server.kill)
    return Broker(
        "kafka",
        lambda name: KafkaConfig(brokers=(server.address,), topic=name, create=True),
        kafka_alone,
    )


def _nats(folder: Path, started: ExitStack) -> Broker:
    server = NatsServer(folder / "nats")
    server.start()
    started.callback(server.kill)
    return Broker(
        "nats",
        lambda name: NatsConfig(servers=(server.url,), subject=name, stream=name, create=True),
        nats_alone,
    )


def _kinesis(folder: Path, started: ExitStack) -> Broker:
    aws = _ministack(folder / "kinesis", started)
    return Broker(
        "kinesis",
        lambda name: KinesisConfig(stream=name, create=True, **_place(aws)),
        kinesis_alone,
    )


def _sqs(folder: Path, started: ExitStack) -> Broker:
    aws = _ministack(folder / "sqs", started)

    def config(name: str) -> SQSConfig:
        queue = aws.client("sqs").create_queue(QueueName=name)["QueueUrl"]
        return SQSConfig(queue_url=queue, **_place(aws))

    return Broker("sqs", config, sqs_alone)


def _redis(folder: Path, started: ExitStack) -> Broker:
    server = RedisServer(folder / "redis", "appendfsync everysec")
    server.start()
    started.callback(server.kill)
    return Broker("redis", lambda name: RedisConfig(url=server.url, stream=name), redis_alone)


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


def envelopes(path: Path, count: int) -> list[bytes]:
    """Give the envelopes of a journal's first messages, at least so many."""
    [log] = Directory(path).logs()
    reader, encoding = Reader(log, 0, 0, 0), Encoding([frozenset()])
    found: list[bytes] = []
    while len(found) < count and isinstance(entry := reader.read(), Entry):
        found += encoding.events(log.name, entry)[1].values()
    return found


def publish(path: Path, bus: str, config: BusConfig) -> float:
    """Deliver a journal; seconds from the first record that is read to the last acknowledged."""
    directory = Directory(path)
    directory.lock()
    publisher = Publisher({bus: config}, directory, PublishConfig())
    began = time.perf_counter()
    publisher.start()
    publisher.drain(None)
    seconds = time.perf_counter() - began
    publisher.stop(time.monotonic() + 10)
    directory.unlock()
    return seconds


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


def kafka_alone(config: KafkaConfig, events: int, values: Sequence[bytes]) -> float:
    """Fill the same batches; give the seconds."""
    producer = Producer(config.producer_properties())
    producer.list_topics(timeout=10)
    topic, headers = str(config.topic), list(_HEADERS)
    began = time.perf_counter()
    for batch in _batches(values, events, config.limits.records):
        for value in batch:
            producer.produce(topic, value, "bitmex|XBTUSD|bookChange", headers=headers)
        assert producer.flush(60) == 0
    return time.perf_counter() - began


def _batches(values: Sequence[bytes], events: int, size: int) -> Iterator[list[bytes]]:
    """Give so many values in batches, from the first again after the last."""
    rest = islice(cycle(values), events)
    while batch := list(islice(rest, size)):
        yield batch


def nats_alone(config: NatsConfig, events: int, values: Sequence[bytes]) -> float:
    """Fill the same batches, 2,000 acknowledgements in flight."""

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
        subject, headers, number = str(config.subject), dict(_HEADERS), 0
        began = time.perf_counter()
        for batch in _batches(values, events, config.limits.records):
            for value in batch:
                await client.publish(
                    subject,
                    value,
                    reply=f"{inbox}.{number}",
                    headers=headers | {"Nats-Msg-Id": str(number)},
                )
                number += 1
                while number - acknowledged > 2_000:
                    moved.clear()
                    await moved.wait()
            while acknowledged < number:
                moved.clear()
                await moved.wait()
        seconds = time.perf_counter() - began
        await client.close()
        return seconds

    return asyncio.run(send())


def kinesis_alone(config: KinesisConfig, events: int, values: Sequence[bytes]) -> float:
    """Make the same calls, as many at a time."""
    client = _aws_client("kinesis", config)

    def call(batch: list[bytes]) -> None:
        records = [{"Data": value, "PartitionKey": "bitmex|XBTUSD|bookChange"} for value in batch]
        client.put_records(StreamName=config.stream, Records=records)

    return _call_alone(config, call, events, values)


def sqs_alone(config: SQSConfig, events: int, values: Sequence[bytes]) -> float:
    """Make the same calls, as many at a time."""
    client = _aws_client("sqs", config)
    attributes = {name: {"DataType": "String", "StringValue": text} for name, text in _HEADERS}

    def call(batch: list[bytes]) -> None:
        entries = [
            {
                "Id": str(number),
                "MessageBody": base64.b64encode(value).decode(),
                "MessageAttributes": attributes,
            }
            for number, value in enumerate(batch)
        ]
        client.send_message_batch(QueueUrl=config.queue_url, Entries=entries)

    return _call_alone(config, call, events, values)


def _aws_client(service: str, config: AwsConfig) -> Any:
    return boto3.client(
        service,
        region_name=config.region,
        endpoint_url=config.endpoint_url,
        aws_access_key_id=config.access_key_id,
        aws_secret_access_key=config.secret_access_key,
        config=Config(parameter_validation=False, max_pool_connections=config.in_flight),
    )


def _call_alone(
    config: AwsConfig,
    call: Callable[[list[bytes]], None],
    events: int,
    values: Sequence[bytes],
) -> float:
    with ThreadPoolExecutor(config.in_flight) as pool:
        began = time.perf_counter()
        list(pool.map(call, _batches(values, events, config.max_batch_size)))
        return time.perf_counter() - began


def redis_alone(config: RedisConfig, events: int, values: Sequence[bytes]) -> float:
    """Fill the same transactions."""
    stream, headers = str(config.stream), dict(_HEADERS)
    with redis.Redis.from_url(config.address) as client:
        began = time.perf_counter()
        for batch in _batches(values, events, config.max_batch_size):
            pipeline = client.pipeline(transaction=True)
            for value in batch:
                pipeline.xadd(stream, {"value": value, **headers})
            pipeline.execute()
        return time.perf_counter() - began


def rates(cache_dir: Path, minutes: int, messages: int, folder: Path, buses: Sequence[str]) -> None:
    print("\n| bus | events/s, journal to acknowledged | its client alone | ratio | goal |")
    print("|---|---|---|---|---|")
    for broker in brokers(folder, buses):
        bus, path = broker.bus, folder / f"journal-{broker.bus}"
        events = fill_journal(path, bus, cache_dir, minutes, messages // _PARTS.get(bus, 1))
        values = envelopes(path, _SAMPLE)
        ours, theirs = [], []
        for turn in range(_TURNS + 1):
            config = broker.config(f"{_DESTINATION}-{turn}")
            made = BUSES[bus](config)
            made.connect()
            made.close()
            copied = folder / f"journal-{bus}-{turn}"
            shutil.copytree(path, copied)
            ours.append(events / publish(copied, bus, config))
            theirs.append(events / broker.alone(config, events, values))
        rate, alone = statistics.median(ours[1:]), statistics.median(theirs[1:])
        print(
            f"| {bus} | {rate:,.0f} ({sum(map(len, values)) // len(values)} B each) "
            f"| {alone:,.0f} | {rate / alone:.2f} "
            f"| ≥ {_RATE_GOAL} {'✓' if rate / alone >= _RATE_GOAL else '✗'} |",
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
            publisher = Publisher(
                {broker.bus: broker.config(_DESTINATION)}, directory, PublishConfig()
            )
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


_SERVE: Final = "import sys; from tardis_machine.cli import main; sys.exit(main())"
_EVERY_SECOND: Final = f"""
from itertools import cycle
from tardis_machine.publish.outbox import Outbox
respond, turns = Outbox.response, cycle((False, True))
Outbox.response = lambda outbox, **given: respond(outbox, **given) if next(turns) else None
{_SERVE}
"""
"""A server that publishes every second response only."""


@contextmanager
def server(
    cache_dir: Path, flags: Sequence[str], command: str = _SERVE
) -> Iterator[tuple[int, int]]:
    """Start a server with these flags; give its process id and port."""
    port = free_port_pair()
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


def costs(cache_dir: Path, servers: int, turns: int, folder: Path) -> None:
    print(
        "\n| bus | server CPU s per million messages, not published | published "
        "| × those before and after | by server | ratios left out | goal |"
        "\n|---|---|---|---|---|---|---|"
    )
    for bus in ("idle", "dead"):
        found: list[_Turns] = []
        for number in range(servers):
            with ExitStack() as started:
                flags = _flags(bus, folder / f"{bus}-{number}", started)
                pid, port = started.enter_context(server(cache_dir, flags, _EVERY_SECOND))
                found.append(_take_turns(pid, port, turns, bus))
        means = [statistics.geometric_mean(each.ratios) for each in found]
        mean, error = statistics.geometric_mean(means), statistics.stdev(means) / len(means) ** 0.5
        published = [each for server_turns in found for each in server_turns.published]
        others = [each for server_turns in found for each in server_turns.others]
        left_out = len(published) - sum(len(each.ratios) for each in found)
        print(
            f"| {bus} | {statistics.median(others):.2f} | {statistics.median(published):.2f} "
            f"| {mean:.3f} ± {error:.3f} | {', '.join(f'{each:.3f}' for each in means)} "
            f"| {left_out} of {len(published)} "
            f"| ≤ {_COST_GOAL} {'✓' if mean <= _COST_GOAL else '✗'} |",
            flush=True,
        )


class _Turns(NamedTuple):
    """CPU seconds per million messages; the first of them was not published."""

    others: list[float]
    published: list[float]

    @property
    def ratios(self) -> list[float]:
        """What publishing costs, by the replays before and after, without those far away.

        The mean of ratios is too large by as much as they spread; their geometric mean is not.
        """
        beside = [sqrt(before * after) for before, after in pairwise(self.others)]
        found = [mine / other for mine, other in zip(self.published, beside, strict=True)]
        middle = statistics.median(found)
        return [each for each in found if middle / _FAR < each < middle * _FAR]


def _take_turns(pid: int, port: int, turns: int, bus: str) -> _Turns:
    """Ask one server again and again."""
    found = _Turns([], [])
    url = _url(CASES[1], WORKLOADS[0], port, _COST_MINUTES)
    published, rest_s = 0, 0.0
    for turn in range(2 * (_WARM_TURNS + turns) + 1):
        before = _cpu_s(pid)
        messages, _ = consume_http(url)
        taken = _cpu_s(pid) - before
        if turn >= 2 * _WARM_TURNS:
            found[turn % 2].append(taken / messages * 1e6)
        if turn % 2:
            published += messages
            rest_s = _rest(port, bus, published, 0)
        else:
            _rest(port, bus, published, rest_s)
    return found


def _flags(bus: str, folder: Path, started: ExitStack) -> tuple[str, ...]:
    """What a server is told to publish to a bus that takes everything, or is not there."""
    url, created = "nats://127.0.0.1:1", ()
    if bus == "idle":
        broker = NatsServer(folder / "nats")
        broker.start()
        started.callback(broker.kill)
        url, created = broker.url, ("--nats-stream", "bench", "--nats-create")
    journal = ("--journal-dir", str(folder / "journal"), "--drain-timeout-s", "0")
    return ("--nats-subject", "bench", "--nats-servers", url, *created, *journal)


def _rest(port: int, bus: str, published: int, least_s: float) -> float:
    """Wait for a publisher, which would run beside what is measured next; give the seconds.

    Before a response of either kind as long is waited, and as often asked: what rested, or worked,
    has other things in the caches. Nothing is asked in the last moment before it.
    """
    began = time.perf_counter()
    while True:
        time.sleep(_REST_S)
        with urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            metrics = answer.read().decode()
        if bus == "idle":
            is_quiet = _metric(metrics, 'publish_delivered_total{bus="nats"}') >= published
        else:
            is_quiet = _metric(metrics, "publish_ring_used_bytes") == 0
        rested_s = time.perf_counter() - began
        if is_quiet and rested_s >= least_s:
            time.sleep(_REST_S)
            return rested_s


def _metric(text: str, name: str) -> float:
    """The value of a metric; -1 before there is one."""
    _, found, rest = text.partition(f"\ntardis_machine_{name} ")
    return float(rest.partition("\n")[0]) if found else -1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--servers", type=int, default=6, help="for `cost`, two or more")
    parser.add_argument("--turns", type=int, default=100, help="of each server, for `cost`")
    parser.add_argument("--minutes", type=int, default=30, help="of data, for `rate`")
    parser.add_argument("--messages", type=int, default=500_000, help="for `rate`")
    parser.add_argument("--seconds", type=float, default=20, help="for `latency`")
    parser.add_argument("--only", choices=("cost", "rate", "latency"))
    parser.add_argument("--bus", choices=_BROKERS, help="only this one")
    parser.add_argument("--directory", type=Path, default=DIRECTORY)
    arguments = parser.parse_args()
    minutes = max(arguments.minutes, _COST_MINUTES)
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
            costs(cache_dir, arguments.servers, arguments.turns, folder / "cost")
        if arguments.only in {None, "rate"}:
            rates(cache_dir, minutes, arguments.messages, folder / "rate", buses)
        if arguments.only in {None, "latency"}:
            latencies(arguments.seconds, folder / "latency", buses)


if __name__ == "__main__":
    main()
