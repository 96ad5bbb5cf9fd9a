"""Bronze: every normalized message in a Protobuf envelope, without the loss of a digit."""

from importlib.resources import files

from tardis_machine.bronze.batch import EncodedBatch, Event, Rejected, Series
from tardis_machine.bronze.context import Context, Origin
from tardis_machine.bronze.decoder import Decoded, Envelope, decode
from tardis_machine.bronze.encoder import Encoder, encode
from tardis_machine.bronze.errors import DecodeError, EncodeError
from tardis_machine.generated.lakehouse.bronze.v1.normalized_event_pb2 import NormalizedEvent

__all__ = [
    "Context",
    "DecodeError",
    "Decoded",
    "EncodeError",
    "EncodedBatch",
    "Encoder",
    "Envelope",
    "Event",
    "NormalizedEvent",
    "Origin",
    "Rejected",
    "Series",
    "decode",
    "descriptor_set",
    "encode",
]


def descriptor_set() -> bytes:
    """Return the schemas as a serialized FileDescriptorSet, for Spark and other consumers."""
    return (files("tardis_machine") / "generated" / "lakehouse" / "descriptors.binpb").read_bytes()
