"""What every emitter does: the calls that mappers and streams may make, and what they mean.

Arguments are data, so that an implementation may be compiled: numbers as they stood in the raw
message, times as `tardis_machine.messages.times` tells them, levels in a layout of `emit.levels`.

- A `Number` is an int, a float or text; bytes and `msgspec.Raw` are JSON, quoted or not.
- A `timestamp` of None is the local one.
- An `Id` is text, or an int that prints as text; `msgspec.Raw` prints as it stands.
- A call that raises ValueError has changed nothing: no output, no book, no memory.
"""

from collections.abc import Sequence, Set
from typing import Final, Literal, Protocol

import msgspec
from msgspec import Raw

from tardis_machine.engine.levels import PAIRS, Keyed, Layout, Levels, RowLayout
from tardis_machine.engine.shapes import AnyShape, LatestTimes, Memory, UpdateGate, UpdateGates
from tardis_machine.messages.numbers import Number
from tardis_machine.messages.times import TimeValue
from tardis_machine.messages.types import Side

KEEP_OR_LOCAL: Final = None
"""A ticker's time: the symbol's latest, or the local one if it has none yet."""

LATEST_KNOWN: Final = 0
"""A ticker's time: the symbol's latest; an error if it has none yet."""

LOCAL_TIME: Final = ""
"""A ticker's time: the local one, every time."""

Id = str | int | Raw | None
BookTickerKeys = tuple[str, str, str, str]

COMMON_ORDER: Final[BookTickerKeys] = ("askAmount", "askPrice", "bidPrice", "bidAmount")
BID_FIRST: Final[BookTickerKeys] = ("bidPrice", "bidAmount", "askPrice", "askAmount")
ASK_FIRST: Final[BookTickerKeys] = ("askPrice", "askAmount", "bidPrice", "bidAmount")
AMOUNTS_FIRST: Final[BookTickerKeys] = ("askAmount", "askPrice", "bidAmount", "bidPrice")


