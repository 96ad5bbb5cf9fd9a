"""Columns of Silver tables: each from a payload's decoded fields, exact or reported as a defect."""

from collections.abc import Callable
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
from google.protobuf.descriptor import EnumDescriptor

from tardis_machine.lake.spans import LAST_US

Defects = dict[int, str]
"""What keeps rows out of a Silver table, by row; the first thing found stays."""
Read = Callable[[pa.RecordBatch, Defects], pa.Array]

DECIMAL: Final = pa.decimal128(38, 18)
_WHOLE_DIGITS: Final = DECIMAL.precision - DECIMAL.scale
_LEAST: Final = Decimal(1).scaleb(-DECIMAL.scale)
_EXACT: Final = Context(prec=DECIMAL.precision, traps=[InvalidOperation, Inexact])
TIME: Final = pa.timestamp("us", tz="UTC")
_LEVEL: Final = pa.struct([("price", DECIMAL), ("amount", DECIMAL)])


class Column(NamedTuple):
    """A column: its name, its type in Spark and in Arrow, how it is read from the payload."""

    name: str
    spark_type: str
    arrow_type: pa.DataType
    read: Read


def text(name: str, source: str | None = None) -> Column:
    """Give text as it is."""
    return Column(name, "STRING", pa.string(), lambda fields, _: fields.column(source or name))


def flag(name: str) -> Column:
    """Give a boolean as it is."""
    return Column(name, "BOOLEAN", pa.bool_(), lambda fields, _: fields.column(name))


def count(name: str) -> Column:
    """Give an unsigned number as the signed one that Spark has."""
    return Column(
        name,
        "BIGINT",
        pa.int64(),
        lambda fields, _: fields.column(name).cast(pa.int64(), safe=False),
    )


def decimal(name: str, source: str | None = None, *, required: bool = False) -> Column:
    """Give decimal text as DECIMAL(38,18), never rounded; empty text is absence."""
    field = source or f"{name}_str"

    def read(fields: pa.RecordBatch, defects: Defects) -> pa.Array:
        values, bad = _decimals(fields.column(field))
        for row, value in bad.items():
            defects.setdefault(row, _unfit(name, value))
        if required:
            _require(name, values, defects)
        return values

    return Column(name, "DECIMAL(38,18)", DECIMAL, read)


def time(name: str, source: str | None = None, *, required: bool = False) -> Column:
    """Give a time in microseconds."""

    def read(fields: pa.RecordBatch, defects: Defects) -> pa.Array:
        values = fields.column(source or name)
        for row in outside_time(values):
            defects.setdefault(row, f"{name} lies outside the years 1970 to 9999")
        if required:
            _require(name, values, defects)
        return values

    return Column(name, "TIMESTAMP", TIME, read)


def choice(name: str, kinds: EnumDescriptor, *, unspecified: str) -> Column:
    """Give an enumeration's value as the word for it."""
    return Column(
        name,
        "STRING",
        pa.string(),
        lambda fields, _: words(fields.column(name), kinds, unspecified),
    )


def levels(name: str) -> Column:
    """Give book levels as a list of prices and amounts."""

    def read(fields: pa.RecordBatch, defects: Defects) -> pa.Array:
        lists = fields.column(name)
        items = lists.flatten()
        prices, bad_prices = _decimals(items.field("price_str"))
        amounts, bad_amounts = _decimals(items.field("qty_str"))
        if bad_prices or bad_amounts:
            parents = pc.list_parent_indices(lists)
            for item, value in {**bad_amounts, **bad_prices}.items():
                what = "price" if item in bad_prices else "amount"
                defects.setdefault(parents[item].as_py(), _unfit(f"{name}.{what}", value))
        pairs = pa.StructArray.from_arrays([prices, amounts], fields=list(_LEVEL))
        return pa.ListArray.from_arrays(lists.offsets, pairs)

    return Column(
        name,
        "ARRAY<STRUCT<price: DECIMAL(38,18), amount: DECIMAL(38,18)>>",
        pa.list_(_LEVEL),
        read,
    )


