"""Bitfinex: arrays with a number for their channel; since 2020 they end with its name and pair."""

from collections.abc import Callable
from typing import Final

from msgspec import Raw, Struct, field
from msgspec.json import Decoder

from tardis_machine.emit import Signed
from tardis_machine.exchanges.dispatch import Handler, Route, arrays
from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Making
from tardis_machine.exchanges.fields import time

# A message: [number, payload, sequence, milliseconds, channel, pair], or with a word before the
# payload that says what it is.
_PAYLOAD: Final = 1
_MILLISECONDS: Final = 3
_elements: Final = Decoder(list[Raw]).decode
_integer: Final = Decoder(int | float | None).decode


class _Subscribed(Struct, gc=False):
    event: str | None = None
    number: int | None = field(name="chanId", default=None)
    channel: str | None = None
    pair: str | None = None
    key: str | None = None


_decode_subscribed: Final = Decoder(_Subscribed).decode


def announced(line: bytes) -> tuple[int, str] | None:
    """Read which number will stand for which channel and pair."""
    message = _decode_subscribed(line)
    if message.event != "subscribed" or message.number is None:
        return None
    # A status has a key such as deriv:tBTCF0:USTF0 instead of a pair.
    pair = message.pair or (message.key or "").partition(":t")[2]
    return message.number, f"{message.channel} {pair}"


def of_pairs(channel: str, handler: Callable[[str], Handler]) -> Route:
    """Route a channel's names, each to a handler of its own that knows its pair."""

    def route(name: str) -> Handler | None:
        its_channel, _, pair = name.partition(" ")
        return handler(pair) if its_channel == channel and pair else None

    return route


def elements(line: bytes) -> tuple[bytes, int | float | None]:
    """Part a message: its payload, and its time."""
    found = _elements(line)
    if len(found) <= _MILLISECONDS:
        raise MapperError("message", "no time at its end")
    return bytes(found[_PAYLOAD]), _integer(found[_MILLISECONDS])


class _Trade(Struct, array_like=True, gc=False):
    id: int | str
    timestamp: int | float | None
    amount: int | float
    price: int | float


_decode_trade: Final = Decoder(_Trade).decode


def trades(making: Making) -> Route:
    emit = making.emitter.trade

    def of_pair(pair: str) -> Handler:
        def trade(line: bytes) -> bool:
            found = _elements(line)
            # Besides executed trades there are updates of them, and a snapshot of earlier ones.
            if len(found) > _PAYLOAD + 1 and bytes(found[_PAYLOAD]) == b'"te"':
                row = _decode_trade(found[_PAYLOAD + 1])
                emit(
                    pair,
                    row.id,
                    row.price,
                    abs(row.amount),
                    "sell" if row.amount < 0 else "buy",
                    time(row.timestamp, "trades", "time"),
                )
            return True

        return trade

    return of_pairs("trades", of_pair)


_LEVELS: Final = Signed(price=0, amount=2, count=1)


def book_changes(making: Making) -> Route:
    emit = making.emitter.book_rows

    def of_pair(pair: str) -> Handler:
        def book_change(line: bytes) -> bool:
            payload, timestamp = elements(line)
            if payload[:1] == b"[":  # or else a heartbeat
                is_snapshot = payload[1:2] == b"["
                rows = payload if is_snapshot else b"[%b]" % payload
                emit(pair, is_snapshot, rows, time(timestamp, "book", "time"), _LEVELS)
            return True

        return book_change

    return of_pairs("book", of_pair)


_Amount = int | float | None
_decode_ticker: Final = Decoder(list[_Amount]).decode
# A currency's ticker, of funding, has more fields than a pair's.
_PAIR_FIELDS: Final = range(4, 12)


def book_tickers(making: Making) -> Route:
    emit = making.emitter.book_ticker

    def of_pair(pair: str) -> Handler:
        def book_ticker(line: bytes) -> bool:
            payload, timestamp = elements(line)
            if payload[:1] == b"[":
                fields = _decode_ticker(payload)
                if len(fields) in _PAIR_FIELDS:
                    bid, bid_amount, ask, ask_amount = fields[:4]
                    emit(pair, ask_amount, ask, bid, bid_amount, time(timestamp, "ticker", "time"))
            return True

        return book_ticker

    return of_pairs("ticker", of_pair)


def era(make: Callable[[Making], Route], channel: str) -> tuple[Era]:
    return (Era((Channel(channel, str.upper),), make),)


EXCHANGES: Final = (
    Exchange(
        name="bitfinex",
        types={
            "trade": era(trades, "trades"),
            "book_change": era(book_changes, "book"),
            "book_ticker": era(book_tickers, "ticker"),
        },
        dispatch=arrays(2, announced),
    ),
)
