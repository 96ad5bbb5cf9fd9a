from typing import Any

import pytest

from tests.exchanges.feed import Feed

MS = 1_709_251_200_500
TIME = "2024-03-01T00:00:00.500Z"


def note(channel: str, data: Any) -> dict[str, Any]:
    return {
        "jsonrpc": "2.0",
        "method": "subscription",
        "params": {"channel": channel, "data": data},
    }


def trade(**more: Any) -> dict[str, Any]:
    return {
        "trade_seq": 1,
        "trade_id": "00042",
        "timestamp": MS,
        "tick_direction": 0,
        "price": 62000.5,
        "instrument_name": "BTC-PERPETUAL",
        "direction": "buy",
        "amount": 10,
        **more,
    }


def trades(*rows: dict[str, Any]) -> dict[str, Any]:
    return note("trades.BTC-PERPETUAL.raw", list(rows))


class TestTrades:
    def test_each_item_is_a_trade(self) -> None:
        first, second = Feed("deribit", ["trade"])(trades(trade(), trade(direction="sell")))
        assert first == {
            "type": "trade",
            "symbol": "BTC-PERPETUAL",
            "id": "00042",
            "price": 62000.5,
            "amount": 10,
            "side": "buy",
            "timestamp": TIME,
        }
        assert second["side"] == "sell"

    def test_no_items_are_no_trades(self) -> None:
        assert Feed("deribit", ["trade"])(trades()) == []

    def test_symbols_are_upper_case(self) -> None:
        row = trade(instrument_name="XRP_USDC-9MAR24-0d52-C")
        (only,) = Feed("deribit", ["trade"])(trades(row))
        assert only["symbol"] == "XRP_USDC-9MAR24-0D52-C"

    @pytest.mark.parametrize("side", [None, "", "Buy", 'x"'])
    def test_a_side_that_is_none_is_malformed(self, side: str | None) -> None:
        with pytest.raises(ValueError, match="direction"):
            Feed("deribit", ["trade"])(trades(trade(direction=side)))


class TestLiquidations:
    @pytest.mark.parametrize(
        ("liquidated", "taker", "side"),
        [
            ("T", "buy", "buy"),
            ("T", "sell", "sell"),
            ("M", "buy", "sell"),
            ("M", "sell", "buy"),
            ("MT", "buy", "sell"),
            ("MT", "sell", "buy"),
        ],
    )
    def test_the_side_is_that_of_whom_was_liquidated(
        self, liquidated: str, taker: str, side: str
    ) -> None:
        row = trade(liquidation=liquidated, direction=taker)
        (only,) = Feed("deribit", ["liquidation"])(trades(row))
        assert only == {
            "type": "liquidation",
            "symbol": "BTC-PERPETUAL",
            "id": "00042",
            "price": 62000.5,
            "amount": 10,
            "side": side,
            "timestamp": TIME,
        }

    def test_trades_of_their_own_will_are_none(self) -> None:
        assert Feed("deribit", ["liquidation"])(trades(trade())) == []

    @pytest.mark.parametrize("types", [["trade", "liquidation"], ["liquidation", "trade"]])
    def test_types_of_one_message_come_in_the_order_requested(self, types: list[str]) -> None:
        messages = Feed("deribit", types)(trades(trade(liquidation="T"), trade()))
        kinds = [message["type"] for message in messages]
        assert kinds == sorted(kinds, key=types.index)
        assert len(kinds) == 3


class TestBook:
    def book(self, **more: Any) -> dict[str, Any]:
        data = {
            "timestamp": MS,
            "instrument_name": "BTC-PERPETUAL",
            "change_id": 8,
            "bids": [["new", 61999.5, 20.0]],
            "asks": [["change", 62000, 10], ["delete", 62000.5, 0.7]],
            **more,
        }
        return note("book.BTC-PERPETUAL.raw", data)

    def test_deleted_levels_have_amount_zero_whatever_they_carry(self) -> None:
        (change,) = Feed("deribit", ["book_change"])(self.book(prev_change_id=7))
        assert change == {
            "type": "book_change",
            "symbol": "BTC-PERPETUAL",
            "isSnapshot": False,
            "bids": [{"price": 61999.5, "amount": 20}],
            "asks": [{"price": 62000, "amount": 10}, {"price": 62000.5, "amount": 0}],
            "timestamp": TIME,
        }

    @pytest.mark.parametrize(
        ("more", "is_snapshot"),
        [
            ({}, True),
            ({"prev_change_id": 0}, True),
            ({"prev_change_id": 0, "type": "change"}, True),
            ({"prev_change_id": 7, "type": "change"}, False),
            ({"prev_change_id": 7, "type": "snapshot"}, True),
            ({"prev_change_id": 7}, False),
        ],
    )
    def test_what_a_snapshot_is(self, more: dict[str, Any], is_snapshot: bool) -> None:
        (change,) = Feed("deribit", ["book_change"])(self.book(**more))
        assert change["isSnapshot"] is is_snapshot


