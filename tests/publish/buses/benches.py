"""Each bus with the real server it goes to, and ways to make that fail; a bus is one more."""

import base64
import contextlib
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tardis_machine.bronze import NormalizedEvent
from tardis_machine.config import options
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig, EventBus
from tests.support.arrivals import (
    Arrival,
    from_kafka,
    from_kinesis,
    from_redis,
    from_sqs,
    from_stream,
)
from tests.support.servers.aws import KEYS, REGION, Call, Fault, FaultProxy, Ministack
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.process import ServerProcess
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import RedisServer

S = TypeVar("S", bound=ServerProcess)
P = TypeVar("P", NatsServer, RedisServer)

_numbers = itertools.count()


class Bench(ABC):
    """One bus at work. What a test needs of a server of its own it gets when it asks for it."""

    bus: ClassVar[str]
    route_setting: ClassVar[str]
    key_setting: ClassVar[str]
    at_once: ClassVar[int]
    """How many records go out at least before any of them is acknowledged."""
    plain: ClassVar[dict[str, Any]] = {}
    """Settings with which records can be counted on their way."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._request = request
        self._opened: list[EventBus] = []
        self.name = f"bench-{next(_numbers)}"

    def fixture(self, name: str) -> Any:
        return self._request.getfixturevalue(name)

    def config(self, **settings: Any) -> BusConfig:
        """Give settings that create or find this test's own destination."""
        made = BUSES[self.bus].config_type(**{**self.settings(), **settings})
        made.validate()
        return made

    def make(self, **settings: Any) -> EventBus:
        made = BUSES[self.bus](self.config(**settings))
        self._opened.append(made)
        return made

    def flags(self, **settings: Any) -> list[str]:
        """Give the settings as the command line takes them."""
        config = self.config(**settings)
        return [
            f"{option.flag}={getattr(config, option.name)}"
            if option.setting.secret
            else f"{option.flag}={option.shown(getattr(config, option.name))}"
            for option in options(type(config))
            if getattr(config, option.name) != option.default
        ]

    def close(self) -> None:
        for bus in self._opened:
            bus.close()

    def destination(self, suffix: str = "") -> str:
        return self.name + suffix

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Give what a bus needs to reach the server, and its one destination."""

    @abstractmethod
    def arrived(self, suffix: str = "") -> list[Arrival]:
        """Read what has come to a destination, in order."""

    @abstractmethod
    def mortal(self) -> Any:
        """Go over to a server of the test's own, with kill() and start()."""

    @abstractmethod
    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the (mortal) server neither answer nor hang up."""

    @abstractmethod
    def limited(self) -> tuple[EventBus, int]:
        """Give a bus, and the weight its destination takes at most."""

    @abstractmethod
    def stranger(self) -> tuple[EventBus, str]:
        """Give a bus that logs in with a wrong secret, and that secret."""

    @abstractmethod
    @contextlib.contextmanager
    def unanswered(self) -> Iterator[Callable[[], int]]:
        """Let answers be held back; gives a function that counts the records sent so far."""

    @abstractmethod
    def hold(self) -> None:
        """Hold answers back, until `unanswered` is left."""


class ServerBench(Bench, Generic[S]):
    """A bus that goes to a program: the one of all tests, or one of the test's own."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._server: S | None = None

    @property
    def server(self) -> S:
        if self._server is None:
            self._server = self.fixture(self.bus)
        assert self._server is not None
        return self._server

    def mortal(self) -> S:
        self._server = self.fixture(f"start_{self.bus}")()
        return self.server

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        self.server.pause()
        try:
            yield
        finally:
            self.server.resume()


class ProxiedBench(ServerBench[P]):
    """One that a proxy of bytes can be put before; `said` is what each record says once."""

    said: ClassVar[bytes]

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._proxy: Proxy | None = None

    @property
    def port(self) -> int:
        return self.server.port if self._proxy is None else self._proxy.port

    @contextlib.contextmanager
    def unanswered(self) -> Iterator[Callable[[], int]]:
        proxy = self._proxy = self.fixture("proxy")
        proxy.target = self.server.port
        yield lambda: proxy.said.count(self.said)
        proxy.release_answers()

    def hold(self) -> None:
        assert self._proxy is not None
        self._proxy.hold_answers()


