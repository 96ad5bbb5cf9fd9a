"""What a journal is bound to: where records go, and no secret."""

import subprocess
import sys
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
    "sqs": {"attribute_templates": "who:{{symbol}}"},
    "redis": {"password": "hunter3"},
    "nats": {"servers": "nats://b:4222,nats://a:4222", "pass": "hunter3"},
    "file": {"path": str(Path.cwd() / "events.ndjson")},
    "console": {},
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


@pytest.mark.parametrize("name", BUSES)
def test_a_bus_is_known_by_what_it_takes(name: str) -> None:
    """With another allow-list, what waits would be filtered, or what was filtered be sent."""
    given = where(name, GIVEN[name])
    some = where(name, GIVEN[name] | {"include_payloads": "trade,bookChange"})
    assert some == f"{given}, only bookChange and trade"
    assert where(name, GIVEN[name] | {"include_payloads": "bookChange,trade"}) == some
    assert where(name, GIVEN[name] | {"include_payloads": "trade"}) not in (given, some)


def test_a_stream_of_kinesis_is_known_by_the_region_that_the_sdk_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another region it is another stream, though no flag says so."""
    files = tmp_path / "config"
    files.write_text("[profile desk]\nregion = us-east-1\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(files))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    stream: dict[str, object] = {"stream": "bronze"}
    assert where("kinesis", stream) == "stream bronze"
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    assert where("kinesis", stream) == "stream bronze"
    monkeypatch.setenv("AWS_PROFILE", "desk")
    assert where("kinesis", stream) == "stream bronze, region us-east-1"
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
    assert where("kinesis", stream) == where("kinesis", stream | {"region": "eu-west-1"})


def test_nothing_of_aws_is_imported_for_other_buses() -> None:
    program = """
import sys
from tardis_machine.publish.binding import destinations
from tardis_machine.publish.buses import bus_config

destinations({"kafka": bus_config("kafka", {"brokers": "a:9092", "topic": "bronze"})})
print("botocore" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"


def test_it_reads_well() -> None:
    assert where("kafka", GIVEN["kafka"] | ELSEWHERE["kafka"]) == (
        "brokers a:9092,b:9092, topic bronze, trade to trades"
    )
