"""Kafka, through librdkafka's idempotent producer.

Order per key outlives failures because no message ever expires inside librdkafka, and because a
batch that the broker refuses stops the producer (`enable.gapless.guarantee`) instead of letting
later batches overtake it. So what is left of a failed batch is always the end of what was sent to
each partition, and sending it again in order keeps the order.
"""

import logging
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from tardis_machine.config import ConfigError, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.base import BrokerConfig, EventBus, Order
from tardis_machine.publish.buses.errors import BusError, BusUnavailableError, NotSentError
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import EVENT_ID, Records, Target
from tardis_machine.publish.routing import DEFAULT_KEY, Routing, static_headers

_EXTRA: Final = "kafka"
_CONNECT_TIMEOUT_S: Final = 10.0
_PURGE_TIMEOUT_S: Final = 5.0
_STOPPED_TIMEOUT_S: Final = 1.0
_QUEUE_FULL_WAIT_S: Final = 0.05
_DEFAULT_MESSAGE_BYTES: Final = 1_000_000
_MAX_MESSAGE_BYTES: Final = 1_000_000_000
_LEAST_MESSAGE_BYTES: Final = 1_000
"""The smallest bound that librdkafka takes; of a topic with a smaller one the base knows."""
_BATCH_OVERHEAD: Final = 61 + 32
"""Bytes of a record batch of one, beside key, value and headers; never too few."""
_HEADER_OVERHEAD: Final = 10
_EVENT_ID: Final = len("event-id") + 32 + _HEADER_OVERHEAD
_FRAME: Final = 16
"""Bytes of the registry's frame; never too few."""
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_BROKER: Final = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?")
_UNACCEPTABLE: Final = frozenset(
    {"MSG_SIZE_TOO_LARGE", "RECORD_LIST_TOO_LARGE", "INVALID_MSG_SIZE", "INVALID_RECORD"}
    | {"UNSUPPORTED_FOR_MESSAGE_FORMAT", "POLICY_VIOLATION", "_INVALID_ARG"}
)
"""What a broker says of a batch with a record in it that it will never take.

A timestamp that it refuses is none of these: each attempt has a new one, by a clock that may have
been mended.
"""
_OF_FLAGS: Final = {
    "bootstrap.servers": "brokers",
    "metadata.broker.list": "brokers",
    "client.id": "client_id",
    "acks": "acks",
    "request.required.acks": "acks",
    "enable.idempotence": "idempotent",
    "compression.type": "compression",
    "compression.codec": "compression",
    "sasl.username": "sasl_username",
    "sasl.password": "sasl_password",
}
_OF_PUBLISHER: Final = frozenset(
    {"message.timeout.ms", "delivery.timeout.ms", "delivery.report.only.error"}
    | {"enable.gapless.guarantee", "transactional.id"}
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class KafkaConfig(BrokerConfig, section="kafka", title="Kafka"):
    """Brokers, topics, and everything in between."""

    needs = ("brokers", "topic")
    client = ("confluent_kafka", _EXTRA)
    files = ("ssl_ca", "ssl_cert", "ssl_key")
    secret_files = ("ssl_key",)

    brokers: tuple[str, ...] = setting((), help="brokers to start from", metavar="HOST:PORT,…")
    topic: str | None = setting(None, help="topic of every event that has no route of its own")
    topic_routing: dict[str, str] = setting(
        {}, help="topics by payload case", metavar="CASE:TOPIC,…"
    )
    key_template: str = setting(DEFAULT_KEY, help="record key; order is kept per key")
    static_headers: dict[str, str] = setting(
        {}, help="headers that every record carries", metavar="KEY:VALUE,…"
    )
    meta_headers_prefix: str | None = setting(
        None, help="add each entry of the envelope's meta as a header, its name after this prefix"
    )
    client_id: str = setting("tardis-machine", help="name in the brokers' logs and quotas")
    ssl: bool = setting(False, help="encrypt connections")
    ssl_ca: Path | None = setting(None, help="PEM file of the authority that signed the brokers")
    ssl_cert: Path | None = setting(None, help="PEM file of the client's certificate")
    ssl_key: Path | None = setting(None, help="PEM file of the client's key")
    sasl_mechanism: str | None = setting(
        None, choices=("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"), help="how to log in"
    )
    sasl_username: str | None = setting(None, help="user")
    sasl_password: str | None = setting(None, secret=True, help="password")
    acks: str = setting(
        "all",
        choices=("all", "1", "0"),
        help="replicas that must have a record before it counts as delivered",
    )
    idempotent: bool = setting(
        True, help="let brokers drop what a retry sends twice, and keep the order"
    )
    compression: str = setting(
        "lz4", choices=("none", "gzip", "snappy", "lz4", "zstd"), help="codec of record batches"
    )
    create: bool = setting(False, help="create missing topics, with the cluster's defaults")
    config: dict[str, str] = setting(
        {}, help="any further property of librdkafka", metavar="NAME=VALUE,…"
    )
    schema_registry_url: str | None = setting(
        None, help="frame values as Confluent's serializers do, with ids of this registry"
    )
    schema_registry_auth_username: str | None = setting(None, help="user")
    schema_registry_auth_password: str | None = setting(None, secret=True, help="password")
    schema_registry_auto_register: bool = setting(
        False, help="register the schema if it is not there"
    )

    @property
    def may_create(self) -> bool:
        return self.create

    def routing(self) -> Routing:
        """Topics by route or the one topic, keys by template."""
        return self.rules(
            "topic",
            check=_check_topic,
            key="key_template",
            headers=static_headers(self.static_headers, self.flag("static_headers")),
            meta_headers_prefix=self.meta_headers_prefix,
        )

    @property
    def exactly_in_order(self) -> bool:
        """Tell whether the producer is idempotent, which it can only be with acks=all."""
        return self.idempotent and self.acks == "all"

    def validate(self) -> None:
        """Refuse what librdkafka or the brokers would refuse, with the flag's name."""
        for name in self.files:
            if getattr(self, name) is not None and not self.ssl:
                path = str(getattr(self, name))
                raise ConfigError(self.flag(name), path, f"expected {self.flag('ssl')} too")
        super().validate()
        for broker in self.brokers:
            if not _BROKER.fullmatch(broker):
                raise ConfigError(self.flag("brokers"), broker, "expected host:port,…")
        self._validate_security()
        for name in self.config:
            if name in _OF_FLAGS:
                raise ConfigError(
                    self.flag("config"), name, f"expected {self.flag(_OF_FLAGS[name])} instead"
                )
            if name in _OF_PUBLISHER:
                raise ConfigError(
                    self.flag("config"), name, "is the publisher's own: order hangs on it"
                )
        if self.enabled and self.config:
            self._validate_properties()

    def warnings(self) -> list[str]:
        """Say what weakens delivery or lets others read along."""
        found = super().warnings()
        if self.acks != "all":
            found.append(
                f"{self.flag('acks')} {self.acks} counts records as delivered before all in-sync "
                "replicas have them: a broker's failure can lose, double or reorder events"
            )
        elif not self.idempotent:
            found.append(f"{self.flag('idempotent')} false: a retry can double or reorder events")
        if self.sasl_mechanism == "PLAIN" and not self.ssl:
            found.append(
                f"{self.flag('sasl_mechanism')} PLAIN without {self.flag('ssl')} sends the "
                "password in clear"
            )
        url = self.schema_registry_url or ""
        if self.schema_registry_auth_username is not None and url.startswith("http://"):
            found.append(f"{self.flag('schema_registry_url')} {url} sends the password in clear")
        return found

    def client_properties(self) -> dict[str, Any]:
        """Give what any client of these brokers needs, in librdkafka's names."""
        protocol = ("SASL_" if self.sasl_mechanism else "") + ("SSL" if self.ssl else "PLAINTEXT")
        properties: dict[str, Any] = {
            "bootstrap.servers": ",".join(self.brokers),
            "client.id": self.client_id,
            "security.protocol": protocol,
            "log_level": 2,  # what goes wrong comes through error_cb, once instead of every second
        }
        optional = {
            "ssl.ca.location": self.ssl_ca,
            "ssl.certificate.location": self.ssl_cert,
            "ssl.key.location": self.ssl_key,
            "sasl.mechanism": self.sasl_mechanism,
            "sasl.username": self.sasl_username,
            "sasl.password": self.sasl_password,
        }
        properties |= {name: str(value) for name, value in optional.items() if value is not None}
        return properties | self.config

    def producer_properties(self) -> dict[str, Any]:
        """Give what makes the producer keep its promises; what is configured beside wins."""
        return {
            "acks": self.acks,
            "enable.idempotence": self.exactly_in_order,
            "enable.gapless.guarantee": self.exactly_in_order,
            "max.in.flight.requests.per.connection": 5 if self.exactly_in_order else 1,
            "message.timeout.ms": 0,
            "delivery.report.only.error": True,
            "compression.type": self.compression,
            "reconnect.backoff.max.ms": 1_000,
            "linger.ms": 5,  # as long as handing over a batch takes: fewer, fuller requests
        } | self.client_properties()

    def _validate_security(self) -> None:
        self.both_or_neither("ssl_cert", "ssl_key")
        self.both_or_neither("sasl_username", "sasl_password")
        self.both_or_neither("schema_registry_auth_username", "schema_registry_auth_password")
        self.both_or_neither("sasl_mechanism", "sasl_username")
        url = self.schema_registry_url
        if url is None:
            for name in ("schema_registry_auth_username", "schema_registry_auto_register"):
                if getattr(self, name):
                    raise ConfigError(
                        self.flag(name), None, f"expected {self.flag('schema_registry_url')} too"
                    )
        elif not re.match(r"https?://", url) or "@" in url:
            raise ConfigError(
                self.flag("schema_registry_url"),
                url,
                "expected http(s)://host:port, the password in a flag of its own",
            )

    def _validate_properties(self) -> None:
        kafka = require("confluent_kafka", extra=_EXTRA)
        try:
            kafka.Producer(self.producer_properties())
        except kafka.KafkaException as error:
            raise ConfigError(self.flag("config"), None, error.args[0].str()) from None


class _LibraryLog:
    """Takes librdkafka's own lines, which name what `send` reports anyway."""

    def log(self, _level: int, message: str, *arguments: object) -> None:
        log.debug("librdkafka: " + message, *arguments)  # noqa: G003 - its format, not ours


class KafkaEventBus(EventBus[KafkaConfig]):
    """Sends records with their headers, keyed by template."""

    name = "kafka"
    config_type = KafkaConfig
    noun = "topic"

    def __init__(self, config: KafkaConfig) -> None:
        super().__init__(config)
        self._producer: Any = None
        self._admin: Any = None
        self._connect_timeout_s = 0.0
        self._frames: Mapping[str, bytes] = {}
        self._sizes: Mapping[str, int] = {}
        self._trouble: str | None = None
        # Made once: as many new callbacks per batch would keep the garbage collector busy.
        self._refused: dict[int, Any] = {}
        self._reports: list[Callable[[Any, object], None]] = []

    @property
    def order(self) -> Order:
        return Order.PER_KEY if self.config.exactly_in_order else Order.NONE

    def overhead(self, target: Target) -> int:
        """Bound what a batch of one record weighs besides its value, before compression."""
        headers = sum(
            len(name.encode()) + len(text.encode()) + _HEADER_OVERHEAD
            for name, text in target.headers
        )
        frame = 0 if self.config.schema_registry_url is None else _FRAME
        return _BATCH_OVERHEAD + len(target.key.encode()) + _EVENT_ID + headers + frame

    @property
    def _is_open(self) -> bool:
        return self._producer is not None

    def _open(self, timeout_s: float) -> None:
        """Make an admin client; it connects when it is first asked something."""
        admin = require("confluent_kafka.admin", extra=_EXTRA)
        self._trouble = None
        self._connect_timeout_s = timeout_s
        properties = self.config.client_properties() | {"error_cb": self._on_error}
        self._admin = admin.AdminClient(properties)

    def _address(self) -> str:
        return ",".join(self.config.brokers)

    def _remarks(self, missing: Collection[str]) -> Sequence[str]:
        there = [each for each in self.destinations() if each not in missing]
        self._expect_permission(there)
        if self.config.schema_registry_url is None:
            return ()
        self._reach_registry(there)
        return ("schema registry",)

    def _close(self) -> None:
        """Forget the producer; `send` has accounted for all that was in it."""
        self._admin = None
        if self._producer is not None:
            self._producer.purge()
            self._wait(time.monotonic() + _PURGE_TIMEOUT_S)
            self._producer = None

    def _prepare(self, destinations: Sequence[str]) -> None:
        """Ask for the topics' limits, and start a producer fit for them."""
        self._sizes = self._topic_sizes(destinations)
        self._frames = self._schema_frames(destinations)
        properties = {
            # A batch with several records must fit into the most modest topic: a broker refuses
            # a batch as a whole, and then nobody knows which record was the culprit.
            "batch.size": min(*self._sizes.values(), _DEFAULT_MESSAGE_BYTES),
            "message.max.bytes": max(*self._sizes.values(), _LEAST_MESSAGE_BYTES),
            "error_cb": self._on_error,
        }
        self._producer = self._client.Producer(
            properties | self.config.producer_properties(), logger=_LibraryLog()
        )
        self._admin = None

    def _heaviest(self, destination: str) -> int:
        return self._sizes.get(destination, _MAX_MESSAGE_BYTES)

    def _deliver(self, records: Records, fates: Fates, deadline: float) -> None:
        """Produce all, wait for all; halve what a broker refused until the culprit is alone."""
        self._deliver_part(records, fates.open(), fates, deadline)

    def _deliver_part(
        self, records: Records, places: Sequence[int], fates: Fates, deadline: float
    ) -> None:
        if self._producer is None:
            self._be_ready(records, deadline - time.monotonic())
        refused = self._produce(records, places, fates, deadline)
        if refused or fates.any_failed:
            places = [each for each in places if fates.is_open(each) and each not in refused]
        fates.deliver(places)
        if not refused:
            return
        # After any failure the producer may have stopped for good: the next one is a new one.
        self._close()
        culprits = [place for place, error in refused.items() if error.name() in _UNACCEPTABLE]
        if culprits and len(refused) == 1:
            [place] = culprits
            fates.fail([place], self._rejected(records[place], refused[place].str()))
        elif culprits:
            left = sorted(refused)
            half = len(left) // 2
            for part in (left[:half], left[half:]):
                if fates.to_be_retried:
                    self._hold_back(records, part, fates)
                else:
                    self._deliver_part(records, part, fates, deadline)
        else:
            for place, reason in refused.items():
                fates.fail([place], self._not_delivered(reason, records[place].destination))

    def _produce(
        self, records: Records, places: Sequence[int], fates: Fates, deadline: float
    ) -> dict[int, Any]:
        """Give librdkafka's error for each record that it did not deliver.

        What it never got, or refused at once, has its fate already.
        """
        refused, reports = self._refused, self._reports
        refused.clear()
        reports += [partial(_note, refused, place) for place in range(len(reports), len(records))]
        self._hand_over(records, places, fates, deadline)
        self.meanwhile()
        if self._wait(deadline):
            return dict(refused)
        self._producer.purge()
        if not self._wait(time.monotonic() + _PURGE_TIMEOUT_S):
            # Nobody knows what became of these: twice is allowed, lost is not.
            unknown = self._client.KafkaError(self._client.KafkaError._TIMED_OUT)  # noqa: SLF001
            self._refused, self._reports = {}, []
            return {place: unknown for place in places if fates.is_open(place)}
        return dict(refused)

    def _wait(self, deadline: float) -> bool:
        """Wait until nothing is in flight any more; False: out of time."""
        while len(self._producer):
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            try:
                self._producer.poll(left)
            except self._client.KafkaException as error:
                # The producer has stopped for good: what is queued will never leave it, what is
                # under way is answered soon or never.
                self._trouble = error.args[0].str()
                self._producer.purge(in_queue=True, in_flight=False)
                deadline = min(deadline, time.monotonic() + _STOPPED_TIMEOUT_S)
        return True

    def _hand_over(
        self, records: Records, places: Sequence[int], fates: Fates, deadline: float
    ) -> None:
        """Give librdkafka records, whose full queue is the backpressure."""
        frames, produce = self._frames, self._producer.produce
        columns: tuple[Sequence[Any], ...] = (
            records.values,
            records.event_ids,
            records.targets,
            self._reports,
        )
        handed = zip(places, *[map(column.__getitem__, places) for column in columns], strict=True)
        for place, plain, event_id, target, report in handed:
            _, destination, key, rest, _ = target
            value = frames[destination] + plain if frames else plain
            headers = [(EVENT_ID, event_id), *rest]
            try:
                while True:
                    try:
                        # By place, which takes a fifth less than by name: partition, report and
                        # its other name, time, headers.
                        produce(destination, value, key, -1, report, None, 0, headers)
                        break
                    except BufferError:
                        if time.monotonic() >= deadline:
                            self._hold_back(records, places[places.index(place) :], fates)
                            return
                        self._producer.poll(_QUEUE_FULL_WAIT_S)
            except self._client.KafkaException as error:
                if error.args[0].name() in _UNACCEPTABLE:
                    fates.fail([place], self._rejected(records[place], error.args[0].str()))
                    continue
                left = places[places.index(place) :]
                self._refused.update(dict.fromkeys(left, error.args[0]))
                return

    @property
    def _client(self) -> Any:
        return require("confluent_kafka", extra=_EXTRA)

    def _missing(self, destinations: Sequence[str]) -> Mapping[str, BusError | None]:
        collection = self._client.TopicCollection(list(destinations))
        described = self._admin.describe_topics(collection, request_timeout=self._connect_timeout_s)
        missing: dict[str, BusError | None] = {}
        for topic, future in described.items():
            try:
                future.result()
            except self._client.KafkaException as error:
                reason = error.args[0]
                if reason.name() == "UNKNOWN_TOPIC_OR_PART":
                    missing[topic] = None
                elif reason.name() == "TOPIC_AUTHORIZATION_FAILED":
                    missing[topic] = self._not_delivered(reason, topic)
                else:
                    self._admin.poll(0)  # hands over what it heard from the brokers
                    raise self._not_delivered(reason, None) from None
        return missing

    def _expect_permission(self, topics: Sequence[str]) -> None:
        """Refuse topics that this user may see and not write to, where brokers tell."""
        if not topics:
            return
        write = require("confluent_kafka.admin", extra=_EXTRA).AclOperation.WRITE
        described = self._admin.describe_topics(
            self._client.TopicCollection(list(topics)),
            include_authorized_operations=True,
            request_timeout=self._connect_timeout_s,
        )
        for topic, future in described.items():
            try:
                allowed = future.result().authorized_operations
            except self._client.KafkaException:
                continue  # a broker from before it could be asked
            if allowed and write not in allowed:
                raise self._unavailable("no permission to write", topic)

    def _create(self, destination: str) -> None:
        topic = require("confluent_kafka.admin", extra=_EXTRA).NewTopic(
            destination, num_partitions=-1, replication_factor=-1
        )
        [future] = self._admin.create_topics(
            [topic], request_timeout=self._connect_timeout_s
        ).values()
        try:
            future.result()
        except self._client.KafkaException as error:
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                raise self._not_delivered(error.args[0], destination) from None

    def _topic_sizes(self, topics: Sequence[str]) -> dict[str, int]:
        """Ask how large a message each topic takes; who may not ask gets the client's default."""
        library = require("confluent_kafka.admin", extra=_EXTRA)
        resources = [library.ConfigResource(library.ResourceType.TOPIC, topic) for topic in topics]
        asked = self._admin.describe_configs(resources, request_timeout=self._connect_timeout_s)
        own = int(self.config.config.get("message.max.bytes", _MAX_MESSAGE_BYTES))
        sizes = {}
        for resource, future in asked.items():
            try:
                size = int(future.result()["max.message.bytes"].value)
            except self._client.KafkaException as error:
                size = _DEFAULT_MESSAGE_BYTES
                details = {"bus": self.name, "topic": resource.name, "reason": error.args[0].str()}
                log.debug("topic limits unknown", extra=details)
            sizes[resource.name] = min(size, own)
        return sizes

    def _schema_frames(self, topics: Sequence[str]) -> dict[str, bytes]:
        """Let Confluent's serializer frame an empty message per topic: nothing but the frame."""
        if self.config.schema_registry_url is None:
            return {}
        from tardis_machine.bronze import NormalizedEvent  # noqa: PLC0415 - only where it is used

        registry = require("confluent_kafka.schema_registry", extra=_EXTRA)
        protobuf = require("confluent_kafka.schema_registry.protobuf", extra=_EXTRA)
        contexts = require("confluent_kafka.serialization", extra=_EXTRA)
        frames = {}
        with self._registry() as client:
            serializer = protobuf.ProtobufSerializer(
                NormalizedEvent,
                client,
                {
                    "auto.register.schemas": self.config.schema_registry_auto_register,
                    "subject.name.strategy": registry.topic_subject_name_strategy,
                },
            )
            for topic in topics:
                context = contexts.SerializationContext(topic, contexts.MessageField.VALUE)
                try:
                    frames[topic] = serializer(NormalizedEvent(), context)
                except Exception as error:
                    raise self._registry_unavailable(error) from error
        return frames

    def _reach_registry(self, topics: Sequence[str]) -> None:
        if not self.config.schema_registry_auto_register:
            self._schema_frames(topics)
            return
        with self._registry() as client:
            try:
                client.get_subjects()
            except Exception as error:
                raise self._registry_unavailable(error) from error

    def _registry(self) -> Any:
        """Give a client of the schema registry, to be closed."""
        settings: dict[str, Any] = {
            "url": self.config.schema_registry_url,
            "max.retries": 0,  # when to try again is the publisher's to say
            "timeout": _CONNECT_TIMEOUT_S,
        }
        user = self.config.schema_registry_auth_username
        if user is not None:
            password = self.config.schema_registry_auth_password
            settings["basic.auth.user.info"] = f"{user}:{password}"
        registry = require("confluent_kafka.schema_registry", extra=_EXTRA)
        return registry.SchemaRegistryClient.new_client(settings)

    def _registry_unavailable(self, error: Exception) -> BusUnavailableError:
        return self._unavailable(f"schema registry: {error}")

    def _on_error(self, error: Any) -> None:
        self._trouble = error.str()

    def _not_delivered(self, error: Any, destination: str | None) -> BusUnavailableError:
        purged = error.name() in {"_PURGE_QUEUE", "_PURGE_INFLIGHT"}
        reason = "not acknowledged in time" if purged else error.str()
        if self._trouble is not None and self._trouble != reason:
            reason = f"{reason}: {self._trouble}"
        return self._unavailable(reason, destination)

    def _hold_back(self, records: Records, places: Sequence[int], fates: Fates) -> None:
        reason = self._trouble or "held back behind a record that was not delivered"
        for place in places:
            destination = records[place].destination
            fates.fail([place], NotSentError(self.name, reason, destination=destination))


def _note(refused: dict[int, Any], index: int, error: Any, _message: object) -> None:
    if error is not None:
        refused[index] = error


def _check_topic(topic: str, flag: str) -> None:
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        raise ConfigError(flag, topic, "expected a topic of up to 249 of a-z A-Z 0-9 . _ -")
