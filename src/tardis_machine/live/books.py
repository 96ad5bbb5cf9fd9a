"""The books of a stream as they were sent: for clients that join while it runs."""

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
    """Folds book changes, read from the bytes that clients get, into whole books."""

    def __init__(self) -> None:
        self._books: dict[str, tuple[_Side, _Side, bytes, bytes]] = {}
        self._exchange = ""

    def fold(self, lines: bytes) -> None:
        """Take over what was sent."""
        for line in lines.splitlines():
            if line.startswith(_PREFIX):
                self._change(_decode(line))

    def drop(self, symbols: Collection[str] | None = None) -> None:
        """Forget books whose connection is gone; None: all."""
        for symbol in list(self._books) if symbols is None else symbols:
            self._books.pop(symbol, None)

    def snapshots(self, symbols: Iterable[str] | None = None) -> Iterator[bytes]:
        """Write the books as snapshots, each with the times of its last change."""
        for symbol in list(self._books) if symbols is None else symbols:
            found = self._books.get(symbol)
            if found is None:
                continue
            bids, asks, timestamp, local = found
            yield b"".join(
                (
                    *(_PREFIX, b',"symbol":', msgspec.json.encode(symbol)),
                    *(b',"exchange":"', self._exchange.encode(), b'","isSnapshot":true,"bids":['),
                    *(b",".join(bids.values()), b'],"asks":[', b",".join(asks.values())),
                    *(b'],"timestamp":', timestamp, b',"localTimestamp":', local, b"}\n"),
                )
            )

    def _change(self, change: _Change) -> None:
        found = self._books.get(change.symbol)
        if change.is_snapshot:
            bids: _Side = {}
            asks: _Side = {}
        elif found is None:
            return
        else:
            bids, asks = found[:2]
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
