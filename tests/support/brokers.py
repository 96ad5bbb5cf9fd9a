"""Real brokers as the publisher's tests see them: configuration, life and death, arrivals."""

from collections.abc import Callable
from dataclasses import dataclass

from tardis_machine.config import options
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.kinesis import KinesisConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.buses.sqs import SQSConfig
from tests.support.arrivals import (
    Arrival,
    from_kafka,
    from_kinesis,
    from_redis,
    from_sqs,
    from_stream,
)
from tests.support.servers.aws import KEYS, REGION, FaultProxy, Ministack
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.process import ServerProcess
from tests.support.servers.redis import RedisServer


@dataclass
class Broker:
    """One server and the bus that goes to it."""

    bus: str
    server: ServerProcess | FaultProxy
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
                shown = value if option.setting.secret else option.shown(value)
                found.append(f"{option.flag}={shown}")
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


def kinesis_broker(proxy: FaultProxy, service: Ministack, stream: str) -> Broker:
    config = KinesisConfig(
        stream=stream, region=REGION, endpoint_url=proxy.url, create=True, **KEYS
    )
    return Broker("kinesis", proxy, config, lambda: from_kinesis(service.client("kinesis"), stream))


def sqs_broker(proxy: FaultProxy, service: Ministack, queue: str) -> Broker:
    client = service.client("sqs")
    url = client.create_queue(QueueName=f"{queue}.fifo", Attributes={"FifoQueue": "true"})
    config = SQSConfig(queue_url=url["QueueUrl"], region=REGION, endpoint_url=proxy.url, **KEYS)
    return Broker("sqs", proxy, config, lambda: from_sqs(client, url["QueueUrl"]))


def redis_broker(server: RedisServer, stream: str) -> Broker:
    config = RedisConfig(host="127.0.0.1", port=server.port, stream=stream)
    return Broker("redis", server, config, lambda: from_redis(server.client(), stream))
