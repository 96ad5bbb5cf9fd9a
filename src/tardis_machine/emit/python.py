"""The emitter in pure Python: normalized and computed messages as NDJSON."""

from collections.abc import Collection, Sequence
from json.encoder import encode_basestring as quote

import msgspec

from tardis_machine.emit import datatypes
from tardis_machine.emit.bars import Bar
from tardis_machine.emit.book import Change
from tardis_machine.emit.datatypes import BookSnapshots, DataType, TradeBars
from tardis_machine.emit.levels import PAIRS, Layout, Levels
from tardis_machine.emit.numbers import Number, canonical
from tardis_machine.emit.snapshots import Snapshots
from tardis_machine.emit.times import ENDS, SECONDS, Time, ms_of, text_of


class Taken(msgspec.Struct, frozen=True, gc=False):
    """The bytes emitted since the last take, and the number of messages in them."""

    data: bytes
    count: int


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


class Emitter:
    """Writes the messages of one stream of one exchange exactly as clients expect them.

    `data_types` are those of the stream: normalized ones are sent, computed ones computed per
    symbol, in their order. `sent` widens what is sent of the normalized types, for a stream that
    is merged with others of its exchange.
    """

    def __init__(
        self, exchange: str, data_types: Sequence[DataType], sent: Collection[str] | None = None
    ) -> None:
        self.exchange = exchange
        self.ignored_changes = 0
        self._allowed: frozenset[str] | None = None
        self.local = ""
        self._parts: list[str] = []
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

    def begin(self, local: str) -> None:
        """Set the local timestamp of what follows, as it is to be printed."""
        self.local = local

    def allow(self, symbols: frozenset[str] | None) -> None:
        """Let only these symbols pass; None lets all."""
        self._allowed = symbols

    def trade(
        self,
        symbol: str,
        id: str | None,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: str,
        timestamp: Time,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        price_text = canonical[price]
        amount_text = canonical[amount]
        time = text_of(timestamp)
        if self._sends_trades:
            id_text = f',"id":{quote(id)}' if id is not None else ""
            self._parts.append(
                f'{self._trade_heads[symbol]}{id_text},"price":{price_text},"amount":{amount_text},'
                f'"side":"{side}","timestamp":"{time}","localTimestamp":"{self.local}"}}\n'
            )
        if self._bar_types:
            bars = self._bars.get(symbol)
            if bars is None:
                head = self._bar_heads[symbol]
                bars = self._bars[symbol] = [Bar(head, bar_type) for bar_type in self._bar_types]
            ms = timestamp if isinstance(timestamp, int) else ms_of(timestamp)
            for bar in bars:
                self._parts.extend(bar.add(price_text, amount_text, side, ms, time, self.local))

    def book_change(
        self,
        symbol: str,
        is_snapshot: bool,
        bids: Levels,
        asks: Levels,
        timestamp: Time,
        layout: Layout = PAIRS,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        # As text_of does, without the calls: there is a book change for nearly every line.
        if type(timestamp) is int and timestamp > 0:
            time = SECONDS[timestamp // 1000] + ENDS[timestamp % 1000]
        else:
            time = text_of(timestamp)
        local = self.local
        # Mappers give pairs as lists; whatever else is left to the layout.
        bid_pairs = bids if type(bids) is list and layout is PAIRS else layout(bids)
        ask_pairs = asks if type(asks) is list and layout is PAIRS else layout(asks)
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
            if bid_pairs:
                bid_changes, bids_text = book.bids.parse(bid_pairs)
            if ask_pairs:
                ask_changes, asks_text = book.asks.parse(ask_pairs)
            ms = 0
            if snapshots.timed:
                ms = timestamp if isinstance(timestamp, int) else ms_of(timestamp)
            due = snapshots.change(is_snapshot, bid_changes, ask_changes, ms, time, local)
            if not book.ready:
                self.ignored_changes += 1
        elif self._sends_changes:
            if bid_pairs:
                for price, amount in bid_pairs:
                    bids_text += f',{{"price":{canonical[price]},"amount":{canonical[amount]}}}'
                bids_text = bids_text[1:]
            if ask_pairs:
                for price, amount in ask_pairs:
                    asks_text += f',{{"price":{canonical[price]},"amount":{canonical[amount]}}}'
                asks_text = asks_text[1:]
        if self._sends_changes:
            head = self._full_heads[symbol] if is_snapshot else self._change_heads[symbol]
            self._parts.append(
                f'{head}{bids_text}],"asks":[{asks_text}],'
                f'"timestamp":"{time}","localTimestamp":"{local}"}}\n'
            )
        if due:
            self._parts += due

    def derivative_ticker(
        self,
        symbol: str,
        timestamp: Time,
        *,
        last_price: Number | None = None,
        open_interest: Number | None = None,
        funding_rate: Number | None = None,
        funding_timestamp: Time | None = None,
        predicted_funding_rate: Number | None = None,
        index_price: Number | None = None,
        mark_price: Number | None = None,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_tickers:
            return
        text = self._ticker_heads[symbol]
        if last_price is not None:
            text += f',"lastPrice":{canonical[last_price]}'
        if open_interest is not None:
            text += f',"openInterest":{canonical[open_interest]}'
        if funding_rate is not None:
            text += f',"fundingRate":{canonical[funding_rate]}'
        if funding_timestamp is not None:
            text += f',"fundingTimestamp":"{text_of(funding_timestamp)}"'
        if predicted_funding_rate is not None:
            text += f',"predictedFundingRate":{canonical[predicted_funding_rate]}'
        if index_price is not None:
            text += f',"indexPrice":{canonical[index_price]}'
        if mark_price is not None:
            text += f',"markPrice":{canonical[mark_price]}'
        self._end(text, timestamp)

    def book_ticker(
        self,
        symbol: str,
        ask_amount: Number | None,
        ask_price: Number | None,
        bid_price: Number | None,
        bid_amount: Number | None,
        timestamp: Time,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_book_tickers:
            return
        text = self._book_ticker_heads[symbol]
        if ask_amount is not None:
            text += f',"askAmount":{canonical[ask_amount]}'
        if ask_price is not None:
            text += f',"askPrice":{canonical[ask_price]}'
        if bid_price is not None:
            text += f',"bidPrice":{canonical[bid_price]}'
        if bid_amount is not None:
            text += f',"bidAmount":{canonical[bid_amount]}'
        self._end(text, timestamp)

    def liquidation(
        self,
        symbol: str,
        id: str | None,  # noqa: A002 - the message's own word
        price: Number,
        amount: Number,
        side: str,
        timestamp: Time,
    ) -> None:
        if self._allowed is not None and symbol not in self._allowed:
            return
        if not self._sends_liquidations:
            return
        id_text = f',"id":{quote(id)}' if id is not None else ""
        self._end(
            f'{self._liquidation_heads[symbol]}{id_text},"price":{canonical[price]},'
            f'"amount":{canonical[amount]},"side":"{side}"',
            timestamp,
        )

    def option_summary(
        self,
        symbol: str,
        timestamp: Time,
        *,
        option_type: str,
        strike_price: Number,
        expiration_date: Time,
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
            f'"strikePrice":{canonical[strike_price]},'
            f'"expirationDate":"{text_of(expiration_date)}"'
        )
        for key, number in (
            ("bestBidPrice", best_bid_price),
            ("bestBidAmount", best_bid_amount),
            ("bestBidIV", best_bid_iv),
            ("bestAskPrice", best_ask_price),
            ("bestAskAmount", best_ask_amount),
            ("bestAskIV", best_ask_iv),
            ("lastPrice", last_price),
            ("openInterest", open_interest),
            ("markPrice", mark_price),
            ("markIV", mark_iv),
            ("delta", delta),
            ("gamma", gamma),
            ("vega", vega),
            ("theta", theta),
            ("rho", rho),
            ("underlyingPrice", underlying_price),
        ):
            if number is not None:
                text += f',"{key}":{canonical[number]}'
        if underlying_index is not None:
            text += f',"underlyingIndex":{quote(underlying_index)}'
        self._end(text, timestamp)

    def disconnect(self, symbols: Sequence[str] | None = None) -> None:
        listed = "" if symbols is None else f',"symbols":[{",".join(map(quote, symbols))}]'
        self._parts.append(
            f'{{"type":"disconnect","exchange":{quote(self.exchange)},'
            f'"localTimestamp":"{self.local}"{listed}}}\n'
        )

    def error(self, details: str, count: int) -> None:
        self._parts.append(
            f'{{"type":"error","exchange":{quote(self.exchange)},"localTimestamp":"{self.local}",'
            f'"details":{quote(details)},"subSequentErrorsCount":{count}}}\n'
        )

    def close_bars(self) -> None:
        """End the time bars in progress, for a stream after which no trade can complete them."""
        for bars in self._bars.values():
            for bar in bars:
                self._parts.extend(bar.close(self.local))

    def reset(self) -> None:
        """Drop books and computables, as a disconnect does."""
        self._bars.clear()
        self._snapshots.clear()

    def take(self) -> Taken:
        parts = self._parts
        taken = Taken("".join(parts).encode(), len(parts))
        parts.clear()
        return taken

    def _end(self, text: str, timestamp: Time) -> None:
        self._parts.append(
            f'{text},"timestamp":"{text_of(timestamp)}","localTimestamp":"{self.local}"}}\n'
        )
