"""What an envelope says about the way of a message, besides the message itself."""

from enum import IntEnum
from typing import Final

import msgspec
from google.protobuf.timestamp_pb2 import Timestamp

from tardis_machine.bronze.errors import EncodeError
from tardis_machine.bronze.times import YEAR_10000
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb

REQUEST_META: Final = ("request_id", "session_id", "transport", "route")
"""Keys of `meta` that a context names itself."""


class Origin(IntEnum):
    """Where a message came from, with the numbers of the schema's enum."""

    UNSPECIFIED = 0
    REALTIME = 1
    REPLAY = 2
    ARCHIVE = 3


class Context(msgspec.Struct, kw_only=True):
    """Shared by all messages of a batch; what is empty is left out of the envelope."""

    source: str = "tardis-machine"
    producer_id: str = ""
    origin: Origin = Origin.UNSPECIFIED
    ingest_us: int | None = None
    request_id: str = ""
    session_id: str = ""
    transport: str = ""
    route: str = ""
    meta: dict[str, str] = {}

    def entries(self) -> dict[str, str]:
        """Give the envelope's meta: the given entries and what else is not empty."""
        named = {key: value for key in REQUEST_META if (value := getattr(self, key))}
        return self.meta | named

    def serialize(self) -> bytes:
        """Write the envelope's fields that are the same for the whole batch.

        Protobuf allows fields in any order, so these bytes go in front of each event's own.
        """
        try:
            event = pb.NormalizedEvent(
                source=self.source,
                producer_id=self.producer_id,
                origin=pb.Origin.Name(self.origin),
                meta=self.entries(),
            )
            if self.ingest_us is not None:
                event.ingest_ts.CopyFrom(_timestamp(self.ingest_us))
            return event.SerializeToString(deterministic=True)
        except (TypeError, ValueError, KeyError, OverflowError) as error:
            raise EncodeError(f"the context is invalid: {error}") from error


def _timestamp(microseconds: int) -> Timestamp:
    seconds, rest = divmod(microseconds, 1_000_000)
    if not 0 <= seconds < YEAR_10000:
        raise ValueError(f"ingest_us {microseconds} is not a time from 1970 to 9999")
    return Timestamp(seconds=seconds, nanos=rest * 1000)
