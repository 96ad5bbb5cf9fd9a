"""Server → bus → stream → tables, killed on the way; a cluster; the commands."""

import os
import signal
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from py4j.java_gateway import GatewayClient
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f

from tardis_machine.bronze.decoder import decode
from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.lake import streaming
from tardis_machine.lake.sources import kafka as kafka_source
from tardis_machine.lake.sources.streams import Asked
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Tables
from tardis_machine.messages import (
    BookChange,
    DerivativeTicker,
    Message,
    Time,
    Trade,
    TradeBar,
    decode_lines,
    encode_lines,
)
from tardis_machine.publish.buses.kafka import KafkaConfig
from tests.lake.commands import launch
from tests.lake.records import produce
from tests.lake.rows import numbered
from tests.support.machines import Machine
from tests.support.servers.kafka import KafkaBroker
from tests.support.waiting import wait_until

REPLAY = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:02",
    "dataTypes": ["trade", "book_change", "derivative_ticker", "trade_bar_10s"],
}
STOPS_BEFORE_SILVER = """
import sys, time
from pathlib import Path
from tardis_machine.cli import main
from tardis_machine.lake import batches
from tardis_machine.lake.tables import Tables
append_once, write_silver, appended, calls = Tables.append_once, batches.write_silver, [], []
def append_and_tell(*arguments):
    append_once(*arguments)
    appended.append(arguments)
def stop_at_the_second(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        while len(appended) < 2:
            time.sleep(0.1)
        Path(sys.argv[1]).touch()
        time.sleep(600)
    return write_silver(*arguments)
Tables.append_once, batches.write_silver = append_and_tell, stop_at_the_second
sys.exit(main(["lake", *sys.argv[2:]]))
"""
"""The command, but for a pause in the middle of the second batch, when Bronze has it."""


@pytest.mark.whole_path
@pytest.mark.kafka
def test_what_the_server_sends_is_in_the_tables_after_a_kill(
    kafka: KafkaBroker, tables: Tables, tmp_path: Path
) -> None:
    topic = f"end-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
    flags = ("--kafka-brokers", kafka.address, "--kafka-topic", topic)
    server = Machine(tmp_path / "log", "--journal-dir", str(tmp_path / "journal"), *flags)
    response = server.get("/replay-normalized", REPLAY)
    assert server.get("/replay-normalized", REPLAY) == response  # published again
    assert server.stop(signal.SIGTERM) == 0
    produce(kafka, topic, [b"garbage"])
    expected = decode_lines(response)
    batch = len(expected) // 3

    # Killed in the middle of the second batch: Bronze has it, Silver does not.
    reached = tmp_path / "reached"
    job = launch(
        *(sys.executable, "-c", STOPS_BEFORE_SILVER, reached),
        *("stream", "--from-bus", "kafka", *flags, "--to-tables", tables.root),
        *("--max-events-per-batch", str(batch), "--interval-s", "0"),
    )
    wait_until(
        lambda: reached.exists() or job.poll() is not None, "the second batch", patience_s=800
    )
    os.killpg(job.pid, signal.SIGKILL)
    said, _ = job.communicate()
    assert reached.exists(), said
    in_bronze = tables.read(EVENTS).select("event_id").distinct().count()
    in_silver = sum(tables.read(table).count() for table in SILVER.values() if tables.exists(table))
    assert 0 < in_silver < in_bronze

    config = KafkaConfig(brokers=(kafka.address,), topic=topic)
    rows = kafka_source.stream(tables.spark, config, Asked(max_events=10**6))
    checkpoint = streaming.default_checkpoint(tables.root, "kafka")
    streaming.wait(streaming.start(tables, rows, checkpoint, once=True))

    events = tables.read(EVENTS)
    assert events.count() == 2 * len(expected)
    assert events.select("partition", "offset").distinct().count() == 2 * len(expected)
    requests = [row[0] for row in events.select(f.col("meta")["request_id"]).distinct().collect()]
    assert len(requests) == 2
    for request in requests:
        own = events.where(f.col("meta")["request_id"] == request).orderBy("position")
        sent = [decode(bytes(row.value))[0] for row in own.select("value").collect()]
        assert encode_lines(sent) == response
    [garbage] = tables.read(QUARANTINE).collect()
    assert bytes(garbage.value) == b"garbage"
    for case, kind in (
        ("trade", Trade),
        ("bookChange", BookChange),
        ("derivativeTicker", DerivativeTicker),
        ("tradeBar", TradeBar),
    ):
        held = numbered(tables.read(SILVER[case])).orderBy("position").collect()
        messages = [message for message in expected if isinstance(message, kind)]
        assert len(held) == len(messages) > 0
        for row, message in zip(held, messages, strict=True):
            assert_same(row, message)


