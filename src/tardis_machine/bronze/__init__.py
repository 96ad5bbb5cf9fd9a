"""Bronze: every normalized message in a Protobuf envelope, without the loss of a digit."""

from importlib.resources import files

from tardis_machine.bronze.batch import EncodedBatch, Event, Rejected, Series
from tardis_machine.bronze.context import Context, Origin
from tardis_machine.bronze.decoder import Decoded, Envelope, decode
from tardis_machine.bronze.encoder import Encoder, encode
from tardis_machine.bronze.errors import DecodeError, EncodeError

__all__ = [
    "Context",
    "DecodeError",
    "Decoded",
    "EncodeError",
    "EncodedBatch",
    "Encoder",
    "Envelope",
    "Event",
    "Origin",
    "Rejected",
    "Series",
    "decode",
    "descriptor_set",
    "encode",
]


def descriptor_set() -> bytes:
    """Give the schemas as a serialized FileDescriptorSet, for Spark and other consumers."""
    return (files("lakehouse") / "descriptors.binpb").read_bytes()
