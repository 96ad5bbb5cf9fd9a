"""Coinbase: messages that name type and product, books as a snapshot and changes to it."""

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, Final

from msgspec import UNSET, Raw, Struct, UnsetType
from msgspec.json import Decoder

from tardis_machine.engine import Sided
from tardis_machine.engine.shapes import (
    Amount,
    AskAmount,
    AskPrice,
    BidAmount,
    BidPrice,
    BookRows,
    Iso,
    KernelShape,
    NumberId,
    Price,
    Symbol,
    TakerSide,
)
from tardis_machine.exchanges.base.channels import ChannelHandlers, KernelHandler, keyed, named
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Endpoint,
    Outgoing,
    Secrets,
    at,
    equals,
)
from tardis_machine.exchanges.base.errors import MapperError
from tardis_machine.exchanges.base.exchange import Exchange, MapperContext, one_era
from tardis_machine.exchanges.base.fields import (
    JsonNumber,
    number_if_sent,
    number_or_error,
    side,
    text,
    time_or_local,
    time_text,
)
from tardis_machine.exchanges.base.subscriptions import fields, subscriptions
from tardis_machine.history.filters import Filter
from tardis_machine.messages.times import TimeValue, is_before_1970, parse_us

_NO_LEVELS: Final = Raw(b"[]")
_CHANGES: Final = Sided(side=0, price=1, amount=2, bid="buy")
_decode_levels: Final = Decoder(list[list[str]]).decode

JsonTimeText = str | UnsetType | None


class _Match(Struct, gc=False):
    product_id: str
    trade_id: str | int | float | UnsetType | None = UNSET
    side: str | None = None
    size: JsonNumber = UNSET
    price: JsonNumber = UNSET
    time: JsonTimeText = UNSET


def _trades(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Match).decode
    emit = context.emitter.trade

    def match(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.product_id,
            text(row.trade_id),
            number_or_error(row.price, "match", "price"),
            number_or_error(row.size, "match", "size"),
            side(row.side, "sell"),  # the side is the maker's
            parse_us(time_text(row.time, "match", "time")),
        )
        return True

    return named({"match": KernelHandler(match, _MATCH)})


_MATCH: Final = KernelShape(
    emits="trade",
    fields={
        "trade_id": NumberId(),
        "side": TakerSide(buy="sell", sell="buy"),
        "size": Amount(text=True),
        "price": Price(text=True),
        "product_id": Symbol(),
        "time": Iso(6),
    },
)


class _Snapshot(Struct, gc=False):
    product_id: str
    bids: Raw = _NO_LEVELS
    asks: Raw = _NO_LEVELS
    time: JsonTimeText = UNSET


class _Update(Struct, gc=False):
    product_id: str
    changes: Raw
    time: JsonTimeText = UNSET


def emit_snapshot(
    emit: Callable[..., None], product: str, bids: Raw, asks: Raw, timestamp: TimeValue | None
) -> None:
    """Send a book without the levels whose amount is below 0 or no number.

    For a while there were some, such as 0.-10000.
    """
    if b'"-' not in bytes(bids) and b'"-' not in bytes(asks):
        try:
            emit(product, True, bids, asks, timestamp)
        except ValueError:  # an amount is no number
            pass
        else:
            return
    emit(product, True, _valid(bids), _valid(asks), timestamp)


def _valid(levels: Raw) -> list[list[str]]:
    try:
        return [level for level in _decode_levels(levels) if _is_amount(level[1])]
    except IndexError:
        raise MapperError("snapshot", "a level without an amount") from None


def _is_amount(text: str) -> bool:
    try:
        return 0 <= float(text) < inf
    except ValueError:
        return False


def _book_changes(context: MapperContext) -> ChannelHandlers:
    decode_snapshot = Decoder(_Snapshot).decode
    decode_update = Decoder(_Update).decode
    emit = context.emitter.book_change
    emit_rows = context.emitter.book_rows
    latest = context.emitter.times()

    def snapshot(line: bytes) -> bool:
        book = decode_snapshot(line)
        timestamp = time_or_local(book.time, "snapshot", "time", parse_us)
        emit_snapshot(emit, book.product_id, book.bids, book.asks, timestamp)
        return True

    def update(line: bytes) -> bool:
        book = decode_update(line)
        product = book.product_id
        iso = time_text(book.time, "l2update", "time")
        if is_before_1970(iso):  # the latest time counts, and before the first nothing does
            timestamp = latest.get(product)
            if timestamp is None:
                return True
        else:
            timestamp = latest[product] = parse_us(iso)
        emit_rows(product, False, book.changes, timestamp, _CHANGES)
        return True

    return named({"snapshot": snapshot, "l2update": KernelHandler(update, _UPDATE, latest)})


_UPDATE: Final = KernelShape(
    emits="book_change",
    fields={"product_id": Symbol(), "changes": BookRows(_CHANGES), "time": Iso(6)},
)


