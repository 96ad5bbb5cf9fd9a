"""Publishers on real journals and real brokers."""

import itertools
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.outbox import Outbox
from tardis_machine.server.metrics import Metrics
from tests.support.brokers import (
    Broker,
    kafka_broker,
    kinesis_broker,
    nats_broker,
    redis_broker,
    sqs_broker,
)
from tests.support.machines import Machine, gone
from tests.support.outbox import Start

_numbers = itertools.count()


@pytest.fixture
def name() -> str:
    """A name for a topic or stream that no other test uses."""
    return f"publish-{next(_numbers)}"


QUICK = [pytest.param("kafka", marks=pytest.mark.kafka), "nats", "kinesis", "redis"]
"""Those that take a whole replay in seconds; of SQS there is a slow stand-in only."""
ALL = [*QUICK, "sqs"]


@pytest.fixture(params=QUICK)
def broker(request: pytest.FixtureRequest, name: str) -> Broker:
    """Each of the brokers, shared with other tests: not to be killed."""
    return _broker(request, name)


@pytest.fixture(params=QUICK)
def mortal(request: pytest.FixtureRequest, name: str) -> Broker:
    """Each of the brokers, for this test alone."""
    return _mortal(request, name)


@pytest.fixture(params=ALL)
def any_broker(request: pytest.FixtureRequest, name: str) -> Broker:
    """Really each of them."""
    return _broker(request, name)


@pytest.fixture(params=ALL)
def any_mortal(request: pytest.FixtureRequest, name: str) -> Broker:
    """Really each of them, for this test alone."""
    return _mortal(request, name)


def _broker(request: pytest.FixtureRequest, name: str) -> Broker:
    if request.param in {"kinesis", "sqs"}:
        return _aws_broker(request, name)
    return _MAKE[request.param](request.getfixturevalue(request.param), name)


def _mortal(request: pytest.FixtureRequest, name: str) -> Broker:
    """Of AWS it is the way there that is mortal."""
    if request.param in {"kinesis", "sqs"}:
        return _aws_broker(request, name)
    return _MAKE[request.param](request.getfixturevalue(f"start_{request.param}")(), name)


_MAKE: dict[str, Callable[[Any, str], Broker]] = {
    "kafka": kafka_broker,
    "nats": nats_broker,
    "redis": redis_broker,
}


def _aws_broker(request: pytest.FixtureRequest, name: str) -> Broker:
    proxy, service = request.getfixturevalue("aws"), request.getfixturevalue("ministack")
    make = kinesis_broker if request.param == "kinesis" else sqs_broker
    return make(proxy, service, name)


@pytest.fixture
def journal_dir(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
async def publish(journal_dir: Path) -> AsyncIterator[Start]:
    """Start publishing to the given buses; what a test leaves running is ended after it."""
    started: list[Outbox] = []

    async def start(
        buses: dict[str, BusConfig],
        *,
        journal: dict[str, Any] | None = None,
        metrics: Metrics | None = None,
        **settings: Any,
    ) -> Outbox:
        made = Outbox(
            buses,
            JournalConfig(**({"dir": journal_dir} | (journal or {}))),
            PublishConfig(**({"retry_max_s": 1.0, "send_timeout_s": 5.0} | settings)),
            (metrics or Metrics()).registry,
        )
        await made.start()
        started.append(made)
        return made

    yield start
    for each in started:
        if not each.stopped:
            await each.stop()


@pytest.fixture
def serve(journal_dir: Path, tmp_path: Path) -> Iterator[Callable[..., Machine]]:
    """Start a server process that publishes to the given brokers."""
    started: list[Machine] = []

    def served(*brokers: Broker, more: tuple[str, ...] = ()) -> Machine:
        flags = [flag for broker in brokers for flag in broker.flags()]
        quick = ("--retry-max-s", "1", "--send-timeout-s", "5")
        machine = Machine(
            tmp_path / f"server-{len(started)}.log",
            *("--journal-dir", str(journal_dir)),
            *quick,
            *flags,
            *more,
        )
        started.append(machine)
        return machine

    yield served
    for machine in started:
        publisher = machine.publisher
        if machine.process.poll() is None:
            machine.stop(signal.SIGKILL)
        if not gone(publisher):
            os.kill(publisher, signal.SIGKILL)