def ticker(name: str = "BTC-PERPETUAL", **more: Any) -> dict[str, Any]:
    data = {
        "timestamp": MS,
        "stats": {"volume": 1, "low": None, "high": 3},
        "open_interest": 500,
        "mark_price": 62000.9,
        "last_price": 62000,
        "instrument_name": name,
        "index_price": 62001.5,
        "best_bid_price": 61999.5,
        "best_bid_amount": 20,
        "best_ask_price": 62000,
        "best_ask_amount": 10,
        **more,
    }
    return note(f"ticker.{name}.raw", data)


GREEKS = {"delta": 0.5, "gamma": 0.001, "vega": 3, "theta": -2.5, "rho": 0}
OPTION = {
    "greeks": GREEKS,
    "mark_iv": 50,
    "bid_iv": 48.5,
    "ask_iv": 51,
    "underlying_price": 62010,
    "underlying_index": "SYN.BTC-9MAR24",
}


class TestDerivativeTicker:
    def test_futures_have_one(self) -> None:
        feed = Feed("deribit", ["derivative_ticker"])
        assert feed(ticker(current_funding=0)) == [
            {
                "type": "derivative_ticker",
                "symbol": "BTC-PERPETUAL",
                "lastPrice": 62000,
                "openInterest": 500,
                "fundingRate": 0,
                "indexPrice": 62001.5,
                "markPrice": 62000.9,
                "timestamp": TIME,
            }
        ]
        assert feed(ticker(timestamp=MS + 1)) == []
        (changed,) = feed(ticker(last_price=None, mark_price=1, timestamp=MS - 1))
        assert changed["lastPrice"] == 62000
        assert changed["timestamp"] == "2024-03-01T00:00:00.501Z"

    def test_options_have_none(self) -> None:
        feed = Feed("deribit", ["derivative_ticker"])
        assert feed.ignores(ticker("BTC-9MAR24-60000-P", **OPTION))

    def test_active_combos_have_one_though_they_have_greeks(self) -> None:
        feed = Feed("deribit", ["derivative_ticker", "option_summary"])
        (only,) = feed(ticker("BTC-STRD-9MAR24-60000", **OPTION, combo_state="active"))
        assert (only["type"], only["symbol"]) == ("derivative_ticker", "BTC-STRD-9MAR24-60000")

    @pytest.mark.parametrize("timestamp", [None, 0])
    def test_without_a_time_it_is_malformed_unless_one_is_known(
        self, timestamp: int | None
    ) -> None:
        feed = Feed("deribit", ["derivative_ticker"])
        with pytest.raises(ValueError, match="no time"):
            feed(ticker(timestamp=timestamp))
        feed(ticker())
        assert feed(ticker(timestamp=timestamp, mark_price=1))[0]["timestamp"] == TIME


