"""Arrow tables of normalized messages, for data frames: from a replay's bytes, batch by batch.

Columns are the messages' fields in snake case and in their order. Numbers are float64 unless they
are asked for as exact decimals or as text; counts are int64. Times are timestamps in microseconds,
UTC. Bids and asks are lists of structs of price and amount, or a column for each of these.
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
    TypedDict,
    Union,
    Unpack,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from tardis_machine.engine import datatypes
from tardis_machine.errors import TardisMachineError
from tardis_machine.extras import require
from tardis_machine.messages import Message, MessageError, Time, decode_lines

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = Literal["float", "decimal", "text"]
"""How prices, amounts and the like are given: float64; decimal128(38, 18), refused where that is
not exact; or the text that they have in JSON."""
Levels = Literal["nested", "wide"]
"""How bids and asks are given: a list for each message; or, where their number is known, a column
for each price and amount, such as `bids[0].price`, as in Tardis.dev's CSV files."""

_STRUCTS: Final[dict[str, type[msgspec.Struct]]] = {
    str(each.__struct_config__.tag): each for each in get_args(Message)
}
_SIDES: Final = ("bids", "asks")
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


class ChoiceError(TardisMachineError, ValueError):
    """A way to give numbers or levels that there is not."""


class NumberError(TardisMachineError):
    """A number that the decimals of a table do not hold exactly."""

    def __init__(self, data_type: str, reason: str) -> None:
        super().__init__(
            f"{data_type}: a number does not fit decimal128(38, 18) exactly: {reason}; "
            'numbers="text" and numbers="float" take any'
        )
        self.data_type = data_type
        self.reason = reason


class LevelsError(TardisMachineError):
    """Columns for each level of a data type whose messages do not all have as many."""

    def __init__(self, data_type: str) -> None:
        super().__init__(
            f'levels="wide" is for quotes and book snapshots such as book_snapshot_5_1s, '
            f"not for {data_type}"
        )
        self.data_type = data_type


class TableOptions(TypedDict, total=False):
    """How a table looks: which columns it has, all unless they are named; numbers; levels."""

    columns: Sequence[str] | None
    numbers: Numbers
    levels: Levels


class Layout:
    """A table of one data type, normalized (`trade`) or computed (`trade_bar_1s`)."""

    def __init__(
        self,
        data_type: str,
        *,
        columns: Sequence[str] | None = None,
        numbers: Numbers = "float",
        levels: Levels = "nested",
    ) -> None:
        for name, value, allowed in (("numbers", numbers, Numbers), ("levels", levels, Levels)):
            if value not in get_args(allowed):
                raise ChoiceError(f"{name}={value!r}: expected {', '.join(get_args(allowed))}")
        self.data_type = data_type
        self.message_type = _message_type(data_type)
        self.numbers = numbers
        self.depth = _depth(data_type) if levels == "wide" else 0
        struct = _STRUCTS[self.message_type]
        self.keys = dict(
            zip(struct.__struct_fields__, struct.__struct_encode_fields__, strict=True)
        )
        self._fields = _fields(struct, numbers)
        known = dict(self._columns())
        columns = [columns] if isinstance(columns, str) else columns  # nobody means its letters
        chosen = list(known if columns is None else columns)
        if not chosen:
            raise ChoiceError("columns=[]: expected at least one; without columns= there are all")
        for column in chosen:
            if column not in known:
                raise ColumnError(column, data_type, tuple(known))
        self.schema: pa.Schema = require("pyarrow", extra="arrow").schema(
            [(name, known[name]) for name in chosen]
        )

    def _columns(self) -> "Iterator[tuple[str, pa.DataType]]":
        for name, kind in self._fields.items():
            if not self.depth or name not in _SIDES:
                yield name, kind
                continue
            for level in range(self.depth):
                for part in kind.value_type:
                    yield f"{name}[{level}].{part.name}", part.type

    def read_schema(self) -> "pa.Schema":
        """Return the fields that are read, as JSON has them."""
        pyarrow = require("pyarrow", extra="arrow")
        needed = {name.partition("[")[0] for name in self.schema.names}
        # Where numbers are read as text, counts are text on the way, too.
        quoted = {pyarrow.int64(): pyarrow.string()} if self.numbers == "text" else {}
        return pyarrow.schema(
            [
                (self.keys[name], quoted.get(kind, kind))
                for name, kind in self._fields.items()
                if name in needed
            ]
        )

    def arranged(self, read: "pa.Table") -> "pa.Table":
        """Make the table's columns of what was read."""
        return read.from_arrays(
            [self._column(read.combine_chunks(), name) for name in self.schema.names],
            names=self.schema.names,
        ).cast(self.schema)

    def _column(self, read: "pa.Table", name: str) -> "pa.ChunkedArray | pa.Array":
        side, _, place = name.partition("[")
        column = read.column(self.keys[side])
        if not place:
            return column
        pyarrow = require("pyarrow", extra="arrow")
        level, _, part = place.partition("].")
        # Every message has all levels, so that those of one number stand at equal distances.
        values = pyarrow.concat_arrays([chunk.flatten() for chunk in column.chunks]).field(part)
        return values.take(pyarrow.array(range(int(level), len(values), self.depth), "int64"))


