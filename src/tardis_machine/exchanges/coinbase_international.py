"""Coinbase International: perpetuals and spot, whose channels all need a signature."""

import base64
import hmac
from collections.abc import Iterator, Sequence
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import LATEST_KNOWN, Sided
from tardis_machine.exchanges.base.channels import ChannelHandlers, SharedDecoder, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Secrets,
    both,
    equals,
    negated,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    side_or_unknown,
    symbol,
    time_or_local,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.exchanges.coinbase import emit_snapshot
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import cut_ms, parse_ms

_CHANGES: Final = Sided(side=0, price=1, amount=2, bid="BUY")
_HOUR_MS: Final = 3_600_000
_SNAPSHOT: Final = "SNAPSHOT"
_UPDATE: Final = "UPDATE"
_WINDOW: Final = 1 << 20  # the channel comes after the levels

JsonTimeText = str | UnsetType | None


class _Match(Struct, gc=False):
    product_id: str | None = None
    type: str | None = None
    match_id: str | None = None
    trade_price: JsonNumber = UNSET
    trade_qty: JsonNumber = UNSET
    aggressor_side: str | None = None
    time: JsonTimeText = UNSET


_decode_match: Final = Decoder(_Match).decode


def _trades(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.trade

    def match(row: _Match) -> bool:
        if row.type != _UPDATE:
            return False
        emit(
            symbol(row.product_id, "MATCH"),
            row.match_id,
            number_or_error(row.trade_price, "MATCH", "trade_price"),
            number_or_error(row.trade_qty, "MATCH", "trade_qty"),
            side_or_unknown(row.aggressor_side, "BUY", "SELL"),
            cut_ms(time_text(row.time, "MATCH", "time")),
        )
        return True

    return named({"MATCH": SharedDecoder(_decode_match, match)})


class _Book(Struct, gc=False):
    product_id: str | None = None
    type: str | None = None
    bids: Raw | UnsetType = UNSET
    asks: Raw | UnsetType = UNSET
    changes: Raw | UnsetType = UNSET
    time: JsonTimeText = UNSET


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Book).decode
    emit_levels = context.emitter.book_change
    emit_rows = context.emitter.book_rows

    def level2(line: bytes) -> bool:
        book = decode(line)
        if book.type == _SNAPSHOT:
            if book.bids is UNSET or book.asks is UNSET:
                raise MapperError("LEVEL2", "a snapshot without levels")
            product = symbol(book.product_id, "LEVEL2")
            timestamp = time_or_local(book.time, "LEVEL2", "time", cut_ms)
            emit_snapshot(emit_levels, product, book.bids, book.asks, timestamp)
        elif book.type == _UPDATE:
            if book.changes is UNSET:
                raise MapperError("LEVEL2", "an update without changes")
            product = symbol(book.product_id, "LEVEL2")
            timestamp = cut_ms(time_text(book.time, "LEVEL2", "time"))
            emit_rows(product, False, book.changes, timestamp, _CHANGES)
        else:
            return False
        return True

    return named({"LEVEL2": level2})


class _Quote(Struct, gc=False):
    product_id: str | None = None
    type: str | None = None
    bid_price: JsonNumber = UNSET
    bid_qty: JsonNumber = UNSET
    ask_price: JsonNumber = UNSET
    ask_qty: JsonNumber = UNSET
    time: JsonTimeText = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Quote).decode
    emit = context.emitter.book_ticker

    def level1(line: bytes) -> bool:
        row = decode(line)
        if row.type not in (_SNAPSHOT, _UPDATE):
            return False
        emit(
            symbol(row.product_id, "LEVEL1"),
            number_if_sent(row.ask_qty),
            number_if_sent(row.ask_price),
            number_if_sent(row.bid_price),
            number_if_sent(row.bid_qty),
            time_or_local(row.time, "LEVEL1", "time", cut_ms),
        )
        return True

    return named({"LEVEL1": level1})


class _Risk(Struct, gc=False):
    product_id: str | None = None
    index_price: JsonNumber = UNSET
    mark_price: JsonNumber = UNSET
    open_interest: JsonNumber = UNSET
    time: JsonTimeText = UNSET


class _Funding(Struct, gc=False):
    product_id: str | None = None
    type: str | None = None
    funding_rate: JsonNumber = UNSET
    is_final: Any = None
    time: JsonTimeText = UNSET


def _perpetual(product: str | None) -> str | None:
    """Return the product's name if it is a perpetual: RISK messages come for spot as well."""
    return product if product is not None and product.endswith("-PERP") else None


def _derivative_tickers(context: MapperContext) -> ChannelHandlers:
    emit = context.emitter.derivative_ticker
    last_prices = BoundedDict[str, str | int | float]()

    def match(row: _Match) -> bool:
        product = _perpetual(row.product_id)
        if product is None or row.type != _UPDATE:
            return False
        # The price is emitted with the next risk or funding message.
        last_prices[product] = number_or_error(row.trade_price, "MATCH", "trade_price")
        return True

    def risk(row: _Risk) -> bool:
        product = _perpetual(row.product_id)
        if product is None:
            return False
        emit(
            product,
            cut_ms(row.time) if row.time else LATEST_KNOWN,
            last_price=last_prices.get(product),
            open_interest=number_if_sent(row.open_interest),
            index_price=number_if_sent(row.index_price),
            mark_price=number_if_sent(row.mark_price),
        )
        return True

    def funding(row: _Funding) -> bool:
        product = _perpetual(row.product_id)
        if product is None or row.type != _UPDATE:
            return False
        next_time = None
        if row.is_final is False:
            ms = parse_ms(time_text(row.time, "FUNDING", "time"))
            next_time = ms - ms % _HOUR_MS + _HOUR_MS
        emit(
            product,
            cut_ms(row.time) if row.time else LATEST_KNOWN,
            last_price=last_prices.get(product),
            funding_rate=number_or_error(row.funding_rate, "FUNDING", "funding_rate"),
            funding_timestamp=next_time,
        )
        return True

    return named(
        {
            "MATCH": SharedDecoder(_decode_match, match),
            "RISK": SharedDecoder(Decoder(_Risk).decode, risk),
            "FUNDING": SharedDecoder(Decoder(_Funding).decode, funding),
        }
    )


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
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
            "trade": one_era(_trades, "MATCH"),
            "book_change": one_era(_book_changes, "LEVEL2"),
            "derivative_ticker": one_era(_derivative_tickers, "MATCH", "RISK", "FUNDING"),
            "book_ticker": one_era(_book_tickers, "LEVEL1"),
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
