"""Silver: one table for each payload case, decimals exact, every event once."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.bronze.v1 import normalized_event_pb2 as bronze_pb2
from tardis_machine.lake.columns import (
    Column,
    Defects,
    choice,
    count,
    decimal,
    flag,
    levels,
    text,
    time,
)
from tardis_machine.lake.decode import envelopes, payloads

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_SIDE: Final = bronze_pb2.Side.DESCRIPTOR
_EVENT_TS: Final = time("event_ts", required=True)
_NAMED: Final = (_EVENT_TS, text("name"))
_PRICED: Final = (
    decimal("price", required=True),
    decimal("amount", "qty_str", required=True),
    choice("side", _SIDE, unspecified="unknown"),
)


class SilverTable(NamedTuple):
    """A payload case's table: its name, and its columns beside those that all tables have."""

    case: str
    name: str
    columns: tuple[Column, ...]
    ident: str | None = None
    """A column by which the exchange itself tells events apart, where it has a value."""


def _no_levels(fields: pa.RecordBatch, defects: Defects) -> pa.Array:
    """Give the bid's price, unless the message had more than the one level a quote has."""
    for row in pc.indices_nonzero(fields.column("has_levels")).to_pylist():
        defects.setdefault(row, "a quote with other than one level on each side")
    return decimal("bid_price").read(fields, defects)


def _every_symbol(fields: pa.RecordBatch, _: Defects) -> pa.Array:
    return fields.column("symbols").is_null()


def _listed_symbols(fields: pa.RecordBatch, _: Defects) -> pa.Array:
    return pc.struct_field(fields.column("symbols"), "symbols").cast(pa.list_(pa.string()))


TABLES: Final[dict[str, SilverTable]] = {
    table.case: table
    for table in (
        SilverTable("trade", "trades", (_EVENT_TS, text("trade_id"), *_PRICED), ident="trade_id"),
        SilverTable(
            "bookChange",
            "book_changes",
            (_EVENT_TS, flag("is_snapshot"), levels("bids"), levels("asks")),
        ),
        SilverTable(
            "bookSnapshot",
            "book_snapshots",
            (
                *_NAMED,
                count("depth"),
                decimal("interval_ms", "interval_str"),
                levels("bids"),
                levels("asks"),
            ),
        ),
        SilverTable(
            "groupedBookSnapshot",
            "grouped_book_snapshots",
            (
                *_NAMED,
                count("depth"),
                decimal("interval_ms", "interval_str"),
                decimal("grouping"),
                levels("bids"),
                levels("asks"),
            ),
        ),
        SilverTable(
            "quote",
            "quotes",
            (
                *_NAMED,
                decimal("interval_ms", "interval_str"),
                decimal("bid_price")._replace(read=_no_levels),
                decimal("bid_amount", "bid_qty_str"),
                decimal("ask_price"),
                decimal("ask_amount", "ask_qty_str"),
            ),
        ),
        SilverTable(
            "bookTicker",
            "book_tickers",
            (
                _EVENT_TS,
                decimal("bid_price", "best_bid_price_str"),
                decimal("bid_amount", "best_bid_qty_str"),
                decimal("ask_price", "best_ask_price_str"),
                decimal("ask_amount", "best_ask_qty_str"),
            ),
        ),
        SilverTable(
            "derivativeTicker",
            "derivative_tickers",
            (
                _EVENT_TS,
                decimal("last_price"),
                decimal("open_interest"),
                decimal("funding_rate"),
                time("funding_ts"),
                decimal("predicted_funding_rate"),
                decimal("index_price"),
                decimal("mark_price"),
            ),
        ),
        SilverTable(
            "liquidation",
            "liquidations",
            (_EVENT_TS, text("liquidation_id", "order_id"), *_PRICED),
        ),
        SilverTable(
            "optionSummary",
            "option_summaries",
            (
                _EVENT_TS,
                choice("option_type", bronze_pb2.OptionType.DESCRIPTOR, unspecified="unknown"),
                decimal("strike_price", required=True),
                time("expiration_ts"),
                decimal("best_bid_price"),
                decimal("best_bid_amount", "best_bid_qty_str"),
                decimal("best_bid_iv"),
                decimal("best_ask_price"),
                decimal("best_ask_amount", "best_ask_qty_str"),
                decimal("best_ask_iv"),
                decimal("last_price"),
                decimal("open_interest", "oi_str"),
                decimal("mark_price"),
                decimal("mark_iv", "iv_str"),
                decimal("delta"),
                decimal("gamma"),
                decimal("vega"),
                decimal("theta"),
                decimal("rho"),
                decimal("underlying_price"),
                text("underlying_index"),
            ),
        ),
        SilverTable(
            "tradeBar",
            "trade_bars",
            (
                time("event_ts", "bar_ts", required=True),
                text("name"),
                choice("kind", bronze_pb2.BarKind.DESCRIPTOR, unspecified="unknown"),
                decimal("interval"),
                decimal("open", required=True),
                decimal("high", required=True),
                decimal("low", required=True),
                decimal("close", required=True),
                decimal("volume", required=True),
                decimal("buy_volume"),
                decimal("sell_volume"),
                count("trade_count"),
                decimal("vwap"),
                time("open_ts", "event_ts"),
                time("close_ts", "end_ts"),
            ),
        ),
        SilverTable("error", "errors", (text("details"), count("subsequent_errors"))),
        SilverTable(
            "disconnect",
            "disconnects",
            (
                Column("all_symbols", "BOOLEAN", pa.bool_(), _every_symbol),
                Column("symbols", "ARRAY<STRING>", pa.list_(pa.string()), _listed_symbols),
            ),
        ),
    )
}
"""By payload case; a new case is a new entry here."""