def words(numbers: pa.Array, kinds: EnumDescriptor, unspecified: str) -> pa.Array:
    """Name the values of an enumeration: SIDE_BUY is `buy`; what is not known is `unspecified`."""
    prefix = kinds.values_by_number[0].name.removesuffix("UNSPECIFIED")
    names = [
        kinds.values_by_number[number].name.removeprefix(prefix).lower()
        if number and number in kinds.values_by_number
        else unspecified
        for number in range(max(kinds.values_by_number) + 1)
    ]
    known = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, len(names)))
    return pa.array(names).take(pc.if_else(known, numbers, 0))


def outside_time(values: pa.Array) -> list[int]:
    """Find times that Spark has no way to write, such as those of corrupted records."""
    numbers = values.cast(pa.int64())
    bounds = pc.min_max(numbers).as_py()
    if bounds["min"] is None or (bounds["min"] >= 0 and bounds["max"] <= LAST_US):
        return []
    outside = pc.or_(pc.less(numbers, 0), pc.greater(numbers, LAST_US))
    found: list[int] = pc.indices_nonzero(outside).to_pylist()
    return found


def _decimals(texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    texts, bad = _spelled_out(texts)
    if not bad:
        try:
            return texts.cast(DECIMAL), {}
        except pa.ArrowInvalid:
            pass
    present = _without(pc.if_else(pc.equal(texts, ""), None, texts), bad)
    bad |= _unfit_rows(present)
    return _without(present, bad).cast(DECIMAL), bad


def _spelled_out(texts: pa.Array) -> tuple[pa.Array, dict[int, str]]:
    """Write out numbers that Arrow may cast to others, and find those that do not fit."""
    rows = _doubtful(texts)
    if not rows:
        return texts, {}
    given = texts.take(pa.array(rows)).to_pylist()
    plain = dict(zip(rows, map(_in_digits, given), strict=True))
    bad = {row: text for row, text in zip(rows, given, strict=True) if plain[row] is None}
    mask = pa.array([row in plain for row in range(len(texts))])
    return pc.replace_with_mask(texts, mask, pa.array(plain.values(), texts.type)), bad


def _doubtful(texts: pa.Array) -> list[int]:
    """Find exponents, and more digits than DECIMAL has: Arrow does not always notice."""
    length = pc.utf8_length(texts)
    if (pc.max(length).as_py() or 0) <= _WHOLE_DIGITS and not _some_exponents(texts):
        return []
    point = pc.find_substring(texts, ".")
    whole = pc.if_else(pc.less(point, 0), length, point)
    long = pc.or_(pc.greater(whole, _WHOLE_DIGITS), pc.greater(length, DECIMAL.precision))
    exponents = pc.match_substring(texts, "e", ignore_case=True)
    rows: list[int] = pc.indices_nonzero(pc.or_(long, exponents)).to_pylist()
    return rows


def _some_exponents(texts: pa.Array) -> bool:
    # Looked at all at once: one by one takes half as long as the cast.
    data = texts.buffers()[2]
    written = b"" if data is None else data.to_pybytes()
    return b"e" in written or b"E" in written


def _in_digits(text: str) -> str | None:
    try:
        return format(_EXACT.quantize(Decimal(text), _LEAST), "f")
    except ArithmeticError:
        return None


def _without(texts: pa.Array, bad: dict[int, str]) -> pa.Array:
    if not bad:
        return texts
    return pc.if_else(pa.array([row in bad for row in range(len(texts))]), None, texts)


def _unfit_rows(texts: pa.Array, start: int = 0) -> dict[int, str]:
    try:
        texts.cast(DECIMAL)
    except pa.ArrowInvalid:
        if len(texts) == 1:
            return {start: texts[0].as_py()}
        half = len(texts) // 2
        return _unfit_rows(texts.slice(0, half), start) | _unfit_rows(
            texts.slice(half), start + half
        )
    return {}


def _require(name: str, values: pa.Array, defects: Defects) -> None:
    if values.null_count:
        for row in pc.indices_nonzero(values.is_null()).to_pylist():
            defects.setdefault(row, f"{name} is missing")


def _unfit(name: str, value: str) -> str:
    return f"{name} {value[:60]!r} does not fit DECIMAL(38,18) exactly"