COLUMNS = {
    "id": "trade_id",
    "trades": "trade_count",
    "timestamp": "event_ts",
    "local_timestamp": "local_ts",
    "funding_timestamp": "funding_ts",
    "open_timestamp": "open_ts",
    "close_timestamp": "close_ts",
}


def assert_same(row: Row, message: Message) -> None:
    """Compare every value of a message, times and texts among them, with its column."""
    for name in message.__struct_fields__:
        value, held = getattr(message, name), row[COLUMNS.get(name, name)]
        if name in {"bids", "asks"}:
            assert [(level.price, level.amount) for level in held] == [
                (exact(level.price), exact(level.amount)) for level in value
            ]
        else:
            assert held == exact(value), name


def exact(value: Any) -> Any:
    return Decimal(repr(value)) if isinstance(value, float) else value


def test_comparing_a_row_finds_any_difference() -> None:
    message = Trade(
        symbol="XBTUSD",
        exchange="bitmex",
        id="T-1",
        price=1.5,
        amount=2.0,
        side="buy",
        timestamp=Time(1_709_251_200_000_000),
        local_timestamp=Time(1_709_251_200_000_001),
    )
    right = {
        "symbol": "XBTUSD",
        "exchange": "bitmex",
        "trade_id": "T-1",
        "price": Decimal("1.5"),
        "amount": Decimal(2),
        "side": "buy",
        "event_ts": 1_709_251_200_000_000,
        "local_ts": 1_709_251_200_000_001,
    }
    assert_same(Row(**right), message)
    for name in right:
        with pytest.raises(AssertionError):
            assert_same(Row(**{**right, name: None}), message)


def test_a_cluster_of_processes_backfills(spark: SparkSession, tables: Tables) -> None:
    job = launch(
        *(Path(sys.executable).with_name("tardis-machine"), "lake", "backfill"),
        *("--sample-data", "--exchange", "bitmex,deribit", "--types", "trade"),
        *("--from", "2024-03-01", "--to", "2024-03-01T00:01", "--to-tables", tables.root),
        *("--master", "local-cluster[2,1,1024]"),
    )
    said, _ = job.communicate(timeout=800)
    assert job.returncode == 0, said
    assert "2/2 days done" in said
    trades = tables.read(SILVER["trade"])
    assert {row[0] for row in trades.select("exchange").distinct().collect()} == {
        "bitmex",
        "deribit",
    }
    assert trades.count() == tables.read(EVENTS).where("payload_case = 'trade'").count()


