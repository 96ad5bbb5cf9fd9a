"""Serialized envelopes to Arrow columns, whole batches at a time; bad records are found and named.

In two steps, since most columns of most payloads are absent from most events: the envelope with
its payload left as bytes, then payloads of one case together. Both skip what they do not need.
"""

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import ptars
import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf import descriptor_pb2, descriptor_pool, timestamp_pb2

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2
from tardis_machine.messages import CASES

if TYPE_CHECKING:
    from google._upb._message import Descriptor as UpbDescriptor
    from google.protobuf.descriptor import Descriptor

ENVELOPE: Final = normalized_event_pb2.NormalizedEvent.DESCRIPTOR
PAYLOADS: Final[dict[str, "Descriptor | UpbDescriptor"]] = {
    field.json_name: field.message_type
    for field in ENVELOPE.oneofs_by_name["payload"].fields
    if field.message_type
}
"""The messages of the payload cases, by the case's name, such as `bookChange`."""

_NAME: Final = "name"
_TYPES: Final = {
    case: message_type for message_type, case in CASES.items() if message_type != "trade_bar"
}
"""The data types of cases whose messages have no name of their own."""

_CONFIG: Final = ptars.PtarsConfig(timestamp_unit="us")
# Confluent's framing: magic byte 0, a 4-byte schema id and, the envelope being the first message
# of its file, the index list as a single 0. No Protobuf message begins with 0.
_FRAME: Final = 6
_END: Final = 2**31 - 1


class Decoded(NamedTuple):
    """A batch's columns, and what was wrong with some of its rows; those are as if empty."""

    columns: pa.RecordBatch
    bad: dict[int, str]


class _Handler(Protocol):
    def array_to_record_batch(self, values: pa.Array) -> pa.RecordBatch: ...


def envelopes(values: pa.Array) -> Decoded:
    """Decode envelopes; each payload case is a column of bytes, null in all rows but its own."""
    columns, bad = _decoded(_envelope_handler(), unframed(values))
    names = [ENVELOPE.fields_by_name[name].json_name for name in columns.schema.names]
    renamed = [
        name if name in PAYLOADS else plain
        for name, plain in zip(names, columns.schema.names, strict=True)
    ]
    return Decoded(columns.rename_columns(renamed), bad)


def payloads(case: str, values: pa.Array) -> Decoded:
    """Decode payloads of one case."""
    return _decoded(_payload_handler(case), values)


def data_types(case: str, values: pa.Array) -> pa.Array:
    """Name the data types of payloads of one case, as clients ask for them."""
    if case in _TYPES:
        return pa.repeat(_TYPES[case], len(values))
    return _decoded(_part_handler(case, (_NAME,)), values).columns.column(_NAME)


def parts(case: str, values: pa.Array, names: tuple[str, ...]) -> pa.RecordBatch:
    """Decode some fields of one case's payloads, and skip the rest."""
    return _decoded(_part_handler(case, names), values).columns


def _decoded(handler: _Handler, values: pa.Array) -> Decoded:
    bad = dict.fromkeys(pc.indices_nonzero(values.is_null()).to_pylist(), "no value")
    try:
        return Decoded(handler.array_to_record_batch(values), bad)
    except ValueError:
        bad |= _undecodable(handler, values)
        mask = pa.array([row in bad for row in range(len(values))])
        empty = pa.scalar(b"", values.type)
        return Decoded(handler.array_to_record_batch(pc.if_else(mask, empty, values)), bad)


def _undecodable(handler: _Handler, values: pa.Array, start: int = 0) -> dict[int, str]:
    """Halve until each bad record stands alone: few bad ones cost few attempts."""
    try:
        handler.array_to_record_batch(values)
    except ValueError as error:
        if len(values) == 1:
            return {start: str(error)}
        half = len(values) // 2
        return _undecodable(handler, values.slice(0, half), start) | _undecodable(
            handler, values.slice(half), start + half
        )
    return {}


def unframed(values: pa.Array) -> pa.Array:
    """Take a schema registry's framing off."""
    framed = pc.starts_with(values, b"\0")
    if not pc.any(framed).as_py():
        return values
    return pc.if_else(framed, pc.binary_slice(values, _FRAME, _END), values)


@cache
def _envelope_handler() -> _Handler:
    file = descriptor_pb2.FileDescriptorProto()
    ENVELOPE.file.CopyToProto(file)
    [envelope] = [message for message in file.message_type if message.name == ENVELOPE.name]
    for field in envelope.field:
        if field.json_name in PAYLOADS:
            # Bytes and messages look the same on the wire.
            field.type = descriptor_pb2.FieldDescriptorProto.TYPE_BYTES
            field.ClearField("type_name")
    return _described(file, ENVELOPE.full_name)


@cache
def _part_handler(case: str, names: tuple[str, ...]) -> _Handler:
    own = PAYLOADS[case]
    message = descriptor_pb2.DescriptorProto()
    own.CopyToProto(message)
    for field in message.field:
        # Text that is absent is empty then.
        field.ClearField("oneof_index")
        field.ClearField("proto3_optional")
    file = descriptor_pb2.FileDescriptorProto(
        name=f"{case}_{'_'.join(names)}.proto",
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    file.message_type.add(
        name=own.name, field=[field for field in message.field if field.name in names]
    )
    return _described(file, own.name)


@cache
def _payload_handler(case: str) -> _Handler:
    return _handler(PAYLOADS[case])


def _described(file: descriptor_pb2.FileDescriptorProto, name: str) -> _Handler:
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(timestamp)
    pool.Add(file)
    return _handler(pool.FindMessageTypeByName(name))


def _handler(message: "Descriptor | UpbDescriptor") -> _Handler:
    handler: _Handler = ptars.HandlerPool([message.file], config=_CONFIG).get_for_message(message)
    return handler
