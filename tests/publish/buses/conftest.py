"""Buses on real servers, each test with topics and streams of its own."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.kafka import KafkaConfig, KafkaEventBus
from tardis_machine.publish.buses.nats import NatsConfig, NatsEventBus
from tests.publish.buses.benches import BENCHES, Bench
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.proxy import Proxy

_numbers = itertools.count()


@pytest.fixture(scope="session")
def mortal_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests may kill, if they start it again."""
    broker = KafkaBroker(tmp_path_factory.mktemp("mortal"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def _broker_behind_proxy(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[tuple[KafkaBroker, Proxy]]:
    proxy = Proxy()
    broker = KafkaBroker(tmp_path_factory.mktemp("proxied"), advertise=proxy.port)
    proxy.target = broker.port
    broker.start()
    yield broker, proxy
    proxy.close()
    broker.kill()


@pytest.fixture
def proxied_kafka(
    _broker_behind_proxy: tuple[KafkaBroker, Proxy],
) -> tuple[KafkaBroker, Proxy]:
    """A broker that clients reach only through a proxy, as if nothing had happened yet."""
    broker, proxy = _broker_behind_proxy
    proxy.reset()
    return broker, proxy


@pytest.fixture(
    params=[
        pytest.param(name, marks=[pytest.mark.kafka] if name == "kafka" else []) for name in BENCHES
    ]
)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Every bus in turn."""
    made = BENCHES[request.param](request)
    yield made
    made.close()


@pytest.fixture
def name() -> str:
    """A name for a topic or stream that no other test uses."""
    return f"bronze-{next(_numbers)}"


@pytest.fixture
def opened() -> Iterator[Callable[[EventBus], EventBus]]:
    """Close the buses a test opens."""
    buses: list[EventBus] = []

    def remember(bus: EventBus) -> EventBus:
        buses.append(bus)
        return bus

    yield remember
    for bus in buses:
        bus.close()


@pytest.fixture
def kafka_bus(opened: Callable[[EventBus], EventBus], name: str) -> Callable[..., EventBus]:
    """Make a Kafka bus for an address; the topic is created unless told otherwise."""

    def make(address: str, **settings: Any) -> EventBus:
        config = KafkaConfig(**{"brokers": (address,), "topic": name, "create": True, **settings})
        config.validate()
        return opened(KafkaEventBus(config))

    return make


@pytest.fixture
def nats_bus(opened: Callable[[EventBus], EventBus], name: str) -> Callable[..., EventBus]:
    """Make a NATS bus for a URL; stream and subject have the test's name."""

    def make(url: str, **settings: Any) -> EventBus:
        shared = {"servers": (url,), "subject": name, "stream": name, "create": True}
        config = NatsConfig(**{**shared, **settings})
        config.validate()
        return opened(NatsEventBus(config))

    return make