class KafkaBench(ServerBench[KafkaBroker]):
    bus = "kafka"
    plain: ClassVar[dict[str, Any]] = {"compression": "none"}
    # Five requests, which have a single record each where the machine is too busy to hand over
    # more of them in the time that the producer lingers.
    at_once = 5
    route_setting = "topic_routing"
    key_setting = "key_template"

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._address: str | None = None

    def settings(self) -> dict[str, Any]:
        address = self._address or self.server.address
        return {"brokers": (address,), "topic": self.name, "create": True}

    def arrived(self, suffix: str = "") -> list[Arrival]:
        return from_kafka(self.server.address, self.name + suffix)

    def mortal(self) -> KafkaBroker:
        self._server = self.fixture("mortal_kafka")
        return self.server

    def limited(self) -> tuple[EventBus, int]:
        admin = AdminClient({"bootstrap.servers": self.server.address})
        modest = NewTopic(self.name, 1, 1, config={"max.message.bytes": "20000"})
        admin.create_topics([modest])[self.name].result()
        return self.make(), 20_000

    def stranger(self) -> tuple[EventBus, str]:
        secure: KafkaBroker = self.fixture("secure_kafka")
        self._address = f"127.0.0.1:{secure.ports['SASL_PLAINTEXT']}"
        bus = self.make(
            sasl_mechanism="PLAIN", sasl_username="writer", sasl_password="wrong-battery"
        )
        return bus, "wrong-battery"

    @contextlib.contextmanager
    def unanswered(self) -> Iterator[Callable[[], int]]:
        self._server, proxy = self.fixture("proxied_kafka")
        self._address = f"127.0.0.1:{proxy.port}"
        yield lambda: proxy.said.count(b"event-id")
        proxy.release_answers()

    def hold(self) -> None:
        self.fixture("proxied_kafka")[1].hold_answers()


class NatsBench(ProxiedBench[NatsServer]):
    said = b"HPUB "
    bus = "nats"
    at_once = 2000
    route_setting = "subject_routing"
    key_setting = "subject_template"

    def settings(self) -> dict[str, Any]:
        return {
            "servers": (f"nats://127.0.0.1:{self.port}",),
            "subject": self.name,
            "stream": self.name,
            "create": True,
        }

    def destination(self, suffix: str = "") -> str:
        return self.name + suffix.replace("-", ".")

    def arrived(self, suffix: str = "") -> list[Arrival]:
        subject = self.destination(suffix)
        return [a for a in from_stream(self.server.url, self.name) if a.destination == subject]

    def limited(self) -> tuple[EventBus, int]:
        self._server = self.fixture("start_nats")("max_payload: 10000")
        return self.make(), 10_000

    def stranger(self) -> tuple[EventBus, str]:
        self._server = self.fixture("start_nats")(
            "authorization { user: writer, password: right-horse }"
        )
        return self.make(user="writer", pass_="wrong-battery"), "wrong-battery"


class AwsBench(Bench):
    """Kinesis or SQS, behind the proxy that makes them fail."""

    @property
    def proxy(self) -> FaultProxy:
        found: FaultProxy = self.fixture("aws")
        return found

    @property
    def service(self) -> Any:
        server: Ministack = self.fixture("ministack")
        return server.client(self.bus)

    def settings(self) -> dict[str, Any]:
        return {"region": REGION, "endpoint_url": self.proxy.url, **KEYS}

    def mortal(self) -> FaultProxy:
        """The service itself never dies: the way to it does."""
        return self.proxy

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        self.proxy.fault = lambda _: Fault(hang=True)
        try:
            yield
        finally:
            self.proxy.release()

    def stranger(self) -> tuple[EventBus, str]:
        self.proxy.fault = lambda _: Fault(status=400, code="UnrecognizedClientException")
        return self.make(secret_access_key="wrong-battery"), "wrong-battery"

    @contextlib.contextmanager
    def unanswered(self) -> Iterator[Callable[[], int]]:
        yield lambda: sum(len(call.entries) for call in self.proxy.calls)
        self.proxy.release()

    def hold(self) -> None:
        self.proxy.fault = lambda _: Fault(hang=True, taken=True)

    def refuse_once(
        self, wanted: Callable[[dict[str, Any]], bool], code: str, *, sender: bool = False
    ) -> set[str]:
        """Refuse the entries that are wanted inside a success, each once; gives their ids."""
        return self._refuse(wanted, code, sender=sender, once=True)

    def refuse(self, wanted: Callable[[dict[str, Any]], bool], code: str, *, sender: bool) -> None:
        """Refuse the entries that are wanted inside a success, as often as they come."""
        self._refuse(wanted, code, sender=sender, once=False)

    def _refuse(
        self, wanted: Callable[[dict[str, Any]], bool], code: str, *, sender: bool, once: bool
    ) -> set[str]:
        refused: set[str] = set()

        def fault(call: Call) -> Fault | None:
            found = {}
            for place, entry in enumerate(call.entries):
                event_id = self.event_id(entry)
                if not (once and event_id in refused) and wanted(entry):
                    refused.add(event_id)
                    found[place] = (code, sender)
            return Fault(refuse=found) if found else None

        self.proxy.fault = fault
        return refused

    @abstractmethod
    def event_id(self, entry: dict[str, Any]) -> str:
        """Tell which event an entry of a call carries."""


