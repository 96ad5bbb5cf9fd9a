"""Server → bus → stream → tables, killed on the way; a cluster; the commands."""

import os
import signal
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tardis_machine.bronze.decoder import decode
from tardis_machine.cli.lake import main
from tardis_machine.lake import stream
from tardis_machine.lake.sources import kafka as kafka_source
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Tables
from tardis_machine.messages import (
    BookChange,
    DerivativeTicker,
    Message,
    Trade,
    TradeBar,
    decode_lines,
    encode_lines,
)
from tardis_machine.publish.buses.kafka import KafkaConfig
from tests.cli.conftest import environment
from tests.lake.conftest import SMALL
from tests.lake.test_stream import produce
from tests.publish.machines import Machine, wait_until
from tests.servers.kafka import KafkaBroker
from tests.servers.process import free_ports

REPLAY = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:02",
    "dataTypes": ["trade", "book_change", "derivative_ticker", "trade_bar_10s"],
}


def launch(*arguments: str) -> subprocess.Popen[str]:
    settings = ",".join(f"{name}={value}" for name, value in SMALL.items())
    return subprocess.Popen(
        [Path(sys.executable).with_name("tardis-machine"), "lake", *arguments, "--spark", settings],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(TM_PARTS_DIR=os.environ["TM_PARTS_DIR"]),
        start_new_session=True,
    )


@pytest.mark.kafka
def test_what_the_server_sends_is_in_the_tables_after_a_kill(
    kafka: KafkaBroker, tables: Tables, tmp_path: Path
) -> None:
    topic = f"end-{uuid4()}"
    admin = AdminClient({"bootstrap.servers": kafka.address})
    admin.create_topics([NewTopic(topic, num_partitions=2)])[topic].result(30)
    flags = ("--kafka-brokers", kafka.address, "--kafka-topic", topic)
    port = free_ports(1)[0]
    server = Machine(port, tmp_path / "log", "--journal-dir", str(tmp_path / "journal"), *flags)
    response = server.get("/replay-normalized", REPLAY)
    assert server.get("/replay-normalized", REPLAY) == response  # published again
    assert server.stop(signal.SIGTERM) == 0
    produce(kafka, topic, [b"garbage"])
    expected = decode_lines(response)
    batch = len(expected) // 3

    # Killed in the middle of the second batch: Bronze has it, Silver does not.
    job = launch(
        *("stream", "--from-bus", "kafka", *flags, "--to-tables", tables.root),
        *("--max-events-per-batch", str(batch), "--interval-s", "0"),
    )
    second = Path(tables.path(EVENTS), "_delta_log", f"{2:020}.json")
    wait_until(lambda: second.exists() or job.poll() is not None, "the second batch")
    os.killpg(job.pid, signal.SIGKILL)
    said, _ = job.communicate()
    assert second.exists(), said

    config = KafkaConfig(brokers=(kafka.address,), topic=topic)
    rows = kafka_source.stream(
        tables.spark, config, starting="earliest", max_events=10**6, skip_lost=False
    )
    checkpoint = stream.default_checkpoint(tables.root, "kafka")
    stream.wait(stream.start(tables, rows, checkpoint, once=True))

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
        held = tables.read(SILVER[case]).orderBy("position").collect()
        messages = [message for message in expected if isinstance(message, kind)]
        assert len(held) == len(messages) > 0
        for row, message in zip(held, messages, strict=True):
            assert_same(row, message)


def assert_same(row: Any, message: Message) -> None:
    """Compare each value of a message with its column."""
    names = {"id": "trade_id", "trades": "trade_count"}
    for name in message.__struct_fields__:
        value = getattr(message, name)
        column = names.get(name, name)
        if column not in row or (isinstance(value, str) and "T" in value):
            continue
        held = row[column]
        if isinstance(value, float | int) and not isinstance(value, bool):
            assert held == Decimal(repr(value)), name
        elif name in {"bids", "asks"}:
            assert [(level.price, level.amount) for level in held] == [
                (Decimal(repr(level.price)), Decimal(repr(level.amount))) for level in value
            ]
        elif isinstance(value, str | bool):
            assert held == value, name
        else:
            assert held is None, name


def test_a_cluster_of_processes_backfills(spark: SparkSession, tables: Tables) -> None:
    job = launch(
        *("backfill", "--sample-data", "--exchange", "bitmex,deribit", "--types", "trade"),
        *("--from", "2024-03-01", "--to", "2024-03-01T00:01", "--to-tables", tables.root),
        *("--master", "local-cluster[2,1,1024]"),
    )
    said, _ = job.communicate(timeout=240)
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
    assert main(["silver", "--tables", tables.root]) == 0
    assert main(["show", "trades", "--tables", tables.root, "--limit", "3"]) == 0
    header, *lines = capsys.readouterr().out.splitlines()
    assert header.split()[:3] == ["event_id", "exchange", "day"]
    assert len(lines) == 3
    where = "side = 'bid' AND level = 0"
    arguments = ["show", "book_levels", "--tables", tables.root, "--limit", "2", "--where", where]
    assert main(arguments) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3
    events = tables.read(EVENTS).count()
    assert main(["maintain", "--tables", tables.root, "--only", "events,trades"]) == 0
    sizes = capsys.readouterr().out
    assert f"{events:,} rows" in sizes
    assert "1 files" in sizes
