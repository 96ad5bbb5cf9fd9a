from typing import Any

import pytest

from tardis_machine.exchanges import BookGapError, MapperError
from tests.exchanges.feed import LOCAL, Feed

MS = 1_709_251_200_500
TIME = "2024-03-01T00:00:00.500Z"
EXCHANGE = "binance-futures"


def message(stream: str, **data: Any) -> dict[str, Any]:
    return {"stream": stream, "data": data}


class TestTrades:
    def trade(self, **more: Any) -> dict[str, Any]:
        base = {"e": "trade", "E": MS + 3, "T": MS, "s": "BTCUSDT", "t": 77, "p": "62000.50"}
        return message("btcusdt@trade", **base | {"q": "0.100", "X": "MARKET", "m": False} | more)

    def test_a_trade(self) -> None:
        feed = Feed(EXCHANGE, ["trade"])
        assert feed(self.trade()) == [
            {
                "type": "trade",
                "symbol": "BTCUSDT",
                "id": "77",
                "price": 62000.5,
                "amount": 0.1,
                "side": "buy",
                "timestamp": TIME,
            }
        ]
        assert feed(self.trade(m=True))[0]["side"] == "sell"

    @pytest.mark.parametrize("origin", ["INSURANCE_FUND", "ADL"])
    def test_trades_off_the_book_are_left_out(self, origin: str) -> None:
        assert Feed(EXCHANGE, ["trade"])(self.trade(X=origin)) == []

    def test_ids_are_kept_whole(self) -> None:
        (trade,) = Feed(EXCHANGE, ["trade"])(self.trade(t=9007199254740993))
        assert trade["id"] == "9007199254740993"

    def test_absent_ids_read_as_existing_clients_know_them(self) -> None:
        feed = Feed(EXCHANGE, ["trade"])
        assert feed(self.trade(t=None))[0]["id"] == "null"
        raw = self.trade()
        del raw["data"]["t"]
        assert feed(raw)[0]["id"] == "undefined"
        assert feed(self.trade(t="x7"))[0]["id"] == "x7"
        assert feed(self.trade(t=5.0))[0]["id"] == "5"

    @pytest.mark.parametrize("empty", ["", None])
    def test_an_empty_number_is_zero(self, empty: str | None) -> None:
        (trade,) = Feed(EXCHANGE, ["trade"])(self.trade(q=empty))
        assert trade["amount"] == 0

    @pytest.mark.parametrize(
        ("field", "reason"),
        [
            ("p", "trade: no p"),
            ("q", "trade: no q"),
            ("T", "trade: no time in T"),
            ("s", "trade: no symbol"),
        ],
    )
    def test_what_a_trade_needs(self, field: str, reason: str) -> None:
        raw = self.trade()
        del raw["data"][field]
        with pytest.raises(ValueError, match=reason):
            Feed(EXCHANGE, ["trade"])(raw)

    def test_aggregate_trades_are_another_channel(self) -> None:
        assert Feed(EXCHANGE, ["trade"]).ignores(message("btcusdt@aggTrade", s="BTCUSDT"))


def update(first: int, last: int, previous: int | None = None, **more: Any) -> dict[str, Any]:
    data = {"e": "depthUpdate", "E": MS, "T": MS - 5, "s": "BTCUSDT", "U": first, "u": last}
    levels = {"b": [["1.0", "2"]], "a": []}
    return message("btcusdt@depth@0ms", **data | {"pu": previous} | levels | more)


def snapshot(last: int, bids: Any = (), asks: Any = (), **more: Any) -> dict[str, Any]:
    data = {"lastUpdateId": last, "bids": bids, "asks": asks, **more}
    return {"stream": "btcusdt@depthSnapshot", "generated": True, "data": data}