class KinesisBench(AwsBench):
    bus = "kinesis"
    at_once = 600
    route_setting = "stream_routing"
    key_setting = "partition_key_template"

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "stream": self.name, "create": True}

    def arrived(self, suffix: str = "") -> list[Arrival]:
        return from_kinesis(self.service, self.name + suffix)

    def limited(self) -> tuple[EventBus, int]:
        return self.make(), 1 << 20

    def event_id(self, entry: dict[str, Any]) -> str:
        return NormalizedEvent.FromString(base64.b64decode(entry["Data"])).event_id


class SqsBench(AwsBench):
    bus = "sqs"
    at_once = 20
    route_setting = "queue_routing"
    key_setting = "message_group_template"
    attributes: ClassVar[dict[str, str]] = {}
    ending: ClassVar[str] = ""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        super().__init__(request)
        self._urls: dict[str, str] = {}

    def destination(self, suffix: str = "") -> str:
        if suffix not in self._urls:
            self._urls[suffix] = self.create(suffix)
        return self._urls[suffix]

    def create(self, suffix: str, **attributes: str) -> str:
        created = self.service.create_queue(
            QueueName=f"{self.name}{suffix}{self.ending}",
            Attributes={**self.attributes, **attributes},
        )
        return str(created["QueueUrl"])

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "queue_url": self.destination()}

    def arrived(self, suffix: str = "") -> list[Arrival]:
        return from_sqs(self.service, self.destination(suffix))

    def limited(self) -> tuple[EventBus, int]:
        self._urls[""] = self.create("", MaximumMessageSize="30000")
        return self.make(), 30_000

    def event_id(self, entry: dict[str, Any]) -> str:
        return str(entry["MessageAttributes"]["event-id"]["StringValue"])


class FifoBench(SqsBench):
    attributes = {"FifoQueue": "true"}  # noqa: RUF012 - as its parent declares it
    ending = ".fifo"


class RedisBench(ProxiedBench[RedisServer]):
    said = b"XADD"
    bus = "redis"
    at_once = 1000
    route_setting = "stream_routing"
    key_setting = "key_template"

    def settings(self) -> dict[str, Any]:
        return {
            "host": "127.0.0.1",
            "port": self.port,
            "stream": self.name,
        }

    def arrived(self, suffix: str = "") -> list[Arrival]:
        return from_redis(self.server.client(), self.name + suffix)

    def limited(self) -> tuple[EventBus, int]:
        self._server = self.fixture("start_redis")("proto-max-bulk-len 1mb")
        return self.make(), 1 << 20

    def stranger(self) -> tuple[EventBus, str]:
        self._server = self.fixture("start_redis")("requirepass right-horse")
        return self.make(password="wrong-battery"), "wrong-battery"


BENCHES: dict[str, type[Bench]] = {
    "kafka": KafkaBench,
    "nats": NatsBench,
    "kinesis": KinesisBench,
    "sqs": SqsBench,
    "sqs-fifo": FifoBench,
    "redis": RedisBench,
}
