"""Measure the lake: backfill on one and two cores beside the library, Kafka to Silver, bytes kept.

    python -m benchmarks.lake [--messages 1200000] [--minutes 60] [--events 1200000]
    python -m benchmarks.lake --day [--messages 30000000] [--memory 2g]
    python -m benchmarks.lake --soak 2000 [--case trade]

Each Spark run is a process of its own, pinned to as many processors as it has cores. Its start is
a line of its own, and so is the minute that it brings in first: what is loaded and compiled then is
paid once, however long the rest is. `--day` brings in one day of one exchange and shows that memory
stays flat, `--soak` that the time of a batch does. Figures go to benchmarks/README.md by hand, with
the machine they are from.
"""

import argparse
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.generate import DIRECTORY, START, WORKLOADS, Workload, generate
from tardis_machine.bronze import Context, Encoder, Origin
from tardis_machine.history import History
from tardis_machine.lake import backfill, streaming
from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.maintain import existing, size
from tardis_machine.lake.records import RECORD, schema_of
from tardis_machine.lake.session import session
from tardis_machine.lake.sources.kafka import stream as kafka_stream
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.lake.tables import Commit, Tables
from tardis_machine.lake.units import BRONZE, LAYERS, SILVER, plan
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.replays import NormalizedReplay, replay_normalized
from tardis_machine.replays.requests import ReplayNormalizedOptions

TYPES: Final = ("trade", "book_change")


def cpu_seconds() -> float:
    """Add up what this session's processes have used: Python, the JVM, its Python workers."""
    ticks, own = 0, os.getsid(0)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # it has ended meanwhile; who waited for it has its time
        if int(fields[3]) == own:
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def replays(
    minutes: int, workloads: Sequence[Workload] = WORKLOADS, types: Sequence[str] = TYPES
) -> list[ReplayNormalizedOptions]:
    start = int(START.timestamp()) * 1_000_000
    return [
        ReplayNormalizedOptions(
            exchange=workload.exchange,
            from_=start,
            to=start + minutes * 60_000_000,
            data_types=tuple(types),
            symbols=workload.symbols,
        )
        for workload in workloads
    ]


def cache(minutes: int, messages: int) -> Path:
    """Put the exchanges' generated data into one cache."""
    joined = DIRECTORY / f"lake-{minutes}m-{messages}"
    (joined / "feeds").mkdir(parents=True, exist_ok=True)
    for workload in WORKLOADS:
        made = generate(workload, DIRECTORY, count=minutes, messages=messages)
        link = joined / "feeds" / workload.exchange
        if not link.exists():
            link.symlink_to(made.resolve() / "feeds" / workload.exchange)
    return joined


def library(cache_dir: Path, minutes: int, *, encode: bool) -> dict[str, float]:
    """Replay in this process; with `encode`, into Bronze envelopes as well."""
    began, used, count = time.perf_counter(), cpu_seconds(), 0
    encoder = Encoder(Context(origin=Origin.REPLAY))
    for option in replays(minutes):
        with replay_normalized(
            exchange=option.exchange,
            from_=START,
            to=START + timedelta(minutes=minutes),
            symbols=option.symbols,
            data_types=list(option.data_types),
            cache_dir=cache_dir,
        ) as replay:
            for batch in replay.batches():
                if encode:
                    encoder.encode_lines(batch.data, count)
                count += batch.count
    seconds = time.perf_counter() - began
    return {"events": count, "seconds": seconds, "cpu": cpu_seconds() - used}


