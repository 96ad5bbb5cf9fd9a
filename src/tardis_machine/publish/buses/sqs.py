"""SQS, with SendMessageBatch: standard queues, and FIFO queues by message group."""

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tardis_machine.config import ConfigError, bytes_size, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.aws import AwsConfig, AwsEventBus, code_of
from tardis_machine.publish.buses.errors import BusError
from tardis_machine.publish.record import Record, Target
from tardis_machine.publish.routing import (
    DEFAULT_KEY,
    MISSING,
    RESERVED_HEADERS,
    Routing,
    Template,
)

_QUEUE: Final = re.compile(r"https?://[^\s/@]+/\S+")
_OF_REGION: Final = re.compile(r"https://sqs\.([a-z0-9-]+)\.amazonaws\.com")
_NO_QUEUE: Final = ("NonExistentQueue", "QueueDoesNotExist")
_FIFO: Final = ".fifo"
_GROUP_CHARACTERS: Final = 128
_NOT_IN_GROUP: Final = re.compile(r"[^!-~]")
_ATTRIBUTES: Final = 10
_ATTRIBUTE: Final = re.compile(r"(?!(?i:aws|amazon)\.)[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")
_NOT_IN_VALUE: Final = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_TYPE: Final = "String"
_MESSAGE_BYTES: Final = 1 << 20
_EVENT_ID: Final = len("event-id") + len(_TYPE) + 32


@dataclass(frozen=True, kw_only=True)
class SQSConfig(AwsConfig, section="sqs", title="SQS"):
    """Queues, message groups and attributes, and the size of calls."""

    needs = ("queue_url",)
    in_flight = 8

    queue_url: str | None = setting(
        None, help="queue of every event that has no route of its own", metavar="URL"
    )
    queue_routing: dict[str, str] = setting({}, help="queues by payload case", metavar="CASE:URL,…")
    attribute_templates: dict[str, str] = setting(
        {}, help="further attributes, each made by a template", metavar="NAME:TEMPLATE,…"
    )
    static_attributes: dict[str, str] = setting(
        {}, help="attributes that every message carries", metavar="NAME:VALUE,…"
    )
    message_group_template: str = setting(
        DEFAULT_KEY, help="message group; order is kept per group on FIFO queues"
    )
    max_batch_size: int = setting(10, minimum=1, maximum=10, help="messages in one call")
    max_batch_bytes: int = setting(
        256 << 10,
        minimum=1 << 10,
        maximum=1 << 20,
        parse=bytes_size,
        metavar="BYTES",
        help="bytes in one call, base64 and attributes included",
    )

    def routing(self) -> Routing:
        """Queues by route or the one queue; at most ten attributes in all."""
        templates = []
        for name, text in self.attribute_templates.items():
            flag = self.flag("attribute_templates")
            _check_attribute(name, flag)
            templates.append((name, Template(text, flag)))
        for name, value in self.static_attributes.items():
            flag = self.flag("static_attributes")
            _check_attribute(name, flag)
            if not value or _NOT_IN_VALUE.search(value):
                raise ConfigError(flag, f"{name}:{value}", "expected some text of XML characters")
        both = sorted(self.static_attributes.keys() & self.attribute_templates.keys())
        if both:
            flag = self.flag("attribute_templates")
            raise ConfigError(flag, both[0], "is one of the static attributes already")
        count = len(RESERVED_HEADERS) + len(self.static_attributes) + len(templates)
        if count > _ATTRIBUTES:
            given = "attribute_templates" if templates else "static_attributes"
            allowed = f"expected at most {_ATTRIBUTES} attributes a message, these make {count}"
            raise ConfigError(
                self.flag(given), None, f"{allowed} with {', '.join(sorted(RESERVED_HEADERS))}"
            )
        return self.rules(
            "queue_url",
            routing="queue_routing",
            check=_check_queue,
            key="message_group_template",
            headers=tuple(self.static_attributes.items()),
            header_templates=templates,
            clean_header=_clean,
            fit_key=_fit_group,
        )


