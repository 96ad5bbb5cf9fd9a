"""The emitter in pure Python, which says what the others must do."""

from collections.abc import Collection, Sequence, Set
from itertools import accumulate
from json.encoder import encode_basestring as quote
from typing import Final, Literal, Protocol

from msgspec import UNSET, Raw, UnsetType

from tardis_machine.bounded import BoundedDict
from tardis_machine.engine import datatypes
from tardis_machine.engine.datatypes import BookSnapshots, DataType, TradeBars
from tardis_machine.engine.levels import (
    PAIRS,
    Keyed,
    Layout,
    LevelReader,
    Levels,
    Pair,
    Row,
    RowLayout,
    Splitter,
    Table,
    read_pairs,
    reader,
    splitter,
    table_decoder,
)
from tardis_machine.engine.protocol import (
    COMMON_ORDER,
    KEEP_OR_LOCAL,
    LATEST_KNOWN,
    LOCAL_TIME,
    BookTickerKeys,
    Id,
    Taken,
)
from tardis_machine.engine.python.bars import Bar
from tardis_machine.engine.python.book import Change, computable
from tardis_machine.engine.python.snapshots import Snapshots
from tardis_machine.engine.shapes import (
    AnyShape,
    ClosedGate,
    ClosedGates,
    LatestTimes,
    Memory,
    UpdateGate,
    UpdateGates,
)
from tardis_machine.messages.numbers import Number, canonical
from tardis_machine.messages.times import (
    END_MS,
    ENDS,
    MICROSECONDS,
    SECOND_TEXTS,
    SECONDS,
    TimeValue,
    cut_ms,
    is_later,
    ms_of,
    text_of,
)
from tardis_machine.messages.types import Side

_THREE_DIGITS: Final = len("2024-03-01T00:00:00.000Z")
_NO_FIELDS: Final[tuple[str | None, ...]] = (None,) * 7
_TICKER_KEYS: Final = (
    ',"lastPrice":',
    ',"openInterest":',
    ',"fundingRate":',
    ',"fundingTimestamp":',
    ',"predictedFundingRate":',
    ',"indexPrice":',
    ',"markPrice":',
)
_SUMMARY_KEYS: Final = (
    ',"bestBidPrice":',
    ',"bestBidAmount":',
    ',"bestBidIV":',
    ',"bestAskPrice":',
    ',"bestAskAmount":',
    ',"bestAskIV":',
    ',"lastPrice":',
    ',"openInterest":',
    ',"markPrice":',
    ',"markIV":',
    ',"delta":',
    ',"gamma":',
    ',"vega":',
    ',"theta":',
    ',"rho":',
    ',"underlyingPrice":',
)


def _text(number: Number) -> str:
    return canonical[bytes(number) if type(number) is Raw else number]


def _id_text(id: Id) -> str:  # noqa: A002 - the message's own word
    if id is None:
        return ""
    if type(id) is str:
        return f',"id":{quote(id)}'
    return f',"id":{bytes(id).decode()}' if isinstance(id, Raw) else f',"id":"{id}"'


class _Heads(dict[str, str]):
    """How a message of one type starts, by symbol."""

    __slots__ = ("_exchange", "_rest", "_type")

    def __init__(self, message_type: str, exchange: str, rest: str = "") -> None:
        self._type = message_type
        self._exchange = quote(exchange)
        self._rest = rest

    def __missing__(self, symbol: str) -> str:
        head = self[symbol] = (
            f'{{"type":"{self._type}","symbol":{quote(symbol)},"exchange":{self._exchange}{self._rest}'
        )
        return head


class _Readers(dict[Layout, LevelReader]):
    def __missing__(self, layout: Layout) -> LevelReader:
        made = self[layout] = reader(layout)
        return made


class Prices(Protocol):
    """The price of each id: a dict, or the kernel's."""

    def get(self, id: object, /) -> Number | None: ...  # noqa: A002 - the row's own word

    def pop(self, id: object, default: None, /) -> object: ...  # noqa: A002

    def __setitem__(self, id: object, price: Number, /) -> None: ...  # noqa: A002