KEY: Final[dict[str, str]] = {
    "event_id": "STRING",
    "exchange": "STRING",
    "day": "DATE",
    "symbol": "STRING",
    "local_ts": "TIMESTAMP",
    "ingest_ts": "TIMESTAMP",
    "origin": "STRING",
    "producer_id": "STRING",
    "position": "BIGINT",
}
"""The columns that all Silver tables begin with."""

EVENT_KEY: Final = ("exchange", "day", "local_ts", "event_id")
"""What tells events apart: the id alone would do, the rest says which files can have it."""


def schema(case: str) -> str:
    """Give a table's columns as Spark writes them."""
    columns = KEY | {column.name: column.spark_type for column in TABLES[case].columns}
    return ", ".join(f"{name} {kind}" for name, kind in columns.items())


def rows(events: "DataFrame", case: str) -> "DataFrame":
    """Turn the sound Bronze events of one payload case into rows of its table."""
    own = events.where((events.payload_case == case) & events.defect.isNull())
    return own.select(*KEY, "value").mapInArrow(partial(_row_batches, case), schema(case))


def distinct(rows: "DataFrame", case: str) -> "DataFrame":
    """Keep one row of each event, and of each trade that the exchange gave an id."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if TABLES[case].ident is None:
        # By all that the merge compares, so that rows are where it needs them already.
        return rows.dropDuplicates(list(EVENT_KEY))
    keyed = rows.alias("r").withColumn("_ident", f.expr(ident_key(case).replace("{}", "r")))
    return keyed.dropDuplicates(["exchange", "symbol", "_ident"]).drop("_ident")


def ident_key(case: str) -> str:
    """Give the SQL that tells rows of one exchange and symbol apart; `{}` is the table's alias.

    The same event has the same trade id, so that this finds both kinds of duplicates. Rows without
    one have their event id in its place.
    """
    return f"coalesce({{}}.{TABLES[case].ident}, concat('event:', {{}}.event_id))"


def book_levels(book_changes: "DataFrame") -> "DataFrame":
    """Explode book changes into one row per level, bids first, as the exchange ordered them."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    def side(name: str, levels: str) -> "DataFrame":
        kept = [column for column in book_changes.columns if column not in {"bids", "asks"}]
        return book_changes.select(
            *kept, f.lit(name).alias("side"), f.posexplode(levels).alias("level", "_level")
        ).select(*kept, "side", "level", "_level.price", "_level.amount")

    return side("bid", "bids").unionByName(side("ask", "asks"))


def defects(case: str, values: pa.Array) -> Defects:
    """Tell what keeps each of these payloads out of its table."""
    decoded = payloads(case, values)
    found: Defects = dict(decoded.bad)
    for column in TABLES[case].columns:
        column.read(decoded.columns, found)
    return found


def selected(case: str, events: pa.RecordBatch, names: Iterable[str]) -> pa.RecordBatch:
    """Give columns of a case's inspected events; columns of other cases are null."""
    known = {column.name: column for column in TABLES[case].columns}
    fields = payloads(case, envelopes(events.column("value")).columns.column(case)).columns
    present = {name for name in names if name in known or name in events.schema.names}
    columns = {
        # Their defects are known by now: such rows were set aside.
        name: known[name].read(fields, {}) if name in known else events.column(name)
        for name in present
    }
    foreign = {
        column.name: column.arrow_type for table in TABLES.values() for column in table.columns
    }
    return pa.RecordBatch.from_pydict(
        {
            name: columns[name] if name in columns else pa.nulls(len(events), foreign[name])
            for name in names
        }
    )


def _row_batches(case: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = [*KEY, *(column.name for column in TABLES[case].columns)]
    for batch in batches:
        yield selected(case, batch, names)
