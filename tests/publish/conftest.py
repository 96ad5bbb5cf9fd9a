"""Publishers on real journals and real brokers."""

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.outbox import Outbox, ResponseJournal
from tardis_machine.server.metrics import Metrics
from tests.cli.conftest import launch, run  # noqa: F401 - fixtures
from tests.publish.brokers import (
    Broker,
    kafka_broker,
    kinesis_broker,
    nats_broker,
    redis_broker,
    sqs_broker,
)

_numbers = itertools.count()

Start = Callable[..., Awaitable[Outbox]]


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


def respond(outbox: Outbox, *, flow: str = "http-replay") -> ResponseJournal:
    """Open the journal of a response as the server would."""
    found = outbox.response(
        flow=flow,
        request_id="request-1",
        session_id="session-1",
        transport="http",
        route="/replay-normalized",
        origin="replay",
    )
    assert found is not None
    return found


async def write(journal: ResponseJournal, ndjson: bytes, lines: int = 100) -> None:
    """Journal a response in batches of so many lines, paced as the server would be."""
    parts = ndjson.splitlines(keepends=True)
    for start in range(0, len(parts), lines):
        batch = parts[start : start + lines]
        await journal.append(b"".join(batch), len(batch))