class _Table:
    """A keyed table: the decoder of its messages, and the price of each id."""

    __slots__ = ("_bid", "decode", "layout", "prices")

    def __init__(self, layout: Keyed) -> None:
        self.layout = layout
        self.decode = table_decoder(layout)
        self._bid = layout.bid
        self.prices: Prices = {}

    def read(
        self, rows: Sequence[Row], *, removes: bool = False
    ) -> tuple[list[Pair], list[Pair], TimeValue | None]:
        """Part rows into bids and asks, with the latest of their times; nothing is learned yet.

        Of rows that remove levels only the first of an id counts.
        """
        bids: list[Pair] = []
        asks: list[Pair] = []
        latest: str | UnsetType | None = rows[0].timestamp if rows else UNSET
        # Prices that rows of this message have count for those after them.
        learned: dict[object, Number] = {}
        prices = self.prices
        removed: set[object] = set()
        for row in rows:
            timestamp = row.timestamp
            if timestamp != latest and timestamp and (not latest or is_later(timestamp, latest)):
                latest = timestamp
            if removes:
                if row.id in removed:
                    continue
                removed.add(row.id)
            if row.price is UNSET:
                price = learned.get(row.id)
                if price is None:
                    price = prices.get(row.id)
                if price is None:
                    continue
            else:
                price = learned[row.id] = row.price
            (bids if row.side == self._bid else asks).append((price, row.amount or 0))
        if latest:
            return bids, asks, cut_ms(latest)
        return bids, asks, _no_time(latest) if bids or asks else None


def _no_time(timestamp: str | UnsetType | None) -> TimeValue | None:
    """Rows that do not speak of time have the local one; an empty one is a mistake."""
    if timestamp is not UNSET:
        raise ValueError("rows without a time")
    return None