def schema(data_type: str, **choice: Unpack[TableOptions]) -> "pa.Schema":
    """Return the columns of a data type."""
    return Layout(data_type, **choice).schema


def reader(batches: Iterable[HasData | bytes], layout: Layout) -> "pa.RecordBatchReader":
    """Read a replay's batches as record batches of one data type, each of a few megabytes.

    Other messages are left out.
    """
    pyarrow = require("pyarrow", extra="arrow")
    return pyarrow.RecordBatchReader.from_batches(layout.schema, _record_batches(batches, layout))


def _record_batches(
    batches: Iterable[HasData | bytes], layout: Layout
) -> Iterator["pa.RecordBatch"]:
    parts: list[bytes] = []
    size = 0
    for batch in batches:
        data = _lines(batch if isinstance(batch, bytes) else batch.data, layout)
        if data:
            parts.append(data)
            size += len(data)
        if size >= _BATCH_BYTES:
            yield from _read(b"".join(parts), layout)
            parts.clear()
            size = 0
    if parts:
        yield from _read(b"".join(parts), layout)


def _message_type(data_type: str) -> str:
    return data_type if data_type in _STRUCTS else datatypes.parse(data_type).message_type


def _depth(data_type: str) -> int:
    parsed = None if data_type in _STRUCTS else datatypes.parse(data_type)
    if not isinstance(parsed, datatypes.BookSnapshots):
        raise LevelsError(data_type)
    return parsed.depth


def _fields(struct: type[msgspec.Struct], numbers: Numbers) -> dict[str, "pa.DataType"]:
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


def _lines(data: bytes, layout: Layout) -> bytes:
    """Return the lines of a data type as the emitter writes them, a computed one's by its name."""
    start = f'{{"type":"{layout.message_type}",'.encode()
    is_named = layout.data_type != layout.message_type
    name = f'"name":"{layout.data_type}",'.encode() if is_named else b""
    whole = data.count(b"\n")
    if data.count(start) == whole and (not name or data.count(name) == whole):
        return data
    return b"".join(
        line
        for line in data.splitlines(keepends=True)
        if line.startswith(start) and (not name or name in line)
    )


def _read(data: bytes, layout: Layout) -> Iterator["pa.RecordBatch"]:
    pyarrow, json = require("pyarrow", extra="arrow"), require("pyarrow.json", extra="arrow")
    quoted = data
    if layout.numbers == "text":
        quoted = _NUMBER.sub(rb'":"\1"', data)
    elif _NUMERIC_ID.search(data):
        quoted = _NUMERIC_ID.sub(rb'"id":"\1"', data)
    if layout.numbers == "decimal" and (large := _TOO_LARGE.search(data)):
        raise NumberError(layout.data_type, large[1].decode())
    try:
        read = json.read_json(
            pyarrow.BufferReader(quoted),
            # One block, since none may end inside a line; it is a few megabytes at most.
            read_options=json.ReadOptions(use_threads=False, block_size=len(quoted) + 1),
            parse_options=json.ParseOptions(
                explicit_schema=layout.read_schema(), unexpected_field_behavior="ignore"
            ),
        )
    except pyarrow.ArrowInvalid as error:
        decode_lines(data)  # which says which line is no message
        if layout.numbers == "decimal":
            raise NumberError(layout.data_type, str(error).rpartition(": ")[2]) from None
        raise MessageError(str(error)) from None
    yield from layout.arranged(read).to_batches()
