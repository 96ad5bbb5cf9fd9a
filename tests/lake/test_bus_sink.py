"""From Spark to real buses: a backfill, a frame, a stream; nothing lost, order kept, accounted."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tardis_machine.bronze import Context, Encoder
from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.history import History
from tardis_machine.history.sample import SAMPLE
from tardis_machine.lake import events as bronze
from tardis_machine.lake import manifest, streaming
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.running import run_lanes
from tardis_machine.lake.shipping import Shipped
from tardis_machine.lake.sinks import bus as bus_sink
from tardis_machine.lake.sinks import sending
from tardis_machine.lake.sinks.backfill import Target, keyed_by_symbol, layer
from tardis_machine.lake.tables import EVENTS, MANIFEST, Commit, Tables
from tardis_machine.lake.units import Unit
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.requests import Request, replay_normalized_options
from tests.lake.events import trade
from tests.lake.records import records
from tests.publish.buses.benches import BENCHES
from tests.support.ports import free_ports
from tests.support.servers.redis import RedisServer

RANGE = ("--from", "2024-03-01", "--to", "2024-03-01T00:01")
TYPES = ("trade", "trade_bar_10s")


def backfill(manifest: Path, *flags: str) -> int:
    own = ["--sample-data", "--exchange", "bitmex", *RANGE]
    if "--types" not in flags:
        own += ["--types", ",".join(TYPES)]
    return main(["backfill", *own, "--manifest", str(manifest), *flags])


def expected(exchange: str) -> list[str]:
    """Give the ids that a server's publisher would send, in order."""
    asked = [
        {
            "exchange": exchange,
            "from": "2024-03-01",
            "to": "2024-03-01T00:01",
            "dataTypes": TYPES,
            "withDisconnectMessages": True,
        }
    ]
    options = replay_normalized_options(list(map(Request, asked)))
    encoder, position, found = Encoder(Context()), 0, []
    with (
        History(endpoint="http://unused", api_key="", cache_dir=None, source=SAMPLE) as history,
        NormalizedReplay(options, history=history) as replay,
    ):
        for batch in replay.batches():
            found += [e.event_id for e in encoder.encode_lines(batch.data, position).events()]
            position += batch.count
    return found


