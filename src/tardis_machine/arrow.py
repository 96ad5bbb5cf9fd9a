"""Arrow tables of normalized messages, for data frames: from a replay's bytes, batch by batch.

Columns are the messages' fields in snake case and in their order. Numbers are float64 unless they
are asked for as exact decimals or as text; counts are int64. Times are timestamps in microseconds,
UTC. Bids and asks are lists of structs of price and amount.
"""

import re
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
from tardis_machine.messages import Message, MessageError, Time, decode_lines

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = Literal["float", "decimal", "text"]
"""How prices, amounts and the like are given: float64; decimal128(38, 18), refused where that is
not exact; or the text that they have in JSON."""

_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {
    str(each.__struct_config__.tag): each for each in get_args(Message)
}
_BATCH_BYTES: Final = 4 << 20
# A key ends with a letter; inside of strings every quote follows a backslash. Each pattern begins
# with fixed characters and looks back after them, which makes the search many times faster.
_NUMBER: Final = re.compile(rb'":(?<=[a-zA-Z]":)(-?[0-9][-+.0-9e]*)')
_NUMERIC_ID: Final = re.compile(rb'"id":(-?[0-9][-+.0-9e]*)')
# What has more than twenty digits before the point: some of these Arrow reads as other numbers.
_TOO_LARGE: Final = re.compile(rb'":(?<=[a-zA-Z]":)(-?(?:[0-9]{21}[0-9]*|[0-9.]+e\+[0-9]+))')


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


class NumberError(TardisMachineError):
    """A number that the decimals of a table do not hold exactly."""

    def __init__(self, data_type: str, reason: str) -> None:
        super().__init__(
            f"{data_type}: a number does not fit decimal128(38, 18) exactly: {reason}; "
            'numbers="text" and numbers="float" take any'
        )
        self.data_type = data_type
        self.reason = reason


def schema(
    data_type: str, columns: Sequence[str] | None = None, *, numbers: Numbers = "float"
) -> "pa.Schema":
    """The columns of a data type, normalized (`trade`) or computed (`trade_bar_1s`)."""
    if numbers not in get_args(Numbers):
        raise ValueError(f"numbers={numbers!r}: expected {', '.join(get_args(Numbers))}")
    pyarrow = require("pyarrow", extra="arrow")
    fields = _fields(data_type, numbers)
    for column in columns or ():
        if column not in fields:
            raise ColumnError(column, data_type, tuple(fields))
    return pyarrow.schema([(name, fields[name]) for name in columns or fields])


def reader(
    batches: Iterable[HasData | bytes],
    data_type: str,
    *,
    columns: Sequence[str] | None = None,
    numbers: Numbers = "float",
) -> "pa.RecordBatchReader":
    """Read a replay's batches as record batches of one data type, each of a few megabytes.

    Other messages are left out.
    """
    pyarrow = require("pyarrow", extra="arrow")
    wanted = schema(data_type, columns, numbers=numbers)
    return pyarrow.RecordBatchReader.from_batches(
        wanted, _record_batches(batches, data_type, wanted, numbers)
    )


def _record_batches(
    batches: Iterable[HasData | bytes], data_type: str, wanted: "pa.Schema", numbers: Numbers
) -> Iterator["pa.RecordBatch"]:
    parts: list[bytes] = []
    size = 0
    for batch in batches:
        data = _lines(batch if isinstance(batch, bytes) else batch.data, data_type)
        if data:
            parts.append(data)
            size += len(data)
        if size >= _BATCH_BYTES:
            yield from _read(b"".join(parts), data_type, wanted, numbers)
            parts.clear()
            size = 0
    if parts:
        yield from _read(b"".join(parts), data_type, wanted, numbers)


def _message_type(data_type: str) -> str:
    return data_type if data_type in _STRUCTS else datatypes.parse(data_type).message_type


def _fields(data_type: str, numbers: Numbers) -> dict[str, "pa.DataType"]:
    struct = _STRUCTS[_message_type(data_type)]
    hints = get_type_hints(struct)
    return {name: _arrow_type(hints[name], numbers) for name in struct.__struct_fields__}


def _arrow_type(hint: Any, numbers: Numbers) -> "pa.DataType":
    pyarrow = require("pyarrow", extra="arrow")
    if get_origin(hint) in (Union, UnionType):
        # An id is text on one exchange and a number on another: text holds both.
        kinds = [each for each in get_args(hint) if each is not NoneType]
        return _arrow_type(str if str in kinds else kinds[0], numbers)
    if get_origin(hint) is Literal:
        return pyarrow.string()
    if get_origin(hint) is list:
        return pyarrow.list_(_arrow_type(get_args(hint)[0], numbers))
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        hints = get_type_hints(hint)
        return pyarrow.struct(
            [(name, _arrow_type(hints[name], numbers)) for name in hint.__struct_fields__]
        )
    if hint is float and numbers != "float":
        return pyarrow.string() if numbers == "text" else pyarrow.decimal128(38, 18)
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


def _read(
    data: bytes, data_type: str, wanted: "pa.Schema", numbers: Numbers
) -> Iterator["pa.RecordBatch"]:
    pyarrow, json = require("pyarrow", extra="arrow"), require("pyarrow.json", extra="arrow")
    struct = _STRUCTS[_message_type(data_type)]
    keys = dict(zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True))
    types, quoted = list(wanted.types), data
    if numbers == "text":
        quoted = _NUMBER.sub(rb'":"\1"', data)
        types = [pyarrow.string() if each == pyarrow.int64() else each for each in types]
    elif _NUMERIC_ID.search(data):
        quoted = _NUMERIC_ID.sub(rb'"id":"\1"', data)
    if numbers == "decimal" and (large := _TOO_LARGE.search(data)):
        raise NumberError(data_type, large[1].decode())
    read_as = zip((keys[name] for name in wanted.names), types, strict=True)
    try:
        read = json.read_json(
            pyarrow.BufferReader(quoted),
            # One block, since none may end inside a line; it is a few megabytes at most.
            read_options=json.ReadOptions(use_threads=False, block_size=len(quoted) + 1),
            parse_options=json.ParseOptions(
                explicit_schema=pyarrow.schema(list(read_as)), unexpected_field_behavior="ignore"
            ),
        )
    except pyarrow.ArrowInvalid as error:
        decode_lines(data)  # which says which line is no message
        if numbers == "decimal":
            raise NumberError(data_type, str(error).rpartition(": ")[2]) from None
        raise MessageError(str(error)) from None
    yield from read.rename_columns(wanted.names).cast(wanted).to_batches()
