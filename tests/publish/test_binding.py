"""What a journal is bound to: where records go, and no secret."""

from pathlib import Path

import pytest

from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses import BUSES, bus_config

GIVEN: dict[str, dict[str, object]] = {
    "kafka": {"brokers": "b:9092,a:9092", "topic": "bronze"},
    "kinesis": {"stream": "bronze", "region": "eu-west-1", "secret_access_key": "hunter2",
                "access_key_id": "AKIA"},
    "sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/bronze", "region": "eu-west-1"},
    "redis": {"stream": "bronze", "url": "redis://cache:6379/0", "password": "hunter2"},
    "nats": {"servers": "nats://a:4222,nats://b:4222", "subject": "bronze", "user": "u",
             "pass": "hunter2"},
    "file": {"path": "events.ndjson"},
    "console": {"output": "stdout"},
}  # fmt: skip
ELSEWHERE: dict[str, dict[str, object]] = {
    "kafka": {"topic_routing": "trade:trades"},
    "kinesis": {"region": "us-east-1"},
    "sqs": {"queue_url": "https://sqs.eu-west-1.amazonaws.com/1/silver"},
    "redis": {"url": "redis://another:6379/0"},
    "nats": {"stream": "other"},
    "file": {"path": "others.ndjson"},
    "console": {"output": "stderr"},
}
THE_SAME: dict[str, dict[str, object]] = {
    "kafka": {"brokers": "a:9092,b:9092", "static_headers": "team:quant"},
    "kinesis": {"secret_access_key": "hunter3"},
    "sqs": {"include_payloads": "trade"},
    "redis": {"password": "hunter3"},
    "nats": {"servers": "nats://b:4222,nats://a:4222", "pass": "hunter3"},
    "file": {"path": str(Path.cwd() / "events.ndjson")},
    "console": {"include_payloads": "trade"},
}


def where(name: str, settings: dict[str, object]) -> str:
    return destinations({name: bus_config(name, settings)})[name]


@pytest.mark.parametrize("name", BUSES)
def test_a_bus_is_known_by_where_it_goes(name: str) -> None:
    """Another place is another configuration; another password, key or order of servers is not."""
    given = where(name, GIVEN[name])
    assert "hunter" not in given
    assert where(name, GIVEN[name] | THE_SAME[name]) == given
    assert where(name, GIVEN[name] | ELSEWHERE[name]) != given


def test_it_reads_well() -> None:
    assert where("kafka", GIVEN["kafka"] | ELSEWHERE["kafka"]) == (
        "brokers a:9092,b:9092, topic bronze, trade to trades"
    )