class _Ticker(Struct, gc=False):
    product_id: str
    best_bid: JsonNumber = UNSET
    best_ask: JsonNumber = UNSET
    best_bid_size: JsonNumber = UNSET
    best_ask_size: JsonNumber = UNSET
    time: JsonTimeText = UNSET


def _book_tickers(context: MapperContext) -> ChannelHandlers:
    decode = Decoder(_Ticker).decode
    emit = context.emitter.book_ticker

    def ticker(line: bytes) -> bool:
        row = decode(line)
        emit(
            row.product_id,
            number_if_sent(row.best_ask_size),
            number_if_sent(row.best_ask),
            number_if_sent(row.best_bid),
            number_if_sent(row.best_bid_size),
            time_or_local(row.time, "ticker", "time", parse_us),
        )
        return True

    return named({"ticker": KernelHandler(ticker, _TICKER)})


_TICKER: Final = KernelShape(
    emits="book_ticker",
    fields={
        "product_id": Symbol(),
        "best_bid": BidPrice(text=True),
        "best_bid_size": BidAmount(text=True),
        "best_ask": AskPrice(text=True),
        "best_ask_size": AskAmount(text=True),
        "time": Iso(6),
    },
)


_FULL: Final = frozenset(("received", "open", "done", "change", "full_snapshot"))
_NAMES: Final = {
    "snapshot": "level2_batch",
    "l2update": "level2_batch",
    "match": "matches",
    "last_match": "matches",
}


def _signed(session: ConnectionContext) -> dict[str, Any]:
    """Return the fields that sign a subscription; empty without credentials."""
    if not session.secrets:
        return {}
    key, secret, passphrase = session.secrets
    message = f"{session.seconds}GET/users/self/verify".encode()
    digest = hmac.new(base64.b64decode(secret), message, hashlib.sha256).digest()
    return {
        "signature": base64.b64encode(digest).decode(),
        "key": key,
        "passphrase": passphrase,
        "timestamp": session.seconds,
    }


def _subscribe(filters: Sequence[Filter], session: ConnectionContext) -> Iterator[Outgoing]:
    wanted: dict[str, dict[str, None]] = {}
    for each in filters:
        name = "full" if each.channel in _FULL else _NAMES.get(each.channel, "ticker")
        if name == "level2_batch" and session.secrets:
            name = "level2"
        wanted.setdefault(name, {}).update(dict.fromkeys(each.symbols or ()))
    channels = [{"name": name, "product_ids": list(ids)} for name, ids in wanted.items()]
    yield {"type": "subscribe", "channels": channels} | _signed(session)


def _refused_product(message: Any) -> str:
    """Return the product in a refusal's text; empty if it has none."""
    said = at(message, "reason")
    named, found, _ = said.partition(" is ") if isinstance(said, str) else ("", "", "")
    return named if found and "-" in named and " " not in named else ""


def _without_refused(refusal: Any, sent: Sequence[Outgoing]) -> Outgoing | None:
    """Return the subscription without the unknown product, for which all were refused."""
    product = _refused_product(refusal)
    asked = sent[-1]
    if not isinstance(asked, dict):
        return None
    rest = [
        {**each, "product_ids": ids}
        for each in asked["channels"]
        if (ids := [id_ for id_ in each["product_ids"] if id_ != product])
    ]
    return {**asked, "channels": rest} if rest and rest != asked["channels"] else None


_RECORDED: Final = {
    "matches": ("match", "last_match"),
    "level2": ("snapshot", "l2update"),
    "level2_batch": ("snapshot", "l2update"),
    "full": ("received", "open", "done", "match", "change", "full_snapshot"),
}
"""The channels that a native subscription sends."""


EXCHANGES: Final = (
    Exchange(
        name="coinbase",
        types={
            "trade": one_era(_trades, "match"),
            "book_change": one_era(_book_changes, "snapshot", "l2update"),
            "book_ticker": one_era(_book_tickers, "ticker"),
        },
        dispatch=keyed("type"),
        live=Dialect(
            endpoints=(
                Endpoint(
                    url="wss://ws-feed.exchange.coinbase.com",
                    with_secrets="wss://ws-direct.exchange.coinbase.com",
                ),
            ),
            subscribe=_subscribe,
            secrets=Secrets(
                names=("COINBASE_API_KEY", "COINBASE_API_SECRET", "COINBASE_API_PASSPHRASE")
            ),
            data=(b'{"type":"match"', b'{"type":"l2update"', b'{"type":"ticker"'),
            acks=equals("type", "subscriptions"),
            errors=equals("type", "error"),
            refusals=lambda message: bool(_refused_product(message)),
            salvage=_without_refused,
            quiet=frozenset(("match", "ticker")),
            max_messages_per_s=100,
        ),
        subscriptions=subscriptions(
            {"type": "subscribe"}, "channels", fields("name", "product_ids", _RECORDED)
        ),
    ),
)