def test_commands_on_tables_that_are_there(
    spark: SparkSession, tables: Tables, capsys: pytest.CaptureFixture[str]
) -> None:
    backfill = [
        *("backfill", "--sample-data", "--exchange", "bitmex", "--symbols", "XBTUSD"),
        *("--types", "book_change,trade", "--from", "2024-03-01", "--to", "2024-03-01T00:01"),
        *("--to-tables", tables.root, "--bronze-only"),
    ]
    assert main(backfill) == 0
    assert "1/1 days done" in capsys.readouterr().out
    assert not tables.exists(SILVER["trade"])
    assert main(backfill) == 0
    assert "1 of 1 days are there already" in capsys.readouterr().out
    # That Bronze is there does not keep Silver from being made.
    assert main(backfill[:-1]) == 0
    assert "1/1 days done" in capsys.readouterr().out
    in_silver = tables.read(SILVER["trade"]).count()
    assert in_silver == tables.read(EVENTS).where("data_type = 'trade'").count() > 0
    # From Bronze come the same rows.
    tables.delete(SILVER["trade"], "true")
    assert main(["silver", "--tables", tables.root]) == 0
    assert tables.read(SILVER["trade"]).count() == in_silver
    assert main(["verify", "--tables", tables.root, "--sample-data"]) == 0
    assert "1 units compared, 0 data types differ" in capsys.readouterr().out
    tables.delete(SILVER["trade"], "symbol = 'XBTUSD' AND side = 'buy'")
    assert main(["verify", "--tables", tables.root, "--sample-data"]) == 1
    said = capsys.readouterr().out.splitlines()[-1]
    assert said.startswith("redo: tardis-machine lake backfill --force --exchange bitmex")
    redo = [*said.split()[3:], "--sample-data"]
    assert main(redo) == 0
    assert tables.read(SILVER["trade"]).count() == in_silver
    capsys.readouterr()
    assert main(["quarantine", "--tables", tables.root]) == 0
    assert capsys.readouterr().out == "0 records in quarantine\n"
    assert main(["show", "trades", "--tables", tables.root, "--limit", "3"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["event_id", "exchange", "day"]
    assert len(lines) == 3
    # In UTC, whatever the zone of this machine.
    assert all("2024-03-01 00:00:" in line for line in lines)
    where = "side = 'bid' AND level = 0"
    arguments = ["show", "book_levels", "--tables", tables.root, "--limit", "2", "--where", where]
    assert main(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    events = tables.read(EVENTS).count()
    assert main(["maintain", "--tables", tables.root, "--only", "events,trades"]) == 0
    sizes = capsys.readouterr().out
    assert f"{events:,} rows" in sizes
    assert "1 files" in sizes
    with pytest.raises(ConfigError, match=r"--retain-hours.*168"):
        main(["maintain", "--tables", tables.root, "--vacuum", "--retain-hours", "100"])
    with pytest.raises(ConfigError, match=r"--force.*--bronze-only"):
        main([*backfill, "--force"])


def test_names_of_no_table_are_refused_before_spark_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--only.*candles.*expected one of events, .*trades"):
        main(["maintain", "--tables", str(tmp_path), "--only", "trades,candles"])
    with pytest.raises(ConfigError, match=r"TABLE.*trade.*expected one of .*book_levels"):
        main(["show", "trade", "--tables", str(tmp_path)])


@pytest.mark.parametrize(
    "given",
    [
        ["trade", "--tables", "lake", "--limit=1"],
        ["--tables", "lake", "trade"],
        ["--limit", "1", "--tables=lake", "trade"],
    ],
)
def test_a_table_is_named_before_or_behind_the_flags(given: list[str]) -> None:
    with pytest.raises(ConfigError, match=r"TABLE 'trade': expected one of .*book_levels"):
        main(["show", *given])
    with pytest.raises(ConfigError, match="TABLE: is needed, such as trades"):
        main(["show", *(each for each in given if each != "trade")])


def test_an_interrupt_is_no_traceback_wherever_it_meets_py4j(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Connection:
        socket = None

        def send_command(self, _: str) -> str:
            raise KeyboardInterrupt

    with pytest.raises(ConfigError):
        main(["show", "--tables", "lake"])
    client = GatewayClient()
    client.deque.append(Connection())
    with pytest.raises(KeyboardInterrupt):
        client.send_command("c\n")
    assert capsys.readouterr().err == ""
