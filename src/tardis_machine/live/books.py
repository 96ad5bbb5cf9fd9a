"""Current books of a live stream, sent to clients that join while it runs."""

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import msgspec
from msgspec import Raw

_PREFIX: Final = b'{"type":"book_change"'


class _Level(msgspec.Struct, gc=False):
    price: Raw
    amount: Raw


class _Change(msgspec.Struct, gc=False, rename="camel"):
    symbol: str
    exchange: str
    is_snapshot: bool
    bids: list[_Level]
    asks: list[_Level]
    timestamp: Raw
    local_timestamp: Raw


_decode: Final = msgspec.json.Decoder(_Change).decode
_Side = dict[bytes, bytes]


class Books:
    """Whole books by symbol, kept from the book changes that clients receive."""

    def __init__(self) -> None:
        self._books: dict[str, tuple[_Side, _Side, bytes, bytes]] = {}
        self._exchange = ""

    def apply(self, lines: bytes) -> None:
        """Apply the book changes among JSON lines to the books; skip other messages."""
        for line in lines.splitlines():
            if line.startswith(_PREFIX):
                self._apply_change(_decode(line))

    def drop(self, symbols: Collection[str] | None = None) -> None:
        """Drop the books of these symbols, or all books (None)."""
        for symbol in list(self._books) if symbols is None else symbols:
            self._books.pop(symbol, None)

    def snapshots(self, symbols: Iterable[str] | None = None) -> Iterator[bytes]:
        """Yield books as snapshot messages, each with the times of its last change."""
        for symbol in list(self._books) if symbols is None else symbols:
            book = self._books.get(symbol)
            if book is None:
                continue
            bids, asks, timestamp, local = book
            yield b"".join(
                (
                    *(_PREFIX, b',"symbol":', msgspec.json.encode(symbol)),
                    *(b',"exchange":"', self._exchange.encode(), b'","isSnapshot":true,"bids":['),
                    *(b",".join(bids.values()), b'],"asks":[', b",".join(asks.values())),
                    *(b'],"timestamp":', timestamp, b',"localTimestamp":', local, b"}\n"),
                )
            )

    def _apply_change(self, change: _Change) -> None:
        book = self._books.get(change.symbol)
        if change.is_snapshot:
            bids: _Side = {}
            asks: _Side = {}
        elif book is None:
            return
        else:
            bids, asks = book[:2]
        for side, levels in ((bids, change.bids), (asks, change.asks)):
            for level in levels:
                price, amount = bytes(level.price), bytes(level.amount)
                if amount == b"0":
                    side.pop(price, None)
                else:
                    side[price] = b'{"price":%b,"amount":%b}' % (price, amount)
        self._exchange = change.exchange
        times = bytes(change.timestamp), bytes(change.local_timestamp)
        self._books[change.symbol] = (bids, asks, *times)