class TestBook:
    def test_updates_are_kept_and_applied_to_the_snapshot(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        assert feed(update(98, 99, b=[["7", "7"]])) == []
        assert feed(update(100, 101, b=[["1.0", "9"], ["3", "4"]], a=[["5", "0.000"]])) == []
        assert feed(update(102, 103, b=[["2.0", "0"], ["3", "5"]])) == []
        bids = [["2.0", "1"], ["1.0", "2"]]
        asks = [["5", "1"], ["6", "0"]]
        assert feed(snapshot(100, bids, asks)) == [
            {
                "type": "book_change",
                "symbol": "BTCUSDT",
                "isSnapshot": True,
                "bids": [{"price": 1, "amount": 9}, {"price": 3, "amount": 5}],
                "asks": [{"price": 6, "amount": 0}],
                "timestamp": LOCAL,
            }
        ]

    def test_later_updates_pass_one_by_one(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(snapshot(100))
        assert feed(update(100, 105, b=[["1.10", "0.50"]], a=[["2", "0"]])) == [
            {
                "type": "book_change",
                "symbol": "BTCUSDT",
                "isSnapshot": False,
                "bids": [{"price": 1.1, "amount": 0.5}],
                "asks": [{"price": 2, "amount": 0}],
                "timestamp": TIME,
            }
        ]
        assert feed(update(90, 99)) == []
        (empty,) = feed(update(106, 107, b=[], a=[]))
        assert empty["bids"] == empty["asks"] == []

    def test_an_update_that_ends_with_the_snapshot_still_counts(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True)
        feed(snapshot(100))
        assert len(feed(update(95, 100))) == 1

    def test_levels_are_matched_by_their_text(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(update(100, 101, a=[["5.00", "3"], ["6", "4"], ["6", "0"], ["7", "1"]]))
        (change,) = feed(snapshot(100, [], [["5.0", "1"], ["6", "1"], ["5.0", "2"], ["7", "9"]]))
        assert [(a["price"], a["amount"]) for a in change["asks"]] == [(5, 2), (7, 1), (5, 3)]

    def test_a_level_that_comes_back_goes_last(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(update(100, 101, b=[["5", "0"], ["5", "8"]]))
        (change,) = feed(snapshot(100, [["5", "1"], ["4", "1"]]))
        assert [bid["price"] for bid in change["bids"]] == [4, 5]

    def test_a_snapshot_may_carry_its_time(self) -> None:
        (change,) = Feed(EXCHANGE, ["book_change"])(snapshot(100, T=MS))
        assert change["timestamp"] == TIME

    @pytest.mark.parametrize("empty", ["", None])
    def test_an_empty_number_in_a_snapshot_is_zero(self, empty: str | None) -> None:
        (change,) = Feed(EXCHANGE, ["book_change"])(snapshot(100, [["1", empty]]))
        assert change["bids"] == [{"price": 1, "amount": 0}]

    def test_only_the_first_snapshot_counts(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(snapshot(100))
        assert feed(snapshot(200)) == []
        assert len(feed(update(101, 102))) == 1

    def test_symbols_have_books_of_their_own(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(snapshot(100))
        other = update(101, 102, s="ETHUSDT") | {"stream": "ethusdt@depth@100ms"}
        assert feed(other) == []
        assert len(feed(update(101, 102))) == 1

    def test_of_updates_that_wait_the_latest_two_thousand_are_kept(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        for number in range(2001):
            feed(update(100 + number, 100 + number, b=[[str(number + 1), "1"]]))
        (change,) = feed(snapshot(100))
        assert [change["bids"][i]["price"] for i in (0, -1)] == [2, 2001]

    @pytest.mark.parametrize(
        ("first", "last", "previous"), [(99, 101, 98), (100, 105, 99), (150, 160, 100)]
    )
    def test_live_snapshots_and_updates_that_join(
        self, first: int, last: int, previous: int
    ) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True)
        feed(update(first, last, previous))
        (change,) = feed(snapshot(100))
        assert change["bids"] == [{"price": 1, "amount": 2}]

    def test_live_snapshots_that_do_not_join_are_an_error_and_a_newer_one_may(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True)
        feed(update(102, 105, 101))
        with pytest.raises(BookGapError, match="BTCUSDT") as e:
            feed(snapshot(100))
        assert (e.value.symbol, e.value.snapshot_id) == ("BTCUSDT", 100)
        (change,) = feed(snapshot(103))
        assert change["bids"] == [{"price": 1, "amount": 2}]

    def test_a_live_update_that_does_not_join_needs_a_new_snapshot(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True)
        feed(snapshot(100))
        with pytest.raises(BookGapError):
            feed(update(102, 105, 101))
        assert feed(update(106, 107, 105)) == []
        assert len(feed(snapshot(104))) == 1
        assert len(feed(update(108, 109, 107))) == 1

    def test_an_update_that_does_not_follow_is_an_error_where_ids_are_checked(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True, checks_ids=True)
        feed(snapshot(100))
        assert len(feed(update(100, 102, 99))) == 1
        assert len(feed(update(103, 105, 102))) == 1
        with pytest.raises(BookGapError, match="an update of BTCUSDT follows 107") as e:
            feed(update(108, 110, 107))
        assert e.value.symbol == "BTCUSDT"
        assert feed(update(111, 112, 110)) == []
        with pytest.raises(BookGapError):  # older than what was kept
            feed(snapshot(106))
        (change,) = feed(snapshot(109))
        assert change["isSnapshot"]
        assert len(feed(update(113, 114, 112))) == 1

    def test_history_goes_on_where_they_do_not_join(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(update(102, 105, 101))
        (change,) = feed(snapshot(100))
        assert change["bids"] == [{"price": 1, "amount": 2}]
        assert len(feed(update(200, 201, 199))) == 1

    def test_only_the_first_update_has_to_join(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"], live=True)
        feed(snapshot(100))
        feed(update(100, 101, 99))
        assert len(feed(update(150, 160, 149))) == 1

    def test_an_update_tells_its_own_symbol(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(snapshot(100))
        assert feed(update(100, 101, s="BTCUSDT_LISTED_ANEW"))[0]["symbol"] == "BTCUSDT_LISTED_ANEW"
        with pytest.raises(MapperError, match="depth: no symbol"):
            feed(update(101, 102, s=None))

    def test_updates_of_spot_books_count_on_where_ids_are_checked(self) -> None:
        feed = Feed("binance", ["book_change"], live=True, checks_ids=True)
        feed(snapshot(100))
        assert len(feed(update(99, 101))) == 1
        assert len(feed(update(102, 105))) == 1
        with pytest.raises(BookGapError, match="an update of BTCUSDT follows 106"):
            feed(update(107, 108))

    def test_a_new_spot_market_joins_any_update(self) -> None:
        feed = Feed("binance", ["book_change"], live=True)
        feed(snapshot(-1))
        assert len(feed(update(500, 501))) == 1

    def test_an_update_without_time_is_malformed(self) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        feed(snapshot(100))
        with pytest.raises(MapperError, match="depth: no time in E"):
            feed(update(100, 101, E=None))

    @pytest.mark.parametrize("levels", [[["1"]], [[]], [["1", []]], [7], "x"])
    def test_malformed_levels(self, levels: Any) -> None:
        feed = Feed(EXCHANGE, ["book_change"])
        with pytest.raises(ValueError, match=r"."):
            feed(snapshot(100, levels))
        feed(snapshot(100))
        with pytest.raises(ValueError, match=r"."):
            feed(update(101, 102, b=levels))


class TestDerivativeTicker:
    def mark(self, **more: Any) -> dict[str, Any]:
        base = {"e": "markPriceUpdate", "E": MS, "s": "BTCUSDT", "p": "62000.90", "i": "62001.50"}
        funding = {"P": "1", "r": "0.00010000", "T": 1_709_265_600_000}
        return message("btcusdt@markPrice@1s", **base | funding | more)

    def last(self, **more: Any) -> dict[str, Any]:
        base = {"e": "24hrTicker", "E": MS + 1, "s": "BTCUSDT", "p": "-88", "c": "62000.0"}
        return message("btcusdt@ticker", **base | more)

    def interest(self, **more: Any) -> dict[str, Any]:
        data = {"symbol": "BTCUSDT", "openInterest": "500.10", **more}
        return {"stream": "btcusdt@openInterest", "generated": True, "data": data}

    def test_parts_come_from_three_channels(self) -> None:
        feed = Feed(EXCHANGE, ["derivative_ticker"])
        feed(self.mark())
        feed(self.last())
        assert feed(self.interest()) == [
            {
                "type": "derivative_ticker",
                "symbol": "BTCUSDT",
                "lastPrice": 62000,
                "openInterest": 500.1,
                "fundingRate": 0.0001,
                "fundingTimestamp": "2024-03-01T04:00:00.000Z",
                "indexPrice": 62001.5,
                "markPrice": 62000.9,
                "timestamp": "2024-03-01T00:00:00.501Z",
            }
        ]

    def test_the_same_number_written_otherwise_is_no_change(self) -> None:
        feed = Feed(EXCHANGE, ["derivative_ticker"])
        feed(self.last())
        assert feed(self.last(c="62000.00000")) == []
        assert feed(self.last(c="6.2e4", E=MS + 9)) == []

    def test_open_interest_alone_has_the_local_time(self) -> None:
        (ticker,) = Feed(EXCHANGE, ["derivative_ticker"])(self.interest())
        assert ticker["timestamp"] == LOCAL

    @pytest.mark.parametrize("dated", [{"r": ""}, {"T": 0}, {"r": "0.00000000", "T": 0}])
    def test_dated_futures_have_no_funding(self, dated: dict[str, Any]) -> None:
        (ticker,) = Feed(EXCHANGE, ["derivative_ticker"])(self.mark(**dated))
        assert not {"fundingRate", "fundingTimestamp"} & set(ticker)

    def test_early_mark_prices_have_neither_index_nor_funding(self) -> None:
        raw = self.mark()
        del raw["data"]["i"], raw["data"]["r"], raw["data"]["T"]
        (ticker,) = Feed(EXCHANGE, ["derivative_ticker"])(raw)
        assert set(ticker) == {"type", "symbol", "markPrice", "timestamp"}

    @pytest.mark.parametrize("empty", ["", None])
    def test_empty_numbers_are_zero(self, empty: str | None) -> None:
        feed = Feed(EXCHANGE, ["derivative_ticker"])
        feed(self.mark(p=empty, i=empty))
        feed(self.last(c=empty))
        (ticker,) = feed(self.interest(openInterest=empty))
        assert [
            ticker[key] for key in ("markPrice", "indexPrice", "lastPrice", "openInterest")
        ] == [
            0,
            0,
            0,
            0,
        ]

    def test_a_null_rate_is_zero(self) -> None:
        assert Feed(EXCHANGE, ["derivative_ticker"])(self.mark(r=None))[0]["fundingRate"] == 0

    def test_what_is_missing_makes_it_malformed(self) -> None:
        feed = Feed(EXCHANGE, ["derivative_ticker"])
        for field, raw in (("p", self.mark()), ("T", self.mark()), ("c", self.last())):
            del raw["data"][field]
            with pytest.raises(MapperError, match=f"no (time in )?{field}"):
                feed(raw)
        with pytest.raises(MapperError, match="no time in T"):
            feed(self.mark(T=None))
        with pytest.raises(MapperError, match="no symbol"):
            feed(message("btcusdt@openInterest", openInterest="1"))
        # Nothing of those has changed the ticker.
        assert set(feed(self.last())[0]) == {"type", "symbol", "lastPrice", "timestamp"}

    def test_without_a_time_the_last_one_stands(self) -> None:
        feed = Feed(EXCHANGE, ["derivative_ticker"])
        with pytest.raises(ValueError, match="no time for BTCUSDT"):
            feed(self.mark(E=None))
        feed(self.mark())
        (ticker,) = feed(self.mark(E=None, p="1"))
        assert ticker["timestamp"] == TIME

    @pytest.mark.parametrize("event", ["", None, "other"])
    def test_an_unknown_event_changes_nothing(self, event: str | None) -> None:
        assert Feed(EXCHANGE, ["derivative_ticker"])(self.mark(e=event)) == []

    def test_open_interest_without_a_number_changes_nothing(self) -> None:
        raw = self.interest()
        del raw["data"]["openInterest"]
        assert Feed(EXCHANGE, ["derivative_ticker"])(raw) == []


class TestLiquidations:
    def order(self, **more: Any) -> dict[str, Any]:
        order = {"s": "BTCUSDT", "S": "SELL", "q": "0.5", "p": "61000.0", "ap": "61500", "T": MS}
        return message(
            "btcusdt@forceOrder",
            e="forceOrder",
            E=MS + 1,
            o=order | {"X": "FILLED", "z": "0.4"} | more,
        )

    def test_a_filled_order_counts_with_its_price_and_what_was_filled(self) -> None:
        feed = Feed(EXCHANGE, ["liquidation"])
        assert feed(self.order()) == [
            {
                "type": "liquidation",
                "symbol": "BTCUSDT",
                "price": 61000,
                "amount": 0.4,
                "side": "sell",
                "timestamp": TIME,
            }
        ]
        assert feed(self.order(S="BUY"))[0]["side"] == "buy"

    def test_other_orders_are_left_out(self) -> None:
        feed = Feed(EXCHANGE, ["liquidation"])
        assert feed(self.order(X="NEW")) == []
        assert feed(message("btcusdt@forceOrder", o={})) == []


class TestBookTicker:
    def quote(self, **more: Any) -> dict[str, Any]:
        base = {
            "e": "bookTicker",
            "u": 1,
            "s": "BTCUSDT",
            "b": "1.50",
            "B": "3",
            "a": "2",
            "A": "4",
        }
        return message("btcusdt@bookTicker", **base | {"T": MS - 9, "E": MS} | more)

    def test_a_quote(self) -> None:
        assert Feed(EXCHANGE, ["book_ticker"])(self.quote()) == [
            {
                "type": "book_ticker",
                "symbol": "BTCUSDT",
                "askAmount": 4,
                "askPrice": 2,
                "bidPrice": 1.5,
                "bidAmount": 3,
                "timestamp": TIME,
            }
        ]

    @pytest.mark.parametrize("empty", ["", None])
    def test_empty_is_zero_and_missing_is_left_out(self, empty: str | None) -> None:
        raw = self.quote(b=empty)
        del raw["data"]["a"]
        (ticker,) = Feed(EXCHANGE, ["book_ticker"])(raw)
        assert ticker["bidPrice"] == 0
        assert "askPrice" not in ticker

    def test_early_quotes_have_no_time(self) -> None:
        raw = self.quote()
        del raw["data"]["E"]
        assert Feed(EXCHANGE, ["book_ticker"])(raw)[0]["timestamp"] == LOCAL
        with pytest.raises(MapperError, match="bookTicker: no time in E"):
            Feed(EXCHANGE, ["book_ticker"])(self.quote(E=None))


@pytest.mark.parametrize(
    "raw",
    [
        {"result": None, "id": 1},
        {"stream": None, "data": {}},
        message("btcusdt@aggTrade", e="aggTrade"),
        message("btcusdt@kline_1m"),
        message("!contractInfo"),
    ],
)
def test_other_messages_are_ignored(raw: dict[str, Any]) -> None:
    feed = Feed(EXCHANGE, ["trade", "book_change", "derivative_ticker", "liquidation"])
    assert feed.ignores(raw)