@pytest.mark.kafka
def test_a_backfill_reaches_all_five_buses_and_is_written_down(
    spark: SparkSession,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    benches = {
        name: BENCHES[name](request) for name in ("kafka", "nats", "kinesis", "sqs", "redis")
    }
    flags = [flag for bench in benches.values() for flag in bench.flags()]
    flags += ["--to-bus", ",".join(benches), "--dead-letter-dir", str(tmp_path / "letters")]
    assert backfill(tmp_path, *flags) == 0
    ids = expected("bitmex")
    place = {event_id: number for number, event_id in enumerate(ids)}
    for name, bench in benches.items():
        arrived = bench.arrived()
        assert {each.headers["event-id"] for each in arrived} == set(ids), name
        assert len(arrived) == len(ids), name
        order: dict[str, list[int]] = {}
        for each in arrived:
            order.setdefault(each.key, []).append(place[each.envelope.event_id])
        if name != "sqs":  # a standard queue keeps no order of its own
            assert all(places == sorted(places) for places in order.values()), name
    lines = Tables(spark, str(tmp_path)).read(MANIFEST).collect()
    assert {(line.rejected, line.filtered) for line in lines} == {(0, 0)}
    by_bus = {name: sum(e.events for e in lines if e.layer.startswith(name)) for name in benches}
    assert by_bus == dict.fromkeys(benches, len(ids))

    # What was sent is not sent again, unless it is to be; another destination is another matter.
    capsys.readouterr()
    assert backfill(tmp_path, *flags) == 0
    said = capsys.readouterr().out
    assert all(f"1 of 1 days are there already for {name}" in said for name in benches)
    redis = benches["redis"]
    assert backfill(tmp_path, "--to-bus", "redis", *redis.flags(), "--force") == 0
    assert len(redis.arrived()) == 2 * len(ids)
    other = RedisConfig(url=redis.server.url, stream="other")
    assert layer("redis", other) != layer("redis", redis.config())


def test_what_a_bus_refuses_is_a_dead_letter_and_counted(
    spark: SparkSession, redis: RedisServer, tmp_path: Path
) -> None:
    stream, wrong = f"sink-{uuid4()}", f"text-{uuid4()}"
    redis.client().set(wrong, "no stream")
    flags = ["--to-bus", "redis", "--redis-url", redis.url, "--redis-stream", stream]
    flags += ["--redis-stream-routing", f"tradeBar:{wrong}"]
    flags += ["--redis-include-payloads", "trade,tradeBar", "--bus-max-rate", "1000000"]
    letters = tmp_path / "letters"
    flags += ["--types", "trade,trade_bar_10s,book_change", "--dead-letter-dir", str(letters)]
    assert backfill(tmp_path, *flags) == 0
    lines = Tables(spark, str(tmp_path)).read(MANIFEST).collect()
    counts = {line.data_type: (line.events, line.rejected, line.filtered) for line in lines}
    sent, dead, filtered = max(counts["trade"]), max(counts["trade_bar_10s"]), 0
    assert counts["trade"] == (sent, 0, 0)
    assert counts["trade_bar_10s"] == (0, dead, 0)
    assert counts["book_change"][:2] == (0, 0)
    filtered = counts["book_change"][2]
    assert min(sent, dead, filtered) > 0
    assert redis.client().xlen(stream) == sent
    written = (letters / "redis.ndjson").read_text().splitlines()
    assert len(written) == dead
    assert all("WRONGTYPE" in line for line in written)


def test_too_many_dead_letters_are_an_error(redis: RedisServer) -> None:
    config = RedisConfig(url=redis.url, stream=f"sink-{uuid4()}")
    batch = pa.RecordBatch.from_pydict({"value": [trade(0), b"garbage", trade(1), b"garbage"]})
    task = sending.Sending("redis", Shipped(config), PublishConfig(), max_dead_letters=2)
    sent = task.run([batch])
    assert sent.accounts == {"trade": sending.Account(2), "unreadable": sending.Account(dead=2)}
    assert [letter.line for letter in sent.letters] == ["garbage", "garbage"]
    task = replace(task, max_dead_letters=1)
    with pytest.raises(sending.TooManyDeadLettersError, match=r"more than 1 dead letters"):
        task.run([batch])


def test_a_bus_that_is_away_fails_the_task_with_its_reason() -> None:
    config = RedisConfig(port=free_ports(1)[0], stream="s")
    task = sending.Sending("redis", Shipped(config), PublishConfig(retry_max=2, retry_min_ms=1))
    with pytest.raises(LakeError, match=r"1 of 1 records were not taken.*--retry-max.*redis"):
        task.run([pa.RecordBatch.from_pydict({"value": [trade(0)]})])


def test_a_frame_and_a_stream_are_written_to_a_bus(
    spark: SparkSession, redis: RedisServer, tables: Tables, tmp_path: Path
) -> None:
    stream = f"sink-{uuid4()}"
    bus_sink.register(spark)
    values = [trade(number) for number in range(30)]
    frame = records(spark, values).coalesce(1)
    options = {"bus": "redis", "url": redis.url, "stream": stream, "maxBatchSize": "7"}
    frame.write.format("tardis-bus").options(**options).mode("append").save()
    client = redis.client()
    assert [fields[b"value"] for _, fields in client.xrange(stream)] == values

    # Rows of Bronze, brought together by key, and the table as a stream.
    tables.append_once(bronze.events(bronze.inspected(frame)), EVENTS, Commit("test", 0))
    keyed = bus_sink.by_key(tables.read(EVENTS))
    keyed.write.format("tardis-bus").options(**options).mode("append").save()
    assert [fields[b"value"] for _, fields in client.xrange(stream)][30:] == values
    events = spark.readStream.format("delta").load(tables.path(EVENTS))
    query = (
        events.select("value")
        .writeStream.format("tardis-bus")
        .options(**options)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    streaming.wait(query)
    ids = [fields[b"event-id"] for _, fields in client.xrange(stream)]
    assert len(ids) == 90
    assert len(set(ids)) == 30

    # What is no envelope fails the write, unless there is a place for dead letters.
    bad = records(spark, [values[0], b"garbage"]).coalesce(1)
    with pytest.raises(Exception, match="there is no dead_letter_dir"):
        bad.write.format("tardis-bus").options(**options).mode("append").save()
    kept = {**options, "dead_letter_dir": str(tmp_path / "letters")}
    bad.write.format("tardis-bus").options(**kept).mode("append").save()
    [letter] = (tmp_path / "letters" / "redis.ndjson").read_text().splitlines()
    assert "garbage" in letter
    client.close()


class Schema:
    names = ("value",)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, r"bus.*expected one of kafka, nats"),
        ({"bus": "redis"}, r"stream.*is needed by redis"),
        ({"bus": "redis", "stream": "s", "password": "x"}, r"secret.*TM_REDIS_PASSWORD"),
        ({"bus": "redis", "stream": "s", "streem": "t"}, r"streem.*unknown option"),
        ({"bus": "redis", "stream": "s", "max_rate": "0"}, r"max_rate '0'.*above 0"),
    ],
)
def test_options_that_cannot_work_are_named(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        bus_sink.writing(options, Schema, {})


def test_settings_travel_with_their_files(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("signed")
    shipped = Shipped(RedisConfig(stream="s", tls=True, tls_ca=authority))
    authority.unlink()
    config = shipped.unpacked()
    assert config.tls_ca is not None
    assert config.tls_ca.read_text() == "signed"
    assert config.stream == "s"


def test_symbols_are_spread_only_where_no_key_is_of_several() -> None:
    def spread(config: KafkaConfig | RedisConfig | NatsConfig) -> bool:
        return keyed_by_symbol(Target("any", config, []))

    kafka = {"brokers": ("b:1",), "topic": "t"}
    assert spread(KafkaConfig(**kafka))
    assert not spread(KafkaConfig(**kafka, key_template="{{exchange}}"))
    assert not spread(RedisConfig(stream="s"))
    assert spread(RedisConfig(stream="s", key_template="{{symbol}}"))
    routed = RedisConfig(stream="s", key_template="{{symbol}}", stream_routing={"trade": "t"})
    assert not spread(routed)


def test_a_rate_is_kept_to(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(sending.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(sending.time, "sleep", lambda s: now.__setitem__(0, now[0] + s))
    pace = sending._Pace(50)
    assert pace.most(1000) == 5
    for _ in range(11):
        pace.wait(5)
    assert now[0] == pytest.approx(1.0)
    assert sending._Pace(None).most(1000) == 1000


def test_days_behind_one_that_failed_wait_where_order_is_promised() -> None:
    day = 86_400_000_000
    lanes = [
        [
            Unit(name, number * day, (number + 1) * day, ("trade",), None, ("kafka:x",))
            for number in range(3)
        ]
        for name in ("bitmex", "deribit")
    ]
    sent: list[tuple[str, int]] = []

    def writer(unit: Unit) -> Callable[[], manifest.Counts]:
        def write() -> manifest.Counts:
            if unit.exchange == "bitmex" and unit.day == 1:
                raise OSError("no broker")
            sent.append((unit.exchange, unit.day))
            return {("kafka:x", "trade"): manifest.Count(7)}

        return write

    settings = {"threads": 2, "attempts": 2, "wait_s": 0}
    report = run_lanes(None, lanes, writer, **settings, in_order=True)
    assert sorted(sent) == [("bitmex", 0), ("deribit", 0), ("deribit", 1), ("deribit", 2)]
    assert [(each.unit.day, each.error) for each in report.failed] == [
        (1, "no broker"),
        (2, "held back behind 1970-01-02, which failed"),
    ]
    assert report.events == 4 * 7
