"""What each column of Bronze and Silver means, and in which unit: catalogs show it."""

from collections.abc import Iterable, Mapping
from typing import Final

from tardis_machine.lake.spans import literal

_PRICE: Final = "in the quote currency"
_AMOUNT: Final = "in the exchange's unit: contracts, or the base currency"

COLUMNS: Final[dict[str, str]] = {
    "all_symbols": "whether the whole connection broke, not only some symbols'",
    "amount": f"how much was traded, {_AMOUNT}",
    "ask_amount": f"amount at the best ask, {_AMOUNT}",
    "ask_price": f"best ask, {_PRICE}",
    "asks": f"levels to sell, best first as sent; price {_PRICE}, amount {_AMOUNT}",
    "best_ask_amount": f"amount at the best ask, {_AMOUNT}",
    "best_ask_iv": "implied volatility of the best ask, as the exchange writes it, mostly percent",
    "best_ask_price": "best ask, in the currency that the option is quoted in",
    "best_bid_amount": f"amount at the best bid, {_AMOUNT}",
    "best_bid_iv": "implied volatility of the best bid, as the exchange writes it, mostly percent",
    "best_bid_price": "best bid, in the currency that the option is quoted in",
    "bid_amount": f"amount at the best bid, {_AMOUNT}",
    "bid_price": f"best bid, {_PRICE}",
    "bids": f"levels to buy, best first as sent; price {_PRICE}, amount {_AMOUNT}",
    "bus": "where the record was read: kafka, nats, …; tardis for a backfill",
    "buy_volume": f"amount that takers bought, {_AMOUNT}",
    "close": f"last price, {_PRICE}",
    "close_ts": "exchange time of the last trade, UTC, microseconds",
    "data_type": "as one asks the server for it, such as trade or book_snapshot_5_1s",
    "day": "UTC day of the local time",
    "delta": "change of the option's price with the underlying's",
    "depth": "levels on each side",
    "destination": "topic, subject or stream that the record was read from",
    "details": "what went wrong, as the server said it",
    "end": "end of the time that is done, not included, UTC",
    "event_id": "32 hex digits, the same for the same event in every replay and process",
    "event_ts": "time of the exchange, UTC, microseconds",
    "events": "how many events there were",
    "exchange": "as Tardis.dev names it, such as bitmex",
    "expiration_ts": "when the option expires, UTC",
    "filtered": "how many of the events a destination's filters left out",
    "finished": "when the line was written, UTC",
    "funding_rate": "rate of the next funding, a fraction of the position's value",
    "funding_ts": "when funding is paid next, UTC",
    "gamma": "change of delta with the underlying's price",
    "generation": "how often this was replaced by --force",
    "grouping": f"width of a price group, {_PRICE}",
    "high": f"highest price, {_PRICE}",
    "id": "tells the record from all others in quarantine",
    "index_price": f"the exchange's index, {_PRICE}",
    "ingest_ts": "when the event was encoded, UTC, microseconds",
    "interval": "size of a bar: milliseconds, trades or volume, as kind says",
    "interval_ms": "milliseconds between snapshots, 0 for every change",
    "is_snapshot": "whether the levels are the whole book, in place of what was known",
    "key": "the record's key on its bus",
    "kind": "what ends a bar: time, tick or volume",
    "last_price": f"price of the last trade, {_PRICE}",
    "layer": "bronze or silver",
    "liquidation_id": "as the exchange gave it",
    "local_ts": "when the message arrived at the recorder or server, UTC, microseconds",
    "low": f"lowest price, {_PRICE}",
    "mark_iv": "implied volatility of the mark, as the exchange writes it, mostly percent",
    "mark_price": f"price that margins are reckoned with, {_PRICE}",
    "meta": "what else the envelope says, such as the request",
    "name": "the computed data type, such as trade_bar_1m",
    "offset": "where the record stood in its partition",
    "open": f"first price, {_PRICE}",
    "open_interest": f"open positions, {_AMOUNT}",
    "open_ts": "exchange time of the first trade, UTC, microseconds",
    "option_type": "put or call",
    "origin": "replay for history, realtime for what came live",
    "partition": "partition or shard that the record was read from",
    "payload_case": "what the envelope carries, such as trade or bookChange",
    "position": "orders rows of equal local time",
    "predicted_funding_rate": "the exchange's estimate of the funding after next, a fraction",
    "price": f"price, {_PRICE}",
    "producer_id": "which server or job encoded the event",
    "reason": "why the record has no row",
    "rejected": "how many of the events are in quarantine",
    "rho": "change of the option's price with interest rates",
    "sell_volume": f"amount that takers sold, {_AMOUNT}",
    "side": "who took: buy, sell, or unknown",
    "source": "the program that made the event",
    "stage": "where it failed: normalize, encode, bronze or silver",
    "start": "beginning of the time that is done, UTC",
    "strike_price": f"strike, {_PRICE}",
    "subsequent_errors": "errors in a row, this one included",
    "symbol": "as the exchange names it; empty for what concerns the whole exchange",
    "symbols": "the symbols concerned; null for all of them",
    "theta": "change of the option's price with a day's passing",
    "timestamp": "when the bus took the record, UTC",
    "trade_count": "how many trades there were",
    "trade_id": "as the exchange gave it; not unique everywhere",
    "underlying_index": "name of what the option is on",
    "underlying_price": f"price of what the option is on, {_PRICE}",
    "unit": "the unit of a backfill that wrote it",
    "value": "the envelope itself, a Protobuf message",
    "vega": "change of the option's price with volatility",
    "volume": f"amount traded, {_AMOUNT}",
    "vwap": f"average price, weighted by amount, {_PRICE}; null without volume",
}
"""By column: a name means the same in every table."""


def commented(columns: Mapping[str, str], own: Mapping[str, str]) -> str:
    """Write columns as Spark does, each with its comment: a table's own, or the common one."""
    return ", ".join(
        f"`{name}` {kind} COMMENT {literal(comment)}"
        for (name, kind), comment in zip(columns.items(), comments(columns, own), strict=True)
    )


def comments(columns: Iterable[str], own: Mapping[str, str]) -> list[str]:
    """Give each column's comment."""
    return [own.get(name) or COLUMNS.get(name, "") for name in columns]
