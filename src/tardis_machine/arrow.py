"""Arrow record batches of normalized messages, for data frames.

Columns are the messages' fields in snake case and in their order. Numbers are float64 (counts
int64), which is what data frames calculate with and as exact as the JSON that clients get; for
decimals take Bronze. Times are timestamps in microseconds, UTC. Bids and asks are lists of
structs of price and amount.
"""

from collections.abc import Iterable, Iterator, Sequence
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Protocol,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tardis_machine.emit import datatypes
from tardis_machine.errors import TardisMachineError
from tardis_machine.extras import require
from tardis_machine.messages import Message, Time, decode_lines
from tardis_machine.numbers import of_float

if TYPE_CHECKING:
    import pyarrow as pa

_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {
    str(each.__struct_config__.tag): each for each in get_args(Message)
}
_BATCH_BYTES: Final = 4 << 20


class HasData(Protocol):
    """A batch of a replay."""

    @property
    def data(self) -> bytes: ...


class ColumnError(TardisMachineError):
    """A column that a data type does not have."""

    def __init__(self, column: str, data_type: str, known: Sequence[str]) -> None:
        super().__init__(f"{data_type} has no column {column!r}; it has {', '.join(known)}")
        self.column = column
        self.data_type = data_type


def schema(data_type: str, columns: Sequence[str] | None = None) -> "pa.Schema":
    """The columns of a data type, normalized (`trade`) or computed (`trade_bar_1s`)."""
    pyarrow = require("pyarrow", extra="arrow")
    fields = _fields(data_type)
    for column in columns or ():
        if column not in fields:
            raise ColumnError(column, data_type, tuple(fields))
    return pyarrow.schema([(name, fields[name]) for name in columns or fields])


def record_batches(
    batches: Iterable[HasData | bytes], data_type: str, *, columns: Sequence[str] | None = None
) -> Iterator["pa.RecordBatch"]:
    """Turn a replay's batches into record batches of one data type; other messages are left out.

    >>> replay = replay_normalized(exchange="bitmex", …, data_types=["trade"])
    >>> table = pyarrow.Table.from_batches(record_batches(replay.batches(), "trade"))
    """
    wanted = schema(data_type, columns)
    parts: list[bytes] = []
    size = 0
    for batch in batches:
        data = _lines(batch if isinstance(batch, bytes) else batch.data, data_type)
        if data:
            parts.append(data)
            size += len(data)
        if size >= _BATCH_BYTES:
            yield from _read(b"".join(parts), data_type, wanted)
            parts.clear()
            size = 0
    if parts:
        yield from _read(b"".join(parts), data_type, wanted)


def table(
    batches: Iterable[HasData | bytes], data_type: str, *, columns: Sequence[str] | None = None
) -> "pa.Table":
    """Turn a whole replay into a table of one data type, which may be empty."""
    pyarrow = require("pyarrow", extra="arrow")
    return pyarrow.Table.from_batches(
        record_batches(batches, data_type, columns=columns), schema(data_type, columns)
    )


def _message_type(data_type: str) -> str:
    return data_type if data_type in _STRUCTS else datatypes.parse(data_type).message_type


def _fields(data_type: str) -> dict[str, "pa.DataType"]:
    hints = get_type_hints(_STRUCTS[_message_type(data_type)])
    struct = _STRUCTS[_message_type(data_type)]
    return {name: _arrow_type(hints[name]) for name in struct.__struct_fields__}


def _arrow_type(hint: Any) -> "pa.DataType":
    pyarrow = require("pyarrow", extra="arrow")
    if get_origin(hint) in (Union, UnionType):
        # An id is text on one exchange and a number on another: text holds both.
        kinds = [each for each in get_args(hint) if each is not NoneType]
        return _arrow_type(str if str in kinds else kinds[0])
    if get_origin(hint) is Literal:
        return pyarrow.string()
    if get_origin(hint) is list:
        return pyarrow.list_(_arrow_type(get_args(hint)[0]))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint)
        return pyarrow.struct([(name, _arrow_type(hints[name])) for name in hint.__struct_fields__])
    return {
        str: pyarrow.string(),
        float: pyarrow.float64(),
        int: pyarrow.int64(),
        bool: pyarrow.bool_(),
        Time: pyarrow.timestamp("us", tz="UTC"),
    }[hint]


def _lines(data: bytes, data_type: str) -> bytes:
    """The lines of a data type, as the emitter writes them: type first, a computed one's name."""
    message_type = _message_type(data_type)
    start = f'{{"type":"{message_type}",'.encode()
    name = b"" if data_type == message_type else f'"name":"{data_type}",'.encode()
    whole = data.count(b"\n")
    if data.count(start) == whole and (not name or data.count(name) == whole):
        return data
    return b"".join(
        line
        for line in data.splitlines(keepends=True)
        if line.startswith(start) and (not name or name in line)
    )


def _read(data: bytes, data_type: str, wanted: "pa.Schema") -> Iterator["pa.RecordBatch"]:
    pyarrow, json = require("pyarrow", extra="arrow"), require("pyarrow.json", extra="arrow")
    struct = _STRUCTS[_message_type(data_type)]
    keys = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    try:
        read = json.read_json(
            pyarrow.BufferReader(data),
            # One block, since none may end inside a line; it is a few megabytes at most.
            read_options=json.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=json.ParseOptions(
                explicit_schema=pyarrow.schema([(keys[each.name], each.type) for each in wanted]),
                unexpected_field_behavior="ignore",
            ),
        )
    except pyarrow.ArrowInvalid:
        # Numeric ids, which the reader does not take for text; or no messages, which decoding says.
        yield pyarrow.RecordBatch.from_pylist(
            [_row(each, wanted.names) for each in decode_lines(data)], wanted
        )
    else:
        yield from read.rename_columns(wanted.names).to_batches()


def _row(message: msgspec.Struct, names: Sequence[str]) -> dict[str, object]:
    return {name: _value(getattr(message, name), name) for name in names}


def _value(value: object, name: str) -> object:
    if isinstance(value, list):
        return [
            msgspec.structs.asdict(each) if isinstance(each, msgspec.Struct) else each
            for each in value
        ]
    if name == "id" and isinstance(value, float):
        return of_float(value)
    return value
