"""Coinbase International: perpetuals, whose channels all need a signature."""

import base64
import hmac
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.bounded import Known
from tardis_machine.emit import Sided
from tardis_machine.exchanges.dialect import (
    Dialect,
    Endpoint,
    Outgoing,
    Secrets,
    Session,
    both,
    equals,
    negated,
)
from tardis_machine.exchanges.dispatch import Part, Route, keyed, named
from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Exchange, Making, always
from tardis_machine.exchanges.fields import (
    Sent,
    known_side,
    meant_time,
    optional,
    required,
    time_text,
)
from tardis_machine.exchanges.subscriptions import fields, subscriptions
from tardis_machine.filters import Filter
from tardis_machine.times import cut_ms, parse_ms

_CHANGES: Final = Sided(side=0, price=1, amount=2, bid="BUY")
_HOUR_MS: Final = 3_600_000
_WINDOW: Final = 1 << 20  # the channel stands behind the levels

SentTime = str | UnsetType | None


class _Match(Struct, gc=False):
    product_id: str
    match_id: str | None = None
    trade_price: Sent = UNSET
    trade_qty: Sent = UNSET
    aggressor_side: str | None = None
    time: SentTime = UNSET


_decode_match: Final = Decoder(_Match).decode


def _trades(making: Making) -> Route:
    emit = making.emitter.trade

    def match(row: _Match) -> bool:
        emit(
            row.product_id,
            row.match_id,
            required(row.trade_price, "MATCH", "trade_price"),
            required(row.trade_qty, "MATCH", "trade_qty"),
            known_side(row.aggressor_side, "BUY", "SELL"),
            cut_ms(time_text(row.time, "MATCH", "time")),
        )
        return True

    return named({"MATCH": Part(_decode_match, match)})


class _Book(Struct, gc=False):
    product_id: str
    type: str | None = None
    bids: Raw | UnsetType = UNSET
    asks: Raw | UnsetType = UNSET
    changes: Raw | UnsetType = UNSET
    time: SentTime = UNSET


def _book_changes(making: Making) -> Route:
    decode = Decoder(_Book).decode
    emit_levels = making.emitter.book_change
    emit_rows = making.emitter.book_rows

    def level2(line: bytes) -> bool:
        book = decode(line)
        if book.type == "SNAPSHOT":
            if book.bids is UNSET or book.asks is UNSET:
                raise MapperError("LEVEL2", "a snapshot without levels")
            timestamp = meant_time(book.time, "LEVEL2", "time", cut_ms)
            emit_levels(book.product_id, True, book.bids, book.asks, timestamp)
        else:
            if book.changes is UNSET:
                raise MapperError("LEVEL2", "an update without changes")
            timestamp = cut_ms(time_text(book.time, "LEVEL2", "time"))
            emit_rows(book.product_id, False, book.changes, timestamp, _CHANGES)
        return True

    return named({"LEVEL2": level2})


class _Quote(Struct, gc=False):
    product_id: str
    bid_price: Sent = UNSET
    bid_qty: Sent = UNSET
    ask_price: Sent = UNSET
    ask_qty: Sent = UNSET
    time: SentTime = UNSET


def _book_tickers(making: Making) -> Route:
    decode = Decoder(_Quote).decode
    emit = making.emitter.book_ticker

    def level1(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.product_id,
            optional(row.ask_qty),
            optional(row.ask_price),
            optional(row.bid_price),
            optional(row.bid_qty),
            meant_time(row.time, "LEVEL1", "time", cut_ms),
        )
        return True

    return named({"LEVEL1": level1})


class _Risk(Struct, gc=False):
    product_id: str
    index_price: Sent = UNSET
    mark_price: Sent = UNSET
    open_interest: Sent = UNSET
    time: SentTime = UNSET


class _Funding(Struct, gc=False):
    product_id: str
    funding_rate: Sent = UNSET
    is_final: Any = None
    time: SentTime = UNSET


def _derivative_tickers(making: Making) -> Route:
    emit = making.emitter.derivative_ticker
    last_prices = Known[str, str | int | float]()

    def match(row: _Match) -> bool:
        # The price goes out with the next risk or funding.
        last_prices[row.product_id] = required(row.trade_price, "MATCH", "trade_price")
        return True

    def risk(row: _Risk) -> bool:
        emit(
            row.product_id,
            cut_ms(row.time) if row.time else 0,
            last_price=last_prices.get(row.product_id),
            open_interest=optional(row.open_interest),
            index_price=optional(row.index_price),
            mark_price=optional(row.mark_price),
        )
        return True

    def funding(row: _Funding) -> bool:
        next_time = None
        if row.is_final is False:
            ms = parse_ms(time_text(row.time, "FUNDING", "time"))
            next_time = ms - ms % _HOUR_MS + _HOUR_MS
        emit(
            row.product_id,
            cut_ms(row.time) if row.time else 0,
            last_price=last_prices.get(row.product_id),
            funding_rate=required(row.funding_rate, "FUNDING", "funding_rate"),
            funding_timestamp=next_time,
        )
        return True

    return named(
        {
            "MATCH": Part(_decode_match, match),
            "RISK": Part(Decoder(_Risk).decode, risk),
            "FUNDING": Part(Decoder(_Funding).decode, funding),
        }
    )


def _subscribe(filters: Sequence[Filter], session: Session) -> Iterator[Outgoing]:
    key, secret, passphrase = session.secrets
    text = f"{session.seconds}{key}CBINTLMD{passphrase}".encode()
    digest = hmac.digest(base64.b64decode(secret), text, "sha256")
    for each in filters:
        yield {
            "type": "SUBSCRIBE",
            "product_ids": list(each.symbols or ()),
            "channels": [each.channel],
            "time": str(session.seconds),
            "key": key,
            "passphrase": passphrase,
            "signature": base64.b64encode(digest).decode(),
        }


EXCHANGES: Final = (
    Exchange(
        name="coinbase-international",
        types={
            "trade": always(_trades, "MATCH"),
            "book_change": always(_book_changes, "LEVEL2"),
            "derivative_ticker": always(_derivative_tickers, "MATCH", "RISK", "FUNDING"),
            "book_ticker": always(_book_tickers, "LEVEL1"),
        },
        dispatch=keyed("channel", within=_WINDOW),
        live=Dialect(
            endpoints=(Endpoint(url="wss://ws-md.international.coinbase.com"),),
            secrets=Secrets(
                names=(
                    "COINBASE_INTERNATIONAL_API_KEY",
                    "COINBASE_INTERNATIONAL_API_SECRET",
                    "COINBASE_INTERNATIONAL_API_PASSPHRASE",
                ),
                optional=False,
            ),
            subscribe=_subscribe,
            data=(b'{"sequence":',),
            acks=both(equals("channel", "SUBSCRIPTIONS"), negated(equals("type", "REJECT"))),
            errors=equals("type", "REJECT"),
            quiet=frozenset(("MATCH", "FUNDING")),
        ),
        subscriptions=subscriptions({"type": "SUBSCRIBE"}, "", fields("channels", "product_ids")),
    ),
)