class PythonEmitter:
    """The reference: what each call means is written at `protocol.Emitter`."""

    def __init__(
        self, exchange: str, data_types: Sequence[DataType], sent: Collection[str] | None = None
    ) -> None:
        self.exchange = exchange
        self.ignored_changes = 0
        self._allowed: frozenset[str] | None = None
        self._local = ""
        self._parts: list[str] = []
        # Where the messages of a local timestamp end: it and how many parts there are then.
        self._stamps: list[str] = []
        self._counts: list[int] = []
        self._marked = 0
        sends = datatypes.sent(data_types) if sent is None else frozenset(sent)
        self._sends_trades = "trade" in sends
        self._sends_changes = "book_change" in sends
        self._sends_tickers = "derivative_ticker" in sends
        self._sends_book_tickers = "book_ticker" in sends
        self._sends_liquidations = "liquidation" in sends
        self._sends_summaries = "option_summary" in sends
        self._trade_heads = _Heads("trade", exchange)
        self._change_heads = _Heads("book_change", exchange, ',"isSnapshot":false,"bids":[')
        self._full_heads = _Heads("book_change", exchange, ',"isSnapshot":true,"bids":[')
        self._ticker_heads = _Heads("derivative_ticker", exchange)
        self._book_ticker_heads = _Heads("book_ticker", exchange)
        self._liquidation_heads = _Heads("liquidation", exchange)
        self._summary_heads = _Heads("option_summary", exchange)
        self._bar_heads = _Heads("trade_bar", exchange)
        self._snapshot_heads = _Heads("book_snapshot", exchange)
        self._bar_types = [t for t in data_types if isinstance(t, TradeBars)]
        self._snapshot_types = [t for t in data_types if isinstance(t, BookSnapshots)]
        self._bars: dict[str, list[Bar]] = {}
        self._snapshots: dict[str, Snapshots] = {}
        self._readers = _Readers()
        self._splitters: dict[RowLayout, Splitter] = {}
        self._tables: dict[Keyed, _Table] = {}
        self._table: _Table | None = None
        # By symbol: the fields' texts, the time's text and its milliseconds.
        self._tickers: dict[str, tuple[tuple[str | None, ...], str, int]] = {}
        self._book_ticker_keys = COMMON_ORDER

    def begin(self, local: str) -> None:
        if local != self._local:
            count = len(self._parts)
            if count != self._marked:
                self._marked = count
                self._stamps.append(self._local)
                self._counts.append(count)
            self._local = local

    def allow(self, symbols: frozenset[str] | None) -> None:
        self._allowed = symbols

    def met(self) -> Set[str]:
        return set().union(
            self._trade_heads,
            self._change_heads,
            self._full_heads,
            self._ticker_heads,
            self._book_ticker_heads,
            self._liquidation_heads,
            self._summary_heads,
            self._bar_heads,
            self._snapshot_heads,
        )

    def forget(self) -> None:
        self._tickers.clear()
        self._tables.clear()
        self._table = None
        self._book_ticker_keys = COMMON_ORDER

    def reset(self) -> None:
        self._bars.clear()
        self._snapshots.clear()

    def order_book_ticker(self, keys: BookTickerKeys) -> None:
        if sorted(keys) != sorted(COMMON_ORDER):
            raise ValueError(f"not the keys of a book ticker: {keys}")
        self._book_ticker_keys = keys

    def gate(self) -> UpdateGate:
        return ClosedGate()

    def gates(self) -> UpdateGates:
        return ClosedGates()

    def times(self) -> LatestTimes:
        return BoundedDict[str, TimeValue]()

    def find_prefixed(self, prefix: bytes, /) -> None:
        """Mappers see every line."""

    def find_keyed(self, key: bytes, within: int, /) -> None:
        """As above."""

    def find_ending(self, texts: int, /) -> None:
        """As above."""

    def describe(self, head: bytes, shape: AnyShape, memory: Memory | None = None, /) -> None:
        """As above."""

    def take(self) -> Taken:
        parts = self._parts
        count = len(parts)
        stamps, counts = self._stamps, self._counts
        if count != self._marked:
            stamps.append(self._local)
            counts.append(count)
        text = "".join(parts)
        data = text.encode()
        lengths = map(len, parts) if len(data) == len(text) else (len(p.encode()) for p in parts)
        ends = list(accumulate(lengths))
        if len(counts) != count:
            ends = [ends[each - 1] for each in counts]
        self._parts = []
        self._stamps = []
        self._counts = []
        self._marked = 0
        return Taken(data, count, stamps, ends, counts)

    def trade(
        self,
        symbol: str,
        id: Id,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: Side,
        timestamp: TimeValue | None,
        /,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        try:
            price_text = canonical[price]
            amount_text = canonical[amount]
        except TypeError:  # Raw, which has no hash
            price_text = _text(price)
            amount_text = _text(amount)
        local = self._local
        if timestamp is None:
            timestamp = local
        time = text_of(timestamp)
        text = ""
        if self._sends_trades:
            id_text = f',"id":"{id}"' if type(id) is int else _id_text(id)
            text = (
                f'{self._trade_heads[symbol]}{id_text},"price":{price_text},'
                f'"amount":{amount_text},"side":"{side}","timestamp":"{time}",'
                f'"localTimestamp":"{local}"}}\n'
            )
        if not self._bar_types:
            if text:
                self._parts.append(text)
            return
        price_number = computable(price_text)
        amount_number = computable(amount_text)
        bars = self._bars.get(symbol)
        if bars is None:
            head = self._bar_heads[symbol]
            bars = self._bars[symbol] = [Bar(head, bar_type) for bar_type in self._bar_types]
        if text:
            self._parts.append(text)
        ms = ms_of(timestamp)
        for bar in bars:
            self._parts += bar.add(price_number, amount_number, side, price_text, ms, time, local)

    def book_change(
        self,
        symbol: str,
        is_snapshot: bool,
        bids: Levels,
        asks: Levels,
        timestamp: TimeValue | None,
        layout: Layout = PAIRS,
        /,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if layout is PAIRS:
            # Lists of pairs are taken as they are.
            bid_pairs = bids if type(bids) is list else read_pairs(bids)
            ask_pairs = asks if type(asks) is list else read_pairs(asks)
        else:
            read = self._readers[layout]
            bid_pairs, ask_pairs = read(bids), read(asks)
        local = self._local
        # As text_of does, without the calls: there is a book change for nearly every line.
        if type(timestamp) is int and 0 < timestamp < MICROSECONDS:
            time = SECOND_TEXTS[timestamp // 1000] + ENDS[timestamp % 1000]
        elif type(timestamp) is str and timestamp[:20] in SECONDS and timestamp[20:] in END_MS:
            time = timestamp
        else:
            if timestamp is None:
                timestamp = local
            time = text_of(timestamp)
        bids_text = asks_text = ""
        due: list[str] | None = None
        if self._snapshot_types:
            snapshots = self._snapshots.get(symbol)
            if snapshots is None:
                snapshots = self._snapshots[symbol] = Snapshots(
                    self._snapshot_heads[symbol], self._snapshot_types
                )
            book = snapshots.book
            bid_changes: list[Change] = []
            ask_changes: list[Change] = []
            try:
                if bid_pairs:
                    bid_changes, bids_text = book.bids.parse(bid_pairs)
                if ask_pairs:
                    ask_changes, asks_text = book.asks.parse(ask_pairs)
            except TypeError:
                raise ValueError("a level whose price or amount is no number") from None
            ms = ms_of(timestamp) if snapshots.timed else 0
            due = snapshots.change(is_snapshot, bid_changes, ask_changes, ms, time, local)
            if not book.ready:
                self.ignored_changes += 1
        elif self._sends_changes:
            try:
                if bid_pairs:
                    for price, amount in bid_pairs:
                        bids_text += f',{{"price":{canonical[price]},"amount":{canonical[amount]}}}'
                    bids_text = bids_text[1:]
                if ask_pairs:
                    for price, amount in ask_pairs:
                        asks_text += f',{{"price":{canonical[price]},"amount":{canonical[amount]}}}'
                    asks_text = asks_text[1:]
            except TypeError:
                raise ValueError("a level whose price or amount is no number") from None
        if self._sends_changes:
            head = self._full_heads[symbol] if is_snapshot else self._change_heads[symbol]
            self._parts.append(
                f'{head}{bids_text}],"asks":[{asks_text}],'
                f'"timestamp":"{time}","localTimestamp":"{local}"}}\n'
            )
        if due:
            self._parts += due

    def book_rows(
        self,
        symbol: str,
        is_snapshot: bool,
        rows: Levels,
        timestamp: TimeValue | None,
        layout: RowLayout,
        /,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        split = self._splitters.get(layout)
        if split is None:
            split = self._splitters[layout] = splitter(layout)
        bids, asks = split(rows)
        self.book_change(symbol, is_snapshot, bids, asks, timestamp)

    def book_table(self, message: bytes, layout: Keyed, /) -> None:
        table = self._table
        if table is None or layout is not table.layout:
            table = self.table(layout)
        decoded = table.decode(message)
        rows = decoded.rows
        action = decoded.action
        prices = table.prices
        if len(rows) == 1 and action != layout.snapshot:
            # As below, without the calls: most changes have one row.
            row = rows[0]
            price = prices.get(row.id) if row.price is UNSET else row.price
            if price is None:
                return
            timestamp = row.timestamp
            time: TimeValue | None
            if timestamp:
                time = timestamp if len(timestamp) == _THREE_DIGITS else cut_ms(timestamp)
            else:
                time = _no_time(timestamp)
            if row.symbol is None:
                raise ValueError("rows without a symbol")
            level = [(price, row.amount or 0)]
            if row.side == layout.bid:
                self.book_change(row.symbol, False, level, [], time)
            else:
                self.book_change(row.symbol, False, [], level, time)
        elif action == layout.snapshot:
            self._table_snapshot(table, decoded)
        elif rows:
            bids, asks, time = table.read(rows, removes=action == layout.removal)
            if bids or asks:
                symbol = rows[0].symbol
                if symbol is None:
                    raise ValueError("rows without a symbol")
                self.book_change(symbol, False, bids, asks, time)
        else:
            raise ValueError("a change without rows")
        if action == layout.removal:
            for row in rows:
                prices.pop(row.id, None)
        else:
            for row in rows:
                if row.price is not UNSET:
                    prices[row.id] = row.price

    def table(self, layout: Keyed) -> _Table:
        """Give what is known of a keyed table."""
        table = self._tables.get(layout)
        if table is None:
            table = self._tables[layout] = _Table(layout)
        self._table = table
        return table

    def _table_snapshot(self, table: _Table, message: Table) -> None:
        groups: dict[str | None, list[Row]] = {}
        for row in message.rows:
            groups.setdefault(row.symbol, []).append(row)
        selection = message.selection
        if not groups and selection is not None and selection.symbol is not None:
            groups[selection.symbol] = []
        if None in groups:
            raise ValueError("rows without a symbol")
        changes = [(name, *table.read(its_rows)) for name, its_rows in groups.items()]
        if len(changes) > 1:
            self._check(changes)
        for name, bids, asks, timestamp in changes:
            if name is not None:
                self.book_change(name, True, bids, asks, timestamp)

    def _check(
        self, changes: Sequence[tuple[str | None, Sequence[Pair], Sequence[Pair], TimeValue | None]]
    ) -> None:
        """See that none of several changes fails after another was made."""
        read = computable if self._snapshot_types else str
        for _, bids, asks, timestamp in changes:
            if timestamp is not None:
                text_of(timestamp)
            for price, amount in (*bids, *asks):
                read(canonical[price])
                read(canonical[amount])

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
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_tickers:
            return
        before, time, latest = self._tickers.get(symbol) or (_NO_FIELDS, "", 0)
        if timestamp == LATEST_KNOWN:
            if not time:
                raise ValueError(f"no time for {symbol}")
        elif timestamp is not KEEP_OR_LOCAL:
            seen = self._local if timestamp == LOCAL_TIME else timestamp
            ms = ms_of(seen)
            if ms >= latest:
                time = text_of(seen)
                latest = ms
        funding = before[3]
        if funding_timestamp is not None:
            funding_text = f'"{text_of(funding_timestamp)}"'
            if funding is None or ms_of(funding[1:-1]) != ms_of(funding_timestamp):
                funding = funding_text
        fields = (
            before[0] if last_price is None else _text(last_price),
            before[1] if open_interest is None else _text(open_interest),
            before[2] if funding_rate is None else _text(funding_rate),
            funding,
            before[4] if predicted_funding_rate is None else _text(predicted_funding_rate),
            before[5] if index_price is None else _text(index_price),
            before[6] if mark_price is None else _text(mark_price),
        )
        if fields == before:
            if time:
                self._tickers[symbol] = (fields, time, latest)
            return
        if not time:
            time = text_of(self._local)
            latest = ms_of(time)
        self._tickers[symbol] = (fields, time, latest)
        text = self._ticker_heads[symbol]
        for key, field in zip(_TICKER_KEYS, fields, strict=True):
            if field is not None:
                text += key + field
        self._parts.append(f'{text},"timestamp":"{time}","localTimestamp":"{self._local}"}}\n')

    def book_ticker(
        self,
        symbol: str,
        ask_amount: Number | None,
        ask_price: Number | None,
        bid_price: Number | None,
        bid_amount: Number | None,
        timestamp: TimeValue | None,
        /,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_book_tickers:
            return
        numbers: tuple[Number | None, ...] = (ask_amount, ask_price, bid_price, bid_amount)
        if self._book_ticker_keys is not COMMON_ORDER:
            by_key = dict(zip(COMMON_ORDER, numbers, strict=True))
            numbers = tuple(by_key[key] for key in self._book_ticker_keys)
        text = self._book_ticker_heads[symbol]
        for key, number in zip(self._book_ticker_keys, numbers, strict=True):
            if number is not None:
                text += f',"{key}":{_text(number)}'
        self._end(text, timestamp)

    def liquidation(
        self,
        symbol: str,
        id: Id,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: Side,
        timestamp: TimeValue | None,
        /,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_liquidations:
            return
        self._end(
            f'{self._liquidation_heads[symbol]}{_id_text(id)},"price":{_text(price)},'
            f'"amount":{_text(amount)},"side":"{side}"',
            timestamp,
        )

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
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_summaries:
            return
        text = (
            f'{self._summary_heads[symbol]},"optionType":"{option_type}",'
            f'"strikePrice":{_text(strike_price)},'
            f'"expirationDate":"{text_of(expiration_date)}"'
        )
        numbers = (
            best_bid_price,
            best_bid_amount,
            best_bid_iv,
            best_ask_price,
            best_ask_amount,
            best_ask_iv,
            last_price,
            open_interest,
            mark_price,
            mark_iv,
            delta,
            gamma,
            vega,
            theta,
            rho,
            underlying_price,
        )
        for key, number in zip(_SUMMARY_KEYS, numbers, strict=True):
            if number is not None:
                text += key + _text(number)
        if underlying_index is not None:
            text += f',"underlyingIndex":{quote(underlying_index)}'
        self._end(text, timestamp)

    def disconnect(self, symbols: Sequence[str] | None = None, /) -> None:
        listed = "" if symbols is None else f',"symbols":[{",".join(map(quote, symbols))}]'
        self._parts.append(
            f'{{"type":"disconnect","exchange":{quote(self.exchange)},'
            f'"localTimestamp":"{self._local}"{listed}}}\n'
        )

    def error(self, details: str, count: int, /) -> None:
        self._parts.append(
            f'{{"type":"error","exchange":{quote(self.exchange)},"localTimestamp":"{self._local}",'
            f'"details":{quote(details)},"subSequentErrorsCount":{count}}}\n'
        )

    def close_bars(self) -> None:
        for bars in self._bars.values():
            for bar in bars:
                self._parts.extend(bar.close(self._local))

    def _end(self, text: str, timestamp: TimeValue | None) -> None:
        local = self._local
        time = text_of(local if timestamp is None else timestamp)
        self._parts.append(f'{text},"timestamp":"{time}","localTimestamp":"{local}"}}\n')
