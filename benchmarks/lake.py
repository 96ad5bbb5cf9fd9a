"""Measure the lake: backfill on one and two cores beside the library, Kafka to Silver, bytes kept.

    python -m benchmarks.lake [--messages 1200000] [--minutes 60] [--events 400000]

Each Spark run is a process of its own, so that none finds what another has warmed up; its start is
not counted. Figures go to benchmarks/README.md by hand, with the machine they are from.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from benchmarks.generate import DIRECTORY, START, WORKLOADS, generate
from tardis_machine.bronze import Context, Encoder, Origin
from tardis_machine.lake import backfill, stream
from tardis_machine.lake.maintain import existing, size
from tardis_machine.lake.session import session
from tardis_machine.lake.sources import tardis
from tardis_machine.lake.sources.kafka import stream as kafka_stream
from tardis_machine.lake.tables import Tables
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.replay import replay_normalized

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


def replays(minutes: int) -> list[ReplayNormalizedOptions]:
    start = int(START.timestamp()) * 1_000_000
    return [
        ReplayNormalizedOptions(
            exchange=workload.exchange,
            from_=start,
            to=start + minutes * 60_000_000,
            data_types=TYPES,
            symbols=workload.symbols,
        )
        for workload in WORKLOADS
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
    """Backfill on so many cores: `source` reads only, `bronze` and `silver` write."""
    spark = session(master=f"local[{cores}]", settings={"spark.driver.memory": "4g"})
    tardis.register(spark)
    spark.range(10).count()
    tables = Tables(spark, str(tables_dir))
    units = backfill.plan(replays(minutes))
    options = {"cacheDir": str(cache_dir), "concurrentTasks": str(cores)}
    began, used = time.perf_counter(), cpu_seconds()
    if what == "source":
        frames = [backfill.records(tables, unit, options) for unit in units]
        joined = frames[0]
        for frame in frames[1:]:
            joined = joined.union(frame)
        joined.write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - began, "cpu": cpu_seconds() - used}
    report = backfill.run(tables, units, options, bronze_only=what == "bronze", attempts=1)
    assert not report.failed, report.failed
    seconds, used = time.perf_counter() - began, cpu_seconds() - used
    sizes = [size(tables, name)._asdict() for name in existing(tables)]
    return {"events": report.events, "seconds": seconds, "cpu": used, "sizes": sizes}


def spark_stream(cache_dir: Path, minutes: int, events: int, tables_dir: Path) -> dict[str, float]:
    """Publish events to a real broker, then measure how they get into Silver."""
    from confluent_kafka import Producer  # noqa: PLC0415 - only here
    from confluent_kafka.admin import AdminClient, NewTopic  # noqa: PLC0415

    from tests.servers.kafka import KafkaBroker  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        broker = KafkaBroker(Path(folder))
        broker.start()
        try:
            admin = AdminClient({"bootstrap.servers": broker.address})
            admin.create_topics([NewTopic("bench", num_partitions=2)])["bench"].result(30)
            producer = Producer(
                {"bootstrap.servers": broker.address, "queue.buffering.max.messages": 10_000_000}
            )
            sent = 0
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
                            producer.produce("bench", event.value, event.symbol.encode())
                            sent += 1
                        position += batch.count
                        producer.poll(0)
                        if position >= events // len(WORKLOADS):
                            break
            producer.flush()
            spark = session(master="local[2]", settings={"spark.driver.memory": "4g"})
            spark.range(10).count()
            tables = Tables(spark, str(tables_dir))
            rows = kafka_stream(
                spark,
                KafkaConfig(brokers=(broker.address,), topic="bench"),
                starting="earliest",
                max_events=200_000,
                skip_lost=False,
            )
            began, used = time.perf_counter(), cpu_seconds()
            stream.wait(stream.start(tables, rows, str(tables_dir / "checkpoint"), once=True))
            seconds = time.perf_counter() - began
            return {"events": sent, "seconds": seconds, "cpu": cpu_seconds() - used}
        finally:
            broker.kill()


def apart(**task: object) -> dict[str, Any]:
    """Measure one thing in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.lake", "--task", json.dumps(task)],
        check=False,
        capture_output=True,
        text=True,
        start_new_session=True,
    )
    if done.returncode:
        sys.exit(f"{task} failed:\n{done.stderr}")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def run(task: Mapping[str, Any], cache_dir: Path, minutes: int, events: int) -> dict[str, Any]:
    what = task["what"]
    if what in {"replay", "encode"}:
        return library(cache_dir, minutes, encode=what == "encode")
    folder = Path(tempfile.mkdtemp(prefix="lake-"))
    try:
        if what == "stream":
            return spark_stream(cache_dir, minutes, events, folder)
        return spark_backfill(cache_dir, minutes, task["cores"], folder, what=what)
    finally:
        shutil.rmtree(folder)


def report(cache_dir: Path, minutes: int, messages: int, events: int) -> None:
    common = {"minutes": minutes, "messages": messages, "events": events}
    rates: dict[str, float] = {}

    def measure(name: str, **task: object) -> dict[str, Any]:
        before = os.getloadavg()[0]
        found = apart(**common, **task)
        count = found.setdefault("events", rates.get("count", 0))
        rates[name] = count / found["seconds"]
        rates.setdefault("count", count)
        print(
            f"{name:<34}{count:>12,} events {found['seconds']:>8.1f} s "
            f"{rates[name]:>10,.0f} events/s {found['cpu'] / count * 1e6:>7.1f} µs CPU each   "
            f"(load before: {before:.1f})",
            flush=True,
        )
        return found

    measure("library, replay", what="replay")
    measure("library, replay + encode", what="encode")
    for what in ("source", "bronze", "silver"):
        for cores in (1, 2):
            found = measure(f"spark, {what}, {cores} core(s)", what=what, cores=cores)
        gain = rates[f"spark, {what}, 2 core(s)"] / rates[f"spark, {what}, 1 core(s)"]
        beside = rates["library, replay + encode"] / rates[f"spark, {what}, 1 core(s)"] - 1
        print(
            f"  2 cores / 1 core: {gain:.2f} ×; beside replay + encode: {beside:+.0%} time a core"
        )
    measure("kafka to silver, 2 cores", what="stream")
    raw = sum(path.stat().st_size for path in cache_dir.glob("feeds/*/*/**/*.json.*"))
    count = rates["count"]
    print(f"raw, compressed slices: {raw / 2 / count:.0f} bytes/event")
    for each in found["sizes"]:
        if each["rows"] and each["name"] != "backfills":
            print(f"{each['name']}: {each['bytes'] / each['rows']:.0f} bytes/event")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--messages", type=int, default=1_200_000)
    parser.add_argument("--minutes", type=int, default=60)
    parser.add_argument("--events", type=int, default=400_000, help="to stream through Kafka")
    parser.add_argument("--task", help="one measurement, as JSON; for itself")
    given = parser.parse_args()
    if given.task:
        task = json.loads(given.task)
        cache_dir = cache(task["minutes"], task["messages"])
        print(json.dumps(run(task, cache_dir, task["minutes"], task["events"])))
        return
    cache_dir = cache(given.minutes, given.messages)
    report(cache_dir, given.minutes, given.messages, given.events)


if __name__ == "__main__":
    main()