def spark_backfill(
    cache_dir: Path, minutes: int, cores: int, tables_dir: Path, *, what: str
) -> dict[str, Any]:
    """Backfill some layers on so many cores: a minute first, for what is paid once, then all.

    With `start` nothing but the session is measured.
    """
    began, used = time.perf_counter(), cpu_seconds()
    spark = session(master=f"local[{cores}]", settings={"spark.driver.memory": "4g"})
    spark.range(10).count()
    if what == "start":
        return {"events": 0, "seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}
    layers = {"silver": (SILVER,), "bronze": (BRONZE,)}.get(what, LAYERS)
    found: dict[str, Any] = {}
    for name, length in (("first", 1), ("all", minutes)):
        tables = Tables(spark, str(tables_dir / name))
        units = plan(replays(length), layers=layers)
        began, used = time.perf_counter(), cpu_seconds()
        report = backfill.run(tables, units, {"cacheDir": str(cache_dir)}, attempts=1)
        assert not report.failed, report.failed
        seconds, used = time.perf_counter() - began, cpu_seconds() - used
        found = {"events": report.events, "seconds": seconds, "cpu": used, "first": found}
    found["sizes"] = [size(tables, name)._asdict() for name in existing(tables)]
    return found


SOAK_EVENTS: Final = 500
"""Of a batch, at most: what a few busy symbols send in five seconds."""
DAY_TYPES: Final = ("trade", "book_change", "book_snapshot_5_1s")


def spark_day(messages: int, memory: str, tables_dir: Path) -> dict[str, Any]:
    """Backfill one day of one exchange, Bronze and Silver, and watch what it takes."""
    workload = WORKLOADS[0]
    cache_dir = generate(workload, DIRECTORY, count=1440, messages=messages)
    spark = session(master="local[2]", settings={"spark.driver.memory": memory})
    tables = Tables(spark, str(tables_dir))
    ended, taken = threading.Event(), []

    def watch() -> None:
        while not ended.wait(2):
            taken.append((time.perf_counter(), *resident()))

    watching = threading.Thread(target=watch)
    watching.start()
    began, used = time.perf_counter(), cpu_seconds()
    try:
        units = plan(replays(1440, [workload], DAY_TYPES))
        report = backfill.run(tables, units, {"cacheDir": str(cache_dir)}, attempts=1)
    finally:
        ended.set()
        watching.join()
    assert not report.failed, report.failed
    seconds = time.perf_counter() - began
    quarters = [
        [max(each[column] for each in part) for column in (1, 2)]
        for quarter in range(4)
        if (part := [each for each in taken if int((each[0] - began) / seconds * 4) == quarter])
    ]
    return {
        "events": report.events,
        "seconds": seconds,
        "cpu": cpu_seconds() - used,
        "quarters": quarters,
        "sizes": [size(tables, name)._asdict() for name in existing(tables)],
    }


def resident() -> tuple[int, int]:
    """Measure the memory of the JVM, and of its largest Python worker."""
    jvm = python = 0
    own = os.getsid(0)
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = status.read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        parts = fields.split()
        if int(parts[3]) != own or int(status.parent.name) == os.getpid():
            continue
        size = int(parts[21]) * os.sysconf("SC_PAGE_SIZE")
        if name == "java":
            jvm = max(jvm, size)
        else:
            python = max(python, size)
    return jvm, python


def encoded(cache_dir: Path, minutes: int, events: int) -> Iterator[tuple[bytes, bytes]]:
    """Give events of all exchanges as a publisher sends them: key and value."""
    encoder = Encoder(Context(origin=Origin.REPLAY))
    for option in replays(minutes):
        position = 0
        with replay_normalized(
            exchange=option.exchange,
            from_=START,
            to=START + timedelta(minutes=minutes),
            symbols=option.symbols,
            data_types=list(TYPES),
            cache_dir=cache_dir,
        ) as replay:
            for batch in replay.batches():
                for event in encoder.encode_lines(batch.data, position).events():
                    yield event.symbol.encode(), event.value
                position += batch.count
                if position >= events // len(WORKLOADS):
                    break


def spark_stream(cache_dir: Path, minutes: int, events: int, tables_dir: Path) -> dict[str, Any]:
    """Publish events to a real broker, then measure how they get into Bronze and Silver.

    A tenth first, for what is paid once; then the rest, to be read in the same session.
    """
    from confluent_kafka import Producer  # noqa: PLC0415 - only here
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    from tests.support.servers.kafka import KafkaBroker  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.address})
            admin.create_topics([NewTopic("bench", num_partitions=2)])["bench"].result(30)
            producer = Producer(
                {"bootstrap.servers": broker.address, "queue.buffering.max.messages": 10_000_000}
            )
            spark = session(master="local[2]", settings={"spark.driver.memory": "4g"})
            spark.range(10).count()
            tables = Tables(spark, str(tables_dir))
            rows = kafka_stream(
                spark,
                KafkaConfig(brokers=(broker.address,), topic="bench"),
                Asked(max_events=200_000),
            )
            published = encoded(cache_dir, minutes, events)
            found: dict[str, Any] = {}
            for most in (events // 10, None):
                sent = 0
                for key, value in itertools.islice(published, most):
                    producer.produce("bench", value, key)
                    producer.poll(0)
                    sent += 1
                producer.flush()
                began, used = time.perf_counter(), cpu_seconds()
                place = str(tables_dir / "checkpoint")
                streaming.wait(streaming.start(tables, rows, place, once=True))
                seconds, used = time.perf_counter() - began, cpu_seconds() - used
                found = {"events": sent, "seconds": seconds, "cpu": used, "first": found}
            return found
        finally:
            broker.kill()


def spark_soak(batches: int, case: str | None, tables_dir: Path) -> dict[str, Any]:
    """Write many small batches of one day, as a stream does, and time each.

    With a payload case, of that alone: trades are what is compared with most of what is there.
    """
    workload = WORKLOADS[0]
    cache_dir = generate(workload, DIRECTORY, count=60, messages=1_200_000)
    [option] = replays(60, [workload])
    encoder, values = Encoder(Context(origin=Origin.REALTIME)), []
    with (
        History(cache_dir=cache_dir) as history,
        NormalizedReplay([option], history=history) as replay,
    ):
        position = 0
        for batch in replay.batches():
            include = None if case is None else {case}
            values += encoder.encode_lines(batch.data, position, include).values()
            position += batch.count
            if len(values) >= batches * SOAK_EVENTS:
                break
    each = min(SOAK_EVENTS, len(values) // batches)
    spark = session(master="local[2]")
    tables = Tables(spark, str(tables_dir))
    began, used, seconds, spent = time.perf_counter(), cpu_seconds(), [], [cpu_seconds()]
    for number in range(batches):
        own = values[number * each : (number + 1) * each]
        rows = [("soak", "soak", 0, number, None, None, None, value) for value in own]
        records = spark.createDataFrame(rows, schema_of(RECORD))
        started = time.perf_counter()
        write_batch(tables, records, Commit("soak", number), may_repeat=False)
        seconds.append(time.perf_counter() - started)
        if (number + 1) % 100 == 0:
            last = sorted(seconds[-100:])
            spent.append(cpu_seconds())
            files = {name: size(tables, name).files for name in existing(tables)}
            print(
                f"{number + 1}: median {last[50]:.2f} s, {(spent[-1] - spent[-2]) / 100:.2f} s CPU "
                f"each, {files}",
                file=sys.stderr,
                flush=True,
            )
    return {
        "events": batches * each,
        "seconds": time.perf_counter() - began,
        "cpu": cpu_seconds() - used,
        "medians": [
            sorted(part)[len(part) // 2]
            for part in (
                seconds[at : at + batches // 10] for at in range(0, batches, batches // 10)
            )
        ],
        "sizes": [size(tables, name)._asdict() for name in existing(tables)],
    }


def apart(cores: int, **task: object) -> dict[str, Any]:
    """Measure one thing in a process of its own, on as many processors as it may use."""
    allowed = sorted(os.sched_getaffinity(0))[:cores]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lake", "--task", json.dumps({**task, "cores": cores})],
        check=False,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: os.sched_setaffinity(0, allowed),
    )
    if done.returncode:
        sys.exit(f"{task} failed")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(task: Mapping[str, Any]) -> dict[str, Any]:
    what, minutes = task["what"], task["minutes"]
    folder = Path(tempfile.mkdtemp(prefix="lake-"))
    try:
        if what == "day":
            return spark_day(task["messages"], task["memory"], folder)
        if what == "soak":
            return spark_soak(task["batches"], task["case"], folder)
        cache_dir = cache(minutes, task["messages"])
        if what in {"replay", "encode"}:
            return library(cache_dir, minutes, encode=what == "encode")
        if what == "stream":
            return spark_stream(cache_dir, minutes, task["events"], folder)
        return spark_backfill(cache_dir, minutes, task["cores"], folder, what=what)
    finally:
        shutil.rmtree(folder)


class Report:
    """Measures one thing after the other and prints each."""

    def __init__(self, **common: object) -> None:
        self._common = common
        self.found: dict[str, dict[str, Any]] = {}

    def measure(self, name: str, cores: int, **task: object) -> dict[str, Any]:
        before = os.getloadavg()[0]
        found = self.found[name] = apart(cores, **self._common, **task)
        count = found["events"]
        rate, each = count / found["seconds"], found["cpu"] / max(count, 1) * 1e6
        rates = f"{rate:>10,.0f} events/s {each:>7.1f} µs each" if count else ""
        print(
            f"{name:<34}{count:>12,} events {found['seconds']:>8.1f} s {found['cpu']:>8.1f} s CPU "
            f"{rates}   (load before: {before:.1f})",
            flush=True,
        )
        return found


def hour(minutes: int, messages: int, events: int) -> None:
    report = Report(minutes=minutes, messages=messages, events=events)
    cache_dir = cache(minutes, messages)
    report.measure("library, replay", 1, what="replay")
    report.measure("library, replay + encode", 1, what="encode")
    report.measure("spark, start", 2, what="start")
    for what in ("silver", "bronze", "both"):
        one, two = (report.measure(f"spark, {what}, {n} core(s)", n, what=what) for n in (1, 2))
        print(f"  2 cores / 1 core: {one['seconds'] / two['seconds']:.2f} ×")
        show_first(two)
    show_first(report.measure("kafka to silver, 2 cores", 2, what="stream"))
    raw = sum(path.stat().st_size for path in cache_dir.glob("feeds/*/*/**/*.json.*"))
    print(f"raw, compressed slices: {raw / 2 / two['events']:.0f} bytes/event")
    show_sizes(two)


def day(messages: int, memory: str) -> None:
    report = Report(minutes=1440, messages=messages, memory=memory)
    found = report.measure(f"a day, 2 cores, {memory}", 2, what="day")
    for number, (jvm, python) in enumerate(found["quarters"], 1):
        print(f"  quarter {number}: JVM {jvm >> 20:,} MB, largest worker {python >> 20:,} MB")
    show_sizes(found)


def soak(batches: int, case: str | None) -> None:
    report = Report(minutes=60, batches=batches, case=case)
    found = report.measure(f"{batches} batches, 2 cores", 2, what="soak")
    print("  median seconds of each tenth:", *(f"{each:.2f}" for each in found["medians"]))
    show_sizes(found)


def show_first(found: Mapping[str, Any]) -> None:
    first = found["first"]
    print(
        f"  before that, {first['events']:,} events: "
        f"{first['seconds']:.1f} s, {first['cpu']:.1f} s CPU"
    )


def show_sizes(found: Mapping[str, Any]) -> None:
    for each in found["sizes"]:
        if each["rows"] and each["name"] != "backfills":
            print(
                f"{each['name']}: {each['rows']:,} rows, {each['files']:,} files, "
                f"{each['bytes'] / each['rows']:.1f} bytes/row"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--events", type=int, default=1_200_000, help="to stream through Kafka")
    parser.add_argument("--day", action="store_true", help="one day of one exchange")
    parser.add_argument("--memory", default="2g", help="of Spark's driver, for --day")
    parser.add_argument("--soak", type=int, metavar="BATCHES", help="small batches, one by one")
    parser.add_argument("--case", help="of --soak, the only payload case, such as trade")
    parser.add_argument("--task", help="one measurement, as JSON; for itself")
    given = parser.parse_args()
    if given.task:
        print(json.dumps(run(json.loads(given.task))))
    elif given.soak:
        soak(given.soak, given.case)
    elif given.day:
        day(given.messages or 30_000_000, given.memory)
    else:
        hour(given.minutes, given.messages or 1_200_000, given.events)


if __name__ == "__main__":
    main()
