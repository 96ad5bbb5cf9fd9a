"""Kinesis Data Streams, with PutRecords: failures of single records come inside a success."""

import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tardis_machine.config import ConfigError, bytes_size, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.aws import NOT_THERE, AwsConfig, AwsEventBus, code_of, sdk_region
from tardis_machine.publish.buses.errors import BusError
from tardis_machine.publish.record import Record, Target
from tardis_machine.publish.routing import DEFAULT_KEY, MISSING, Routing, static_headers

_STREAM: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_KEY_CHARACTERS: Final = 256
_RECORD_KIB: Final = 1024
_WRITABLE: Final = frozenset({"ACTIVE", "UPDATING"})
_LOOK_S: Final = 0.2


@dataclass(frozen=True, kw_only=True)
class KinesisConfig(AwsConfig, section="kinesis", title="Kinesis"):
    """Streams, partition keys, and the size of calls."""

    needs = ("stream",)

    stream: str | None = setting(None, help="stream of every event that has no route of its own")
    stream_routing: dict[str, str] = setting(
        {}, help="streams by payload case", metavar="CASE:STREAM,…"
    )
    partition_key_template: str = setting(
        DEFAULT_KEY, help="partition key; order is kept per key, above 256 characters its hash"
    )
    static_headers: dict[str, str] = setting(
        {},
        help="entries that every envelope's meta gets: records have no headers",
        metavar="KEY:VALUE,…",
    )
    create: bool = setting(False, help="create missing streams, with capacity on demand")
    max_batch_size: int = setting(500, minimum=1, maximum=500, help="records in one call")
    max_batch_bytes: int = setting(
        5 << 20,
        minimum=1 << 20,
        maximum=10 << 20,
        parse=bytes_size,
        metavar="BYTES",
        help="bytes in one call, keys included",
    )
    max_batch_delay_ms: int = setting(
        100, minimum=0, maximum=60_000, help="longest wait for a batch to fill"
    )

    @property
    def may_create(self) -> bool:
        return self.create

    def in_force(self, name: str) -> Any:
        """Find the region, too: in another one, a stream of the same name is another stream."""
        value = super().in_force(name)
        return sdk_region() if name == "region" and value is None else value

    def routing(self) -> Routing:
        """Streams by route or the one stream, keys by template."""
        static_headers(self.static_headers, self.flag("static_headers"))
        return self.rules(
            "stream", check=_check_stream, key="partition_key_template", fit_key=_fit_key
        )


class KinesisEventBus(AwsEventBus[KinesisConfig]):
    """Sends up to 500 records a call; those that failed are sent again alone."""

    name = "kinesis"
    config_type = KinesisConfig
    service = "kinesis"
    noun = "stream"

    def __init__(self, config: KinesisConfig) -> None:
        super().__init__(config)
        self._sizes: dict[str, int] = {}
        self._meta = b""
        if config.static_headers:
            from tardis_machine.bronze import NormalizedEvent  # noqa: PLC0415 - only where it is used

            # Entries of a map may follow anything: a decoder joins what it finds.
            self._meta = NormalizedEvent(meta=config.static_headers).SerializeToString()

    def overhead(self, target: Target) -> int:
        """Count the key and what is added to the envelope."""
        return len(target.key.encode()) + len(self._meta)

    def _missing(self, destinations: Sequence[str]) -> Mapping[str, BusError | None]:
        missing: dict[str, BusError | None] = {}
        for stream in destinations:
            try:
                status = self._status(stream)
            except BusError as error:
                if error.destination is None:
                    raise
                missing[stream] = error
            else:
                if status is None:
                    missing[stream] = None
                elif status not in _WRITABLE:
                    missing[stream] = self._unavailable(f"stream is {status}", stream)
        return missing

    def _create(self, destination: str) -> None:
        exceptions = require("botocore.exceptions", extra="aws")
        try:
            self._client.create_stream(
                StreamName=destination, StreamModeDetails={"StreamMode": "ON_DEMAND"}
            )
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            if code_of(error) != "ResourceInUseException":  # somebody else was faster
                raise self._said(error, destination) from None
        deadline = time.monotonic() + self._connect_timeout_s
        while (status := self._status(destination)) not in _WRITABLE:
            if time.monotonic() > deadline:
                raise self._unavailable(f"stream is {status}", destination)
            time.sleep(_LOOK_S)

    def _status(self, stream: str) -> str | None:
        """Ask how a stream is, and how large its records may be; None if there is none."""
        exceptions = require("botocore.exceptions", extra="aws")
        try:
            answer = self._client.describe_stream_summary(StreamName=stream)
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            if code_of(error) == NOT_THERE:
                return None
            raise self._said(error, stream) from None
        summary = answer["StreamDescriptionSummary"]
        self._sizes[stream] = 1024 * int(summary.get("MaxRecordSizeInKiB") or _RECORD_KIB)
        return str(summary["StreamStatus"])

    def _heaviest(self, destination: str) -> int:
        return self._sizes[destination]

    def _call(self, destination: str, records: Sequence[Record]) -> Sequence[BusError | None]:
        answer = self._client.put_records(
            StreamName=destination,
            Records=[
                {"Data": record.value + self._meta, "PartitionKey": record.key}
                for record in records
            ],
        )
        return [
            None
            if not each.get("ErrorCode")
            else self._error(each["ErrorCode"], each.get("ErrorMessage", ""), destination)
            for each in answer["Records"]
        ]


def _fit_key(key: str) -> str:
    if len(key) > _KEY_CHARACTERS:
        return hashlib.sha256(key.encode()).hexdigest()
    return key or MISSING


def _check_stream(stream: str, flag: str) -> None:
    if not _STREAM.fullmatch(stream):
        raise ConfigError(flag, stream, "expected a stream of up to 128 of a-z A-Z 0-9 _ . -")