Written = bytes | bytearray
"""Bytes as whoever wrote them has them: nobody changes them any more."""


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The bytes emitted since the last take, and where each local timestamp's end.

    For each local timestamp that emitted something, in order: `stamps` has its text, `ends` where
    its bytes end in `data`, `counts` how many messages end there.
    """

    data: bytes
    count: int
    stamps: Sequence[str] = ()
    ends: Sequence[int] = ()
    counts: Sequence[int] = ()

    @property
    def written(self) -> Written:
        """The same as `data`; of a compiled emitter without a copy."""
        return self.data

    @property
    def is_ordered(self) -> bool:
        """Whether no local timestamp is earlier than the one before it."""
        return self.stamps == sorted(self.stamps)


class Emitter(Protocol):
    """Writes the messages of one stream of one exchange exactly as clients expect them."""

    @property
    def exchange(self) -> str: ...

    @property
    def ignored_changes(self) -> int:
        """Book changes that came before the book's first snapshot."""

    def begin(self, local: str) -> None:
        """Set the local timestamp of what follows, as it is to be printed."""

    def allow(self, symbols: frozenset[str] | None) -> None:
        """Let only these symbols pass; None lets all."""

    def met(self) -> Set[str]:
        """Return the symbols that it was called for so far, as messages spell them."""

    def forget(self) -> None:
        """Drop what mappers taught it, as a new mapper does: tickers, ids, the order of keys."""

    def reset(self) -> None:
        """Drop books, bars and snapshots in progress."""

    def close_bars(self) -> None:
        """End the time bars in progress, for a stream after which no trade can complete them."""

    def take(self) -> Taken: ...

    def gate(self) -> UpdateGate:
        """Make a gate, closed, for a channel of a mapper with a memory."""

    def gates(self) -> UpdateGates:
        """Make gates by symbol, for a channel that all of them share."""

    def times(self) -> LatestTimes:
        """Make times by symbol, for a mapper that needs to know earlier ones."""

    def find_prefixed(self, prefix: bytes, /) -> None:
        """Tell that lines are known by what ends with the first quote behind this prefix."""

    def find_keyed(self, key: bytes, within: int, /) -> None:
        """Tell that lines are known by what ends with the first quote behind this key.

        The key stands within so many bytes, and is not part of the head.
        """

    def find_ending(self, texts: int, /) -> None:
        """Tell that lines are arrays, known by so many texts at their end.

        The head begins with the comma before these texts, and ends with the line.
        """

    def describe(self, head: bytes, shape: AnyShape, memory: Memory | None = None, /) -> None:
        """Tell that lines known by this head may have this shape, until `forget`.

        An implementation may take such lines by itself; what it makes of them is the same.
        """

    def order_book_ticker(self, keys: BookTickerKeys) -> None:
        """Tell the order in which book tickers print their keys, until `forget`."""

    def trade(
        self,
        symbol: str,
        id: Id,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: Side,
        timestamp: TimeValue | None,
        /,
    ) -> None: ...

    def book_change(
        self,
        symbol: str,
        is_snapshot: bool,
        bids: Levels,
        asks: Levels,
        timestamp: TimeValue | None,
        layout: Layout = PAIRS,
        /,
    ) -> None: ...

    def book_rows(
        self,
        symbol: str,
        is_snapshot: bool,
        rows: Levels,
        timestamp: TimeValue | None,
        layout: RowLayout,
        /,
    ) -> None:
        """As `book_change`, from rows that tell their side."""

    def book_table(self, message: bytes, layout: Keyed, /) -> None:
        """As `book_change`, from a table's whole message, whose rows tell symbol, side and time.

        A snapshot may have several symbols, or no rows at all. The time is the latest of the rows,
        the local one if none has any. A row without a price has that of its id; one whose id is not
        known is left out, and nothing is sent where none is left. Of rows that remove an id only
        the first counts.
        """

    def derivative_ticker(
        self,
        symbol: str,
        timestamp: TimeValue | None,
        /,
        *,
        last_price: Number | None = None,
        open_interest: Number | None = None,
        funding_rate: Number | None = None,
        funding_timestamp: TimeValue | None = None,
        predicted_funding_rate: Number | None = None,
        index_price: Number | None = None,
        mark_price: Number | None = None,
    ) -> None:
        """Take over what is given, and send the whole ticker if any of it has changed.

        Its time never goes back: an earlier one keeps the latest. `KEEP_OR_LOCAL` is for messages
        without a time field, `LATEST_KNOWN` for a time that is missing from its field, and
        `LOCAL_TIME` for polled tickers, which have no time of their own.
        """

    def book_ticker(
        self,
        symbol: str,
        ask_amount: Number | None,
        ask_price: Number | None,
        bid_price: Number | None,
        bid_amount: Number | None,
        timestamp: TimeValue | None,
        /,
    ) -> None: ...

    def liquidation(
        self,
        symbol: str,
        id: Id,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: Side,
        timestamp: TimeValue | None,
        /,
    ) -> None: ...

    def option_summary(
        self,
        symbol: str,
        timestamp: TimeValue | None,
        /,
        *,
        option_type: Literal["put", "call"],
        strike_price: Number,
        expiration_date: TimeValue,
        best_bid_price: Number | None = None,
        best_bid_amount: Number | None = None,
        best_bid_iv: Number | None = None,
        best_ask_price: Number | None = None,
        best_ask_amount: Number | None = None,
        best_ask_iv: Number | None = None,
        last_price: Number | None = None,
        open_interest: Number | None = None,
        mark_price: Number | None = None,
        mark_iv: Number | None = None,
        delta: Number | None = None,
        gamma: Number | None = None,
        vega: Number | None = None,
        theta: Number | None = None,
        rho: Number | None = None,
        underlying_price: Number | None = None,
        underlying_index: str | None = None,
    ) -> None: ...

    def disconnect(self, symbols: Sequence[str] | None = None, /) -> None: ...

    def error(self, details: str, count: int, /) -> None: ...
