from typing import Any, ClassVar

import pytest

from tests.exchanges.feed import LOCAL, Feed

TIME = "2024-03-01T00:00:00.500Z"


def table(name: str, action: str, *rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"table": name, "action": action, **more, "data": list(rows)}


class TestTrades:
    row: ClassVar = {
        "timestamp": TIME,
        "symbol": "XBTUSD",
        "side": "Buy",
        "size": 300,
        "price": 62000.5,
    }

    def test_each_row_is_a_trade(self) -> None:
        feed = Feed("bitmex", ["trade"])
        sell = self.row | {"side": "Sell", "trdMatchID": "7f"}
        assert feed(table("trade", "insert", self.row | {"trdMatchID": "6e"}, sell)) == [
            {
                "type": "trade",
                "symbol": "XBTUSD",
                "id": "6e",
                "price": 62000.5,
                "amount": 300,
                "side": "buy",
                "timestamp": TIME,
            },
            {
                "type": "trade",
                "symbol": "XBTUSD",
                "id": "7f",
                "price": 62000.5,
                "amount": 300,
                "side": "sell",
                "timestamp": TIME,
            },
        ]

    def test_no_rows_are_no_trades(self) -> None:
        assert Feed("bitmex", ["trade"])(table("trade", "insert")) == []

    def test_a_partial_repeats_what_was_traded_before(self) -> None:
        assert Feed("bitmex", ["trade"]).ignores(table("trade", "partial", self.row))

    @pytest.mark.parametrize(("side", "expected"), [(None, "sell"), ("", "sell"), ("Buy", "buy")])
    def test_any_side_but_buy_is_a_sell(self, side: str | None, expected: str) -> None:
        (trade,) = Feed("bitmex", ["trade"])(table("trade", "insert", self.row | {"side": side}))
        assert trade["side"] == expected

    def test_without_a_side_it_is_unknown(self) -> None:
        row: ClassVar = {key: value for key, value in self.row.items() if key != "side"}
        (trade,) = Feed("bitmex", ["trade"])(table("trade", "insert", row))
        assert trade["side"] == "unknown"
        assert "id" not in trade

    @pytest.mark.parametrize(
        ("timestamp", "printed"),
        [("2024-03-01T00:00:00Z", "00.000Z"), ("2024-03-01T00:00:00.123987Z", "00.123Z")],
    )
    def test_times_have_three_digits(self, timestamp: str, printed: str) -> None:
        row = self.row | {"timestamp": timestamp}
        (trade,) = Feed("bitmex", ["trade"])(table("trade", "insert", row))
        assert trade["timestamp"] == f"2024-03-01T00:00:{printed}"

    def test_numbers_are_printed_as_javascript_does(self) -> None:
        raw = (
            b'{"table":"trade","action":"insert","data":[{"timestamp":"2024-03-01T00:00:00.000Z",'
            b'"symbol":"A","side":"Buy","size":61130.0,"price":1E-7}]}'
        )
        (line,) = Feed("bitmex", ["trade"]).lines(raw)
        assert '"price":1e-7,"amount":61130,' in line

    @pytest.mark.parametrize("field", ["timestamp", "symbol", "size", "price"])
    def test_a_row_that_lacks_what_a_trade_needs_is_malformed(self, field: str) -> None:
        feed = Feed("bitmex", ["trade"])
        row: ClassVar = {key: value for key, value in self.row.items() if key != field}
        with pytest.raises(ValueError, match=field):
            feed(table("trade", "insert", row))
        with pytest.raises(ValueError, match="null"):
            feed(table("trade", "insert", self.row | {field: None}))


def level(id: int, side: str = "Sell", symbol: str = "XBTUSD", **more: Any) -> dict[str, Any]:  # noqa: A002
    return {"symbol": symbol, "id": id, "side": side, **more}