class SQSEventBus(AwsEventBus[SQSConfig]):
    """Sends up to ten messages a call, several calls at a time."""

    name = "sqs"
    config_type = SQSConfig
    service = "sqs"
    noun = "queue"

    def __init__(self, config: SQSConfig) -> None:
        super().__init__(config)
        self._sizes: dict[str, int] = {}

    def overhead(self, target: Target) -> int:
        """Count name, type and value of each attribute."""
        return _EVENT_ID + sum(
            len(name.encode()) + len(_TYPE) + len(value.encode()) for name, value in target.headers
        )

    def weigh(self, size: int) -> int:
        """Count the body as base64."""
        return -(-size // 3) * 4

    def _region(self) -> str | None:
        found = _OF_REGION.match(self.config.queue_url or "")
        return None if found is None else found[1]

    def _missing(self, destinations: Sequence[str]) -> Mapping[str, BusError | None]:
        exceptions = require("botocore.exceptions", extra="aws")
        missing: dict[str, BusError | None] = {}
        for queue in destinations:
            try:
                answer = self._client.get_queue_attributes(
                    QueueUrl=queue, AttributeNames=["MaximumMessageSize"]
                )
            except (exceptions.ClientError, exceptions.BotoCoreError) as error:
                said = self._said(error, queue)
                if said.destination is None:
                    raise said from None
                missing[queue] = None if code_of(error).endswith(_NO_QUEUE) else said
            else:
                size = answer.get("Attributes", {}).get("MaximumMessageSize", _MESSAGE_BYTES)
                self._sizes[queue] = int(size)
        return missing

    def _heaviest(self, destination: str) -> int:
        return self._sizes[destination]

    def _call(self, destination: str, records: Sequence[Record]) -> Sequence[BusError | None]:
        fifo = destination.endswith(_FIFO)
        answer = self._client.send_message_batch(
            QueueUrl=destination,
            Entries=[_entry(number, record, fifo=fifo) for number, record in enumerate(records)],
        )
        delivered = {each["Id"] for each in answer.get("Successful", ())}
        failed = {each["Id"]: each for each in answer.get("Failed", ())}
        found: list[BusError | None] = []
        for number in map(str, range(len(records))):
            if number in delivered:
                found.append(None)
            elif number in failed:
                found.append(self._refusal(failed[number], destination))
            else:
                found.append(self._unavailable("not in the answer", destination))
        return found

    def _refusal(self, failed: Mapping[str, Any], destination: str) -> BusError:
        code, message = str(failed.get("Code", "")), str(failed.get("Message", ""))
        return self._error(code, message, destination, refused=bool(failed.get("SenderFault")))


def _entry(number: int, record: Record, *, fifo: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "Id": str(number),
        "MessageBody": base64.b64encode(record.value).decode(),
        "MessageAttributes": {
            name: {"DataType": _TYPE, "StringValue": value} for name, value in record.headers
        },
    }
    if fifo:
        entry["MessageGroupId"] = record.key
        entry["MessageDeduplicationId"] = record.event.event_id
    return entry


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)


def _fit_group(group: str) -> str:
    cleaned = _NOT_IN_GROUP.sub("_", group)
    if len(cleaned) > _GROUP_CHARACTERS:
        return hashlib.sha256(group.encode()).hexdigest()
    return cleaned or MISSING


def _check_queue(queue: str, flag: str) -> None:
    if not _QUEUE.fullmatch(queue):
        raise ConfigError(flag, queue, "expected the queue's URL, https://host/…/name")


def _check_attribute(name: str, flag: str) -> None:
    if name in RESERVED_HEADERS or not _ATTRIBUTE.fullmatch(name):
        taken = ", ".join(sorted(RESERVED_HEADERS))
        raise ConfigError(
            flag, name, f"expected a name of A-Z a-z 0-9 _ - . of your own, not {taken}, AWS.…"
        )