class TestOptionSummary:
    def test_options_have_one(self) -> None:
        (summary,) = Feed("deribit", ["option_summary"])(ticker("BTC-9MAR24-60000-P", **OPTION))
        assert summary == {
            "type": "option_summary",
            "symbol": "BTC-9MAR24-60000-P",
            "optionType": "put",
            "strikePrice": 60000,
            "expirationDate": "2024-03-09T08:00:00.000Z",
            "bestBidPrice": 61999.5,
            "bestBidAmount": 20,
            "bestBidIV": 48.5,
            "bestAskPrice": 62000,
            "bestAskAmount": 10,
            "bestAskIV": 51,
            "lastPrice": 62000,
            "openInterest": 500,
            "markPrice": 62000.9,
            "markIV": 50,
            "delta": 0.5,
            "gamma": 0.001,
            "vega": 3,
            "theta": -2.5,
            "rho": 0,
            "underlyingPrice": 62010,
            "underlyingIndex": "SYN.BTC-9MAR24",
            "timestamp": TIME,
        }

    def test_an_empty_side_of_the_book_is_left_out_but_other_zeros_are_not(self) -> None:
        empty = {
            "best_bid_price": 0,
            "best_bid_amount": 0,
            "bid_iv": 0,
            "best_ask_price": None,
            "best_ask_amount": 0,
            "ask_iv": 0,
            "last_price": None,
            "open_interest": 0,
            "mark_price": 0,
        }
        data = OPTION | empty
        (summary,) = Feed("deribit", ["option_summary"])(ticker("BTC-9MAR24-60000-C", **data))
        assert not {key for key in summary if key.startswith("best")} | (
            {"lastPrice"} & set(summary)
        )
        assert (summary["openInterest"], summary["markPrice"]) == (0, 0)
        assert summary["optionType"] == "call"

    def test_fields_that_are_not_there_are_left_out(self) -> None:
        (summary,) = Feed("deribit", ["option_summary"])(
            ticker("BTC-9MAR24-60000-C", greeks={"delta": 0.5}, open_interest=None)
        )
        assert not {"gamma", "markIV", "underlyingIndex", "openInterest"} & set(summary)
        assert summary["delta"] == 0.5

    def test_a_d_in_the_strike_is_its_decimal_point(self) -> None:
        feed = Feed("deribit", ["option_summary", "book_ticker"])
        summary, book_ticker = feed(ticker("XRP_USDC-29MAR24-0d52-C", **OPTION))
        assert summary["strikePrice"] == 0.52
        assert summary["expirationDate"] == "2024-03-29T08:00:00.000Z"
        assert summary["symbol"] == book_ticker["symbol"] == "XRP_USDC-29MAR24-0D52-C"

    def test_null_greeks_are_malformed_for_a_summary_only(self) -> None:
        raw = ticker("BTC-9MAR24-60000-P", **OPTION | {"greeks": None})
        with pytest.raises(ValueError, match="no greeks of BTC-9MAR24-60000-P"):
            Feed("deribit", ["option_summary"])(raw)
        assert len(Feed("deribit", ["book_ticker"])(raw)) == 1

    def test_futures_have_none(self) -> None:
        assert Feed("deribit", ["option_summary"]).ignores(ticker())

    @pytest.mark.parametrize("name", ["BTC-9MAR24", "BTC-STRD-9MAR24-60000", "BTC-99MAR24-6-C", ""])
    def test_a_name_that_is_no_option_is_malformed(self, name: str) -> None:
        with pytest.raises(ValueError, match="not an option's name"):
            Feed("deribit", ["option_summary"])(ticker(name, **OPTION))

    def test_a_strike_that_is_no_number_is_malformed(self) -> None:
        with pytest.raises(ValueError, match="60X00"):
            Feed("deribit", ["option_summary"])(ticker("BTC-9MAR24-60x00-C", **OPTION))


class TestBookTicker:
    def test_every_instrument_has_one(self) -> None:
        feed = Feed("deribit", ["book_ticker"])
        for message in (ticker(), ticker("BTC-9MAR24-60000-C", **OPTION)):
            (only,) = feed(message)
            assert only == {
                "type": "book_ticker",
                "symbol": message["params"]["data"]["instrument_name"],
                "askAmount": 10,
                "askPrice": 62000,
                "bidPrice": 61999.5,
                "bidAmount": 20,
                "timestamp": TIME,
            }

    def test_negative_prices_of_combos_are_kept(self) -> None:
        (only,) = Feed("deribit", ["book_ticker"])(ticker(best_bid_price=-7, best_ask_price=0))
        assert only["bidPrice"] == -7
        assert "askPrice" not in only

    def test_without_a_time_it_is_malformed(self) -> None:
        with pytest.raises(ValueError, match="no timestamp for BTC-PERPETUAL"):
            Feed("deribit", ["book_ticker"])(ticker(timestamp=None))


@pytest.mark.parametrize(
    "raw",
    [
        {"jsonrpc": "2.0", "id": 3, "result": ["trades.BTC-PERPETUAL.raw"]},
        {"jsonrpc": "2.0", "method": "heartbeat", "params": {"type": "test_request"}},
        {"jsonrpc": "2.0", "method": "heartbeat", "params": None},
        note("quote.BTC-PERPETUAL", {"best_bid_price": 1}),
        note("deribit_price_index.btc_usd", {"price": 1}),
    ],
)
def test_other_messages_are_ignored(raw: dict[str, Any]) -> None:
    feed = Feed("deribit", ["trade", "book_change", "derivative_ticker", "book_ticker"])
    assert feed.ignores(raw)
