"""Real brokers as the publisher's tests see them: configuration, life and death, arrivals."""

from collections.abc import Callable
from dataclasses import dataclass

from tardis_machine.config import options
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tests.buses.arrivals import Arrival, from_kafka, from_stream
from tests.servers.kafka import KafkaBroker
from tests.servers.nats import NatsServer
from tests.servers.process import ServerProcess


@dataclass
class Broker:
    """One server and the bus that goes to it."""

    bus: str
    server: ServerProcess
    config: BusConfig
    arrived: Callable[[], list[Arrival]]

    @property
    def buses(self) -> dict[str, BusConfig]:
        return {self.bus: self.config}

    def flags(self) -> list[str]:
        """Give the bus's settings as the command line takes them."""
        found = []
        for option in options(type(self.config)):
            value = getattr(self.config, option.name)
            if value != option.default:
                found.append(f"{option.flag}={option.shown(value)}")
        return found


def kafka_broker(server: KafkaBroker, topic: str) -> Broker:
    config = KafkaConfig(brokers=(server.address,), topic=topic, create=True)
    return Broker("kafka", server, config, lambda: from_kafka(server.address, topic))


def nats_broker(server: NatsServer, stream: str) -> Broker:
    config = NatsConfig(
        servers=(server.url,),
        subject=stream,
        subject_template=stream + ".{{exchange}}.{{symbol}}.{{payloadCase}}",
        stream=stream,
        create=True,
    )
    return Broker("nats", server, config, lambda: from_stream(server.url, stream))
