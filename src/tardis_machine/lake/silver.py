"""Silver: one table for each payload case, decimals exact."""

from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as bronze_pb2
from tardis_machine.lake.decode.columns import (
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
from tardis_machine.lake.decode.envelopes import envelopes, payloads
from tardis_machine.lake.events import enveloped, texts
from tardis_machine.lake.groups import LIVE
from tardis_machine.lake.records import schema_of

if TYPE_CHECKING:
    from pyspark.sql import Column as SparkColumn
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
        SilverTable("trade", "trades", (_EVENT_TS, text("trade_id"), *_PRICED)),
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

_SAME_TRADE: Final = (
    "exchange",
    "symbol",
    "origin",
    "trade_id",
    "event_ts",
    "price",
    "amount",
    "side",
)

DEFECT: Final = "defect"
"""Beside a table's columns: what keeps a row out of it."""


def columns(case: str) -> dict[str, str]:
    """Give a table's columns and their types."""
    return KEY | {column.name: column.spark_type for column in TABLES[case].columns}


def rows(events: "DataFrame", case: str) -> "DataFrame":
    """Turn the Bronze events of one payload case into rows of its table, each with its defect."""
    # All else is in the value, and each column costs as much to hand over as to decode.
    own = events.where(events.payload_case == case).select("value")
    schema = schema_of({**columns(case), DEFECT: "STRING"})
    return own.mapInArrow(partial(_row_batches, case), schema)


def one_of_each_trade(
    trades: "DataFrame", known: "DataFrame", *, twins: bool = True
) -> "DataFrame":
    """Leave out trades that another server took as well: those in `known`, and all but one here.

    They are one when exchange, symbol, trade id, exchange time, price, amount and side agree. Ids
    that are empty or all zeros, which some exchanges send, do not count; nor does what was
    replayed, where a trade has the same event id each time. `twins` says that some of these trades
    may be one.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    # One sent again has its event id in the table, and is found by that.
    others = known.where(_may_be_another()).select(*_SAME_TRADE)
    fresh = trades.join(others, list(_SAME_TRADE), "left_anti")
    if not twins:
        return fresh
    alone = f.when(_may_be_another(), None).otherwise(f.col("event_id"))
    return fresh.withColumn("_alone", alone).dropDuplicates([*_SAME_TRADE, "_alone"]).drop("_alone")


def _may_be_another() -> "SparkColumn":
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return (f.col("origin") == LIVE) & (f.translate("trade_id", "0-", "") != "")


def book_levels(book_changes: "DataFrame") -> "DataFrame":
    """Explode book changes into one row per level, bids first, as the exchange ordered them."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    def side(name: str, levels: str) -> "DataFrame":
        kept = [column for column in book_changes.columns if column not in {"bids", "asks"}]
        return book_changes.select(
            *kept, f.lit(name).alias("side"), f.posexplode(levels).alias("level", "_level")
        ).select(*kept, "side", "level", "_level.price", "_level.amount")

    return side("bid", "bids").unionByName(side("ask", "asks"))


def read(case: str, values: pa.Array) -> tuple[dict[str, pa.Array], Defects]:
    """Read a case's own columns from its payloads, and find what keeps rows out of its table."""
    decoded = payloads(case, values)
    defects: Defects = dict(decoded.bad)
    return {
        column.name: column.read(decoded.columns, defects) for column in TABLES[case].columns
    }, defects


def _row_batches(case: str, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = list(columns(case))
    for batch in batches:
        envelope = envelopes(batch.column("value")).columns
        own, defects = read(case, envelope.column(case))
        every = enveloped(envelope) | own
        yield pa.RecordBatch.from_pydict(
            {**{name: every[name] for name in names}, DEFECT: texts(defects, len(batch))}
        )