class TestBook:
    def test_updates_find_their_price_by_id(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        feed(
            table(
                "orderBookL2",
                "partial",
                level(1, size=10, price=62000.5),
                level(2, "Buy", size=20, price=61999),
            )
        )
        assert feed(table("orderBookL2", "update", level(2, "Buy", size=7), level(1, size=8))) == [
            {
                "type": "book_change",
                "symbol": "XBTUSD",
                "isSnapshot": False,
                "bids": [{"price": 61999, "amount": 7}],
                "asks": [{"price": 62000.5, "amount": 8}],
                "timestamp": LOCAL,
            }
        ]

    def test_a_partial_is_a_snapshot_per_symbol_in_order_of_appearance(self) -> None:
        changes = Feed("bitmex", ["book_change"])(
            table(
                "orderBookL2",
                "partial",
                level(1, symbol="ETHUSD", size=1, price=1),
                level(2, size=2, price=2),
                level(3, "Buy", symbol="ETHUSD", size=3, price=0.5),
            )
        )
        assert [
            (c["symbol"], c["isSnapshot"], len(c["bids"]), len(c["asks"])) for c in changes
        ] == [
            ("ETHUSD", True, 1, 1),
            ("XBTUSD", True, 0, 1),
        ]

    def test_an_empty_partial_empties_the_book_it_was_asked_for(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        (change,) = feed(table("orderBookL2", "partial", filter={"symbol": "XBTZ24"}))
        assert change["symbol"] == "XBTZ24"
        assert change["isSnapshot"]
        assert change["bids"] == change["asks"] == []
        assert feed(table("orderBookL2", "partial", filter={})) == []
        assert feed(table("orderBookL2", "partial")) == []

    def test_a_deleted_level_has_amount_zero_and_forgets_its_price(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        feed(table("orderBookL2", "insert", level(1, size=10, price=5)))
        (change,) = feed(table("orderBookL2", "delete", level(1)))
        assert change["asks"] == [{"price": 5, "amount": 0}]
        assert feed(table("orderBookL2", "update", level(1, size=3))) == []

    def test_updates_before_their_partial_are_left_out(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        feed(table("orderBookL2", "insert", level(1, size=10, price=5)))
        (change,) = feed(table("orderBookL2", "update", level(9, size=1), level(1, size=2)))
        assert change["asks"] == [{"price": 5, "amount": 2}]

    def test_an_id_may_get_another_price(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        feed(table("orderBookL2", "insert", level(1, size=10, price=5)))
        feed(table("orderBookL2", "insert", level(1, "Buy", size=10, price=4)))
        (change,) = feed(table("orderBookL2", "update", level(1, "Buy", size=3)))
        assert change["bids"] == [{"price": 4, "amount": 3}]

    def test_the_latest_time_of_the_rows_counts_even_of_those_left_out(self) -> None:
        feed = Feed("bitmex", ["book_change"])
        rows = [
            level(1, size=1, price=5, timestamp="2024-03-01T00:00:00.5Z"),
            level(2, size=1, price=6, timestamp="2024-03-01T00:00:00.400Z"),
            level(9, size=1, timestamp="2024-03-01T00:00:00.600999Z"),
            level(3, size=1, price=7),
        ]
        (change,) = feed(table("orderBookL2", "update", *rows))
        assert change["timestamp"] == "2024-03-01T00:00:00.600Z"
        assert len(change["asks"]) == 3

    @pytest.mark.parametrize("size", [None, 0, 0.0])
    def test_no_size_is_zero(self, size: float | None) -> None:
        feed = Feed("bitmex", ["book_change"])
        (line,) = feed.lines(table("orderBookL2", "insert", level(1, size=size, price=5)))
        assert '"asks":[{"price":5,"amount":0}]' in line

    @pytest.mark.parametrize("timestamp", ["", None])
    def test_an_empty_time_is_malformed(self, timestamp: str | None) -> None:
        row = level(1, size=1, price=5, timestamp=timestamp)
        with pytest.raises(ValueError, match="rows without a time"):
            Feed("bitmex", ["book_change"])(table("orderBookL2", "insert", row))

    def test_a_change_without_rows_is_malformed(self) -> None:
        with pytest.raises(ValueError, match="a change without rows"):
            Feed("bitmex", ["book_change"])(table("orderBookL2", "update"))

    def test_rows_of_no_symbol_are_malformed(self) -> None:
        with pytest.raises(ValueError, match="rows without a symbol"):
            Feed("bitmex", ["book_change"])(table("orderBookL2", "insert", {"id": 1, "price": 2}))


class TestDerivativeTicker:
    whole: ClassVar = {
        "symbol": "XBTUSD",
        "state": "Open",
        "lastPrice": 62000,
        "openInterest": 500,
        "fundingRate": 0.0001,
        "fundingTimestamp": "2024-03-01T04:00:00.000Z",
        "indicativeFundingRate": -0.0002,
        "indicativeSettlePrice": 62001.5,
        "markPrice": 62000.9,
        "timestamp": TIME,
    }

    def test_a_partial_starts_a_ticker_that_updates_complete(self) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        assert feed(table("instrument", "partial", self.whole)) == [
            {
                "type": "derivative_ticker",
                "symbol": "XBTUSD",
                "lastPrice": 62000,
                "openInterest": 500,
                "fundingRate": 0.0001,
                "fundingTimestamp": "2024-03-01T04:00:00.000Z",
                "predictedFundingRate": -0.0002,
                "indexPrice": 62001.5,
                "markPrice": 62000.9,
                "timestamp": TIME,
            }
        ]
        (ticker,) = feed(table("instrument", "update", {"symbol": "XBTUSD", "markPrice": 1}))
        assert (ticker["markPrice"], ticker["lastPrice"]) == (1, 62000)

    def test_updates_before_the_partial_are_left_out(self) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        assert feed(table("instrument", "update", {"symbol": "XBTUSD", "markPrice": 1})) == []
        assert feed(table("instrument", "update", {"markPrice": 1}, {"symbol": None})) == []

    def test_only_changes_are_sent(self) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        feed(table("instrument", "partial", self.whole))
        later = "2024-03-01T00:00:01.000Z"
        quiet = {"symbol": "XBTUSD", "lastPrice": 62000.0, "bidPrice": 3, "timestamp": later}
        assert feed(table("instrument", "update", quiet)) == []
        (ticker,) = feed(table("instrument", "update", {"symbol": "XBTUSD", "lastPrice": 2}))
        assert ticker["timestamp"] == later

    @pytest.mark.parametrize("state", ["Settled", "Unlisted", "", None])
    def test_instruments_that_are_over_are_left_out(self, state: str | None) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        assert feed(table("instrument", "partial", self.whole | {"state": state})) == []

    @pytest.mark.parametrize("state", ["Open", "Closed"])
    def test_instruments_that_pause_are_not(self, state: str) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        assert len(feed(table("instrument", "partial", self.whole | {"state": state}))) == 1

    def test_null_leaves_a_field_as_it_was(self) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        feed(table("instrument", "partial", self.whole))
        update = {"symbol": "XBTUSD", "markPrice": None, "fundingTimestamp": None, "lastPrice": 3}
        (ticker,) = feed(table("instrument", "update", update))
        assert ticker["markPrice"] == 62000.9
        assert ticker["fundingTimestamp"] == "2024-03-01T04:00:00.000Z"

    @pytest.mark.parametrize("timestamp", ["", None])
    def test_an_empty_time_is_malformed_at_first_and_ignored_later(
        self, timestamp: str | None
    ) -> None:
        feed = Feed("bitmex", ["derivative_ticker"])
        with pytest.raises(ValueError, match="no time for XBTUSD"):
            feed(table("instrument", "partial", self.whole | {"timestamp": timestamp}))
        feed(table("instrument", "partial", self.whole))
        update = {"symbol": "XBTUSD", "lastPrice": 9, "timestamp": timestamp}
        (ticker,) = feed(table("instrument", "update", update))
        assert ticker["timestamp"] == TIME

    def test_without_any_time_the_local_one_is_taken(self) -> None:
        row: ClassVar = {key: value for key, value in self.whole.items() if key != "timestamp"}
        (ticker,) = Feed("bitmex", ["derivative_ticker"])(table("instrument", "partial", row))
        assert ticker["timestamp"] == LOCAL

    def test_a_partial_of_no_symbol_is_malformed(self) -> None:
        with pytest.raises(ValueError, match="instrument: no symbol"):
            Feed("bitmex", ["derivative_ticker"])(table("instrument", "partial", {"markPrice": 1}))


class TestLiquidations:
    row: ClassVar = {
        "orderID": "ab",
        "symbol": "XBTUSD",
        "side": "Buy",
        "price": 62000,
        "leavesQty": 9,
    }

    def test_an_insert_is_a_liquidation_at_local_time(self) -> None:
        feed = Feed("bitmex", ["liquidation"])
        assert feed(table("liquidation", "insert", self.row)) == [
            {
                "type": "liquidation",
                "symbol": "XBTUSD",
                "id": "ab",
                "price": 62000,
                "amount": 9,
                "side": "buy",
                "timestamp": LOCAL,
            }
        ]
        (sell,) = feed(table("liquidation", "insert", self.row | {"side": "Sell"}))
        assert sell["side"] == "sell"

    @pytest.mark.parametrize("action", ["partial", "update", "delete", None])
    def test_other_actions_are_ignored_though_their_rows_are_not_whole(
        self, action: str | None
    ) -> None:
        feed = Feed("bitmex", ["liquidation"])
        assert feed.ignores({"table": "liquidation", "action": action, "data": [{"orderID": "a"}]})
        assert feed.ignores({"table": "liquidation", "action": action, "data": [self.row]})


class TestBookTicker:
    row: ClassVar = {
        "timestamp": TIME,
        "symbol": "XBTUSD",
        "bidSize": 3,
        "bidPrice": 1.5,
        "askPrice": 2,
        "askSize": 4,
    }

    def test_a_quote_is_a_book_ticker(self) -> None:
        assert Feed("bitmex", ["book_ticker"])(table("quote", "insert", self.row)) == [
            {
                "type": "book_ticker",
                "symbol": "XBTUSD",
                "askAmount": 4,
                "askPrice": 2,
                "bidPrice": 1.5,
                "bidAmount": 3,
                "timestamp": TIME,
            }
        ]

    @pytest.mark.parametrize("empty", [0, None])
    def test_an_empty_side_is_left_out(self, empty: int | None) -> None:
        row = self.row | {"bidPrice": empty, "bidSize": empty}
        (ticker,) = Feed("bitmex", ["book_ticker"])(table("quote", "insert", row))
        assert set(ticker) == {"type", "symbol", "askAmount", "askPrice", "timestamp"}

    def test_partials_are_ignored(self) -> None:
        assert Feed("bitmex", ["book_ticker"]).ignores(table("quote", "partial", self.row))


@pytest.mark.parametrize(
    "raw",
    [
        {"info": "Welcome", "version": "1"},
        {"success": True, "subscribe": "trade:XBTUSD", "request": {}},
        {"table": "chat", "action": "insert", "data": [{"html": "hi"}]},
        {"table": None},
    ],
)
def test_other_messages_are_ignored(raw: dict[str, Any]) -> None:
    feed = Feed("bitmex", ["trade", "book_change", "derivative_ticker", "liquidation"])
    assert feed.ignores(raw)


def test_only_requested_tables_are_handled() -> None:
    assert Feed("bitmex", ["trade"]).ignores(table("orderBookL2", "insert", level(1, price=1)))
