"""The examples run, against real servers, as their readers would run them."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.servers.aws import KEYS, REGION, Ministack
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.machine import Machine
from tests.support.servers.nats import NatsServer
from tests.support.servers.redis import RedisServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Start servers on the sample data, with the flags of the buses they publish to."""
    started: list[Machine] = []

    def start(*flags: str) -> Machine:
        machine = Machine(tmp_path, "--sample-data", *flags)
        started.append(machine)
        machine.start()
        return machine

    yield start
    for machine in started:
        machine.stop()


def test_replay_over_the_websocket(serve: Callable[..., Machine]) -> None:
    machine = serve()
    printed = run("replay_websocket.py", "--url", f"ws://127.0.0.1:{machine.port + 1}")
    *bars, total = printed.splitlines()
    assert len(bars) > 5
    assert all(" BTCUSDT " in bar for bar in bars)
    assert int(total.split()[0]) > len(bars)


def test_a_strategy_runs_on_history_and_live(
    serve: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    *signals, summary = run("strategy.py").splitlines()
    assert len(signals) > 3
    assert run("strategy.py", "--speed", "1000").splitlines() == [*signals, summary]
    machine = serve()
    query = "exchange=bitmex&from=2024-03-01&to=2024-03-01T00:05"
    url = f"ws://127.0.0.1:{machine.port + 1}/ws-replay?{query}"
    monkeypatch.setenv("WSS_URL_BITMEX", url)  # the exchange of this test sends the past
    bars = summary.split()[0]
    assert run("strategy.py", "--live", "--bars", bars).splitlines() == [*signals, summary]


def test_tables_joined_and_kept(tmp_path: Path) -> None:
    kept = tmp_path / "trades.parquet"
    _, _, *rows, total = run("tables.py", "--parquet", str(kept)).splitlines()
    counts = {symbol: int(count) for symbol, count, _ in map(str.split, rows)}
    assert set(counts) >= {"BTC-PERPETUAL", "ETH-PERPETUAL"}
    assert all(float(row.split()[2]) >= 0 for row in rows)  # who takes pays
    table = pq.read_table(kept)
    assert table.num_rows == sum(counts.values()) == int(total.split()[0])
    assert str(table.schema.field("price").type) == "decimal128(38, 18)"


@pytest.mark.kafka
def test_consume_kafka(serve: Callable[..., Machine], kafka: KafkaBroker) -> None:
    flags = ["--kafka-brokers", kafka.address, "--kafka-topic", "examples", "--kafka-create"]
    machine = serve(*flags)
    expected = machine.replay("bitmex", ["trade"])
    machine.stop()  # which drains
    printed = run(
        "consume_kafka.py", "--brokers", kafka.address, "--topic", "examples",
        "--count", str(len(expected)),
    ).splitlines()  # fmt: skip
    assert sorted(printed) == sorted(
        f"bitmex {trade['symbol']} {trade['price']} x {trade['amount']}" for trade in expected
    )


def test_consume_nats(serve: Callable[..., Machine], nats: NatsServer) -> None:
    flags = ["--nats-servers", nats.url, "--nats-subject", "examples.events"]
    machine = serve(*flags, "--nats-stream", "examples", "--nats-create")
    expected = machine.replay("deribit", ["trade", "derivative_ticker"])
    machine.stop()  # which drains
    printed = run(
        "consume_nats.py", "--server", nats.url, "--stream", "examples",
        "--count", str(len(expected)),
    ).splitlines()  # fmt: skip
    assert printed == [f"deribit {each['symbol']} {each['type']}" for each in expected]


def said(messages: list[dict[str, Any]]) -> list[str]:
    return [f"{each['exchange']} {each['symbol']} {each['type']}" for each in messages]


def test_consume_kinesis(
    serve: Callable[..., Machine], ministack: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = known_to_the_sdk(ministack, monkeypatch)
    place = ["--kinesis-region", REGION, "--kinesis-endpoint-url", url]
    machine = serve(*place, "--kinesis-stream", "examples", "--kinesis-create")
    expected = machine.replay("deribit", ["trade"])
    machine.stop()  # which drains
    printed = run(
        "consume_kinesis.py", "--region", REGION, "--endpoint-url", url,
        "--stream", "examples", "--count", str(len(expected)),
    ).splitlines()  # fmt: skip
    assert sorted(printed) == sorted(said(expected))


def test_consume_sqs(
    serve: Callable[..., Machine], ministack: Ministack, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = known_to_the_sdk(ministack, monkeypatch)
    queue = ministack.client("sqs").create_queue(QueueName="examples")["QueueUrl"]
    place = ["--sqs-region", REGION, "--sqs-endpoint-url", url, "--sqs-queue-url", queue]
    machine = serve(*place)
    expected = machine.replay("deribit", ["trade"])
    machine.stop()  # which drains
    printed = run(
        "consume_sqs.py", "--region", REGION, "--endpoint-url", url, "--queue-url", queue,
        "--count", str(len(expected)),
    ).splitlines()  # fmt: skip
    assert sorted(printed) == sorted(said(expected))


def known_to_the_sdk(ministack: Ministack, monkeypatch: pytest.MonkeyPatch) -> str:
    """Leave credentials where the SDK looks for them; gives the endpoint."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEYS["access_key_id"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", KEYS["secret_access_key"])
    return ministack.url


def test_consume_redis(serve: Callable[..., Machine], redis: RedisServer) -> None:
    machine = serve("--redis-url", redis.url, "--redis-stream", "examples")
    expected = machine.replay("deribit", ["trade"])
    machine.stop()  # which drains
    printed = run(
        "consume_redis.py", "--url", redis.url, "--stream", "examples",
        "--count", str(len(expected)),
    ).splitlines()  # fmt: skip
    assert printed == said(expected)


@pytest.mark.slow
@pytest.mark.spark
def test_spark_notebook(tmp_path: Path) -> None:
    printed = run("spark_notebook.py")
    assert "1 of 1 days are there already" in printed
    assert "XBTUSD" in printed
