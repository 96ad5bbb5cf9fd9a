"""The registry of buses: name → class. A new bus is one module and one line here."""

from collections.abc import Mapping
from typing import Any, Final

from tardis_machine.config import ConfigError, from_dict
from tardis_machine.publish.buses.base import BusConfig, EventBus
from tardis_machine.publish.buses.console import ConsoleEventBus
from tardis_machine.publish.buses.file import FileEventBus
from tardis_machine.publish.buses.kafka import KafkaEventBus
from tardis_machine.publish.buses.kinesis import KinesisEventBus
from tardis_machine.publish.buses.nats import NatsEventBus
from tardis_machine.publish.buses.redis import RedisEventBus
from tardis_machine.publish.buses.sqs import SQSEventBus

BUSES: Final[dict[str, type[EventBus[Any]]]] = {
    bus.name: bus
    for bus in (
        KafkaEventBus,
        NatsEventBus,
        KinesisEventBus,
        SQSEventBus,
        RedisEventBus,
        ConsoleEventBus,
        FileEventBus,
    )
}
"""Every bus by name. Client libraries are imported when a bus connects, not here."""


def bus_config(name: str, settings: BusConfig | Mapping[str, Any]) -> BusConfig:
    """Give the checked settings of a bus that is to be on, from its class or from plain values."""
    if name not in BUSES:
        raise ConfigError("provider", name, f"unknown bus; expected one of {', '.join(BUSES)}")
    expected = BUSES[name].config_type
    if isinstance(settings, Mapping):
        settings = from_dict(expected, settings)
    elif not isinstance(settings, expected):
        raise ConfigError(name, type(settings).__name__, f"expected {expected.__name__} or a dict")
    else:
        settings.validate()
    if not settings.enabled:
        flags = " and ".join(expected.needs)
        raise ConfigError(name, None, f"expected {flags}, without which the bus is off")
    return settings
