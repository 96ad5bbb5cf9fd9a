"""A real Kafka broker (KRaft) on free ports."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tardis_machine.lake.jars import fetch_jars, java
from tests.support.ports import free_ports
from tests.support.servers.folder import SERVERS
from tests.support.servers.process import ServerProcess

_PROTOCOLS = (
    ("CONTROLLER", "PLAINTEXT"),
    ("PLAINTEXT", "PLAINTEXT"),
    ("SSL", "SSL"),
    ("SASL_PLAINTEXT", "SASL_PLAINTEXT"),
    ("SASL_SSL", "SASL_SSL"),
)
_KAFKA = ("org.apache.kafka:kafka_2.13:4.1.0", "org.slf4j:slf4j-simple:1.7.36")  # and its log
_CLUSTER = "dGFyZGlzLW1hY2hpbmUtMQ"
# A test's broker lives for seconds: the time to start counts, not the speed of compiled code.
_JVM = (
    "-Xmx384m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
)


def kafka_libs() -> Path:
    """Return the folder of Apache Kafka's jars, for a class path as `folder/*`."""
    directory = SERVERS / f"kafka-{_KAFKA[0].rpartition(':')[2]}"
    fetch_jars(_KAFKA, directory, transitive=True)
    return directory


class KafkaBroker(ServerProcess):
    """Broker and controller in one process, with a folder of its own.

    `settings` are further lines of its properties. `listeners` are further protocols to speak,
    each on its port in `ports`. `advertise` is the port of a proxy that clients are to be sent to.
    `scram` are credentials it knows from the beginning, in the words of Kafka's storage tool.
    """

    def __init__(
        self,
        folder: Path,
        settings: str = "",
        listeners: tuple[str, ...] = (),
        advertise: int | None = None,
        scram: tuple[str, ...] = (),
    ) -> None:
        self.port, controller, *further = free_ports(2 + len(listeners))
        self.ports = dict(zip(listeners, further, strict=True))
        folder.mkdir(parents=True, exist_ok=True)
        all_listeners = [("PLAINTEXT", self.port), *self.ports.items(), ("CONTROLLER", controller)]
        public = [("PLAINTEXT", advertise or self.port), *self.ports.items()]
        properties = folder / "server.properties"
        properties.write_text(
            "\n".join(
                [
                    "process.roles=broker,controller",
                    "node.id=1",
                    f"controller.quorum.voters=1@127.0.0.1:{controller}",
                    f"listeners={','.join(f'{n}://127.0.0.1:{p}' for n, p in all_listeners)}",
                    f"advertised.listeners={','.join(f'{n}://127.0.0.1:{p}' for n, p in public)}",
                    "controller.listener.names=CONTROLLER",
                    "inter.broker.listener.name=PLAINTEXT",
                    f"listener.security.protocol.map={','.join(f'{n}:{p}' for n, p in _PROTOCOLS)}",
                    f"log.dirs={folder / 'data'}",
                    "auto.create.topics.enable=false",
                    "offsets.topic.replication.factor=1",
                    "offsets.topic.num.partitions=1",
                    "transaction.state.log.replication.factor=1",
                    "transaction.state.log.min.isr=1",
                    "transaction.state.log.num.partitions=1",
                    "group.initial.rebalance.delay.ms=0",
                    "num.network.threads=2",
                    "num.io.threads=2",
                    # A killed broker may come back only when its session is over.
                    "broker.session.timeout.ms=1000",
                    "broker.heartbeat.interval.ms=200",
                    settings,
                    "",
                ]
            )
        )
        program: list[str | Path] = [java(), *_JVM, "-cp", f"{kafka_libs()}/*"]
        subprocess.run(
            [
                *(*program, "kafka.tools.StorageTool", "format", "-t", _CLUSTER, "-c", properties),
                *(part for each in scram for part in ("--add-scram", each)),
            ],
            check=True,
            capture_output=True,
        )
        super().__init__(
            [*program, "kafka.Kafka", properties], port=self.port, log=folder / "kafka.log"
        )

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One broker for all tests that leave it alone; each takes topics of its own."""
    broker = KafkaBroker(tmp_path_factory.mktemp("kafka"))
    broker.start()
    yield broker
    broker.kill()


@pytest.fixture
def start_kafka(tmp_path: Path) -> Iterator[Callable[..., KafkaBroker]]:
    """Start brokers for one test, to be killed and started again by it."""
    started: list[KafkaBroker] = []

    def start(
        settings: str = "", listeners: tuple[str, ...] = (), advertise: int | None = None
    ) -> KafkaBroker:
        broker = KafkaBroker(tmp_path / f"kafka-{len(started)}", settings, listeners, advertise)
        broker.start()
        started.append(broker)
        return broker

    yield start
    for broker in started:
        broker.kill()
