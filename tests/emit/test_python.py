import msgspec
import pytest

from tardis_machine.emit import Emitter, objects, parse_all, positions

LOCAL = "2024-03-01T00:00:00.123456Z"
TIME = "2024-03-01T00:00:00.120Z"
MS = 1_709_251_200_120


def _emitter(*names: str) -> Emitter:
    emitter = Emitter("bitmex", parse_all(names))
    emitter.begin(LOCAL)
    return emitter


def _one(emitter: Emitter) -> str:
    taken = emitter.take()
    assert taken.count == 1
    assert taken.data.endswith(b"\n")
    return taken.data.decode()[:-1]


def test_trade() -> None:
    emitter = _emitter("trade")
    emitter.trade("XBTUSD", "a-1", "61130.10", 100, "buy", MS)
    assert _one(emitter) == (
        '{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","id":"a-1","price":61130.1,'
        f'"amount":100,"side":"buy","timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
    )


def test_an_absent_id_is_left_out_and_text_is_escaped() -> None:
    emitter = _emitter("trade")
    emitter.trade('A"\\ü', None, 1, 2, "unknown", TIME)
    assert _one(emitter).startswith(
        '{"type":"trade","symbol":"A\\"\\\\ü","exchange":"bitmex","price":1'
    )


@pytest.mark.parametrize("side", ["bids", "asks"])
def test_book_change_takes_levels_however_they_are_written(side: str) -> None:
    emitter = _emitter("book_change")
    raw = {
        "strings": (msgspec.Raw(b'[["1.50","2.0"],["1.4","0"]]'), None),
        "numbers": (msgspec.Raw(b"[[1.5,2.0,7],[1.40,0,8]]"), None),
        "pairs": ([("1.5", 2), (1.4, "0.000")], None),
        "objects": (
            msgspec.Raw(b'[{"p":"1.50","q":2},{"p":1.4,"q":"0"}]'),
            objects("p", "q"),
        ),
        "positions": (msgspec.Raw(b'[["x",2,"1.50"],["y",0,1.4]]'), positions(2, 1)),
    }
    expected = '[{"price":1.5,"amount":2},{"price":1.4,"amount":0}]'
    for levels, layout in raw.values():
        bids, asks = (levels, []) if side == "bids" else ([], levels)
        if layout is None:
            emitter.book_change("S", False, bids, asks, MS)
        else:
            emitter.book_change("S", False, bids, asks, MS, layout)
        printed = (expected, "[]") if side == "bids" else ("[]", expected)
        assert _one(emitter) == (
            '{"type":"book_change","symbol":"S","exchange":"bitmex","isSnapshot":false,'
            f'"bids":{printed[0]},"asks":{printed[1]},'
            f'"timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
        )


@pytest.mark.parametrize(
    "levels",
    [b"7", b'"x"', b"[7]", b'[["1"]]', b"[[]]", b'[["1",null]]', b'[["1",[]]]', b'[{"p":1}]'],
)
def test_malformed_levels_are_an_error_of_the_message(levels: bytes) -> None:
    emitter = _emitter("book_change", "quote")
    raw = msgspec.Raw(levels)
    with pytest.raises((ValueError, msgspec.ValidationError), match=r"."):
        emitter.book_change("S", True, raw, [], MS)
    with pytest.raises((ValueError, TypeError, msgspec.ValidationError), match=r"."):
        emitter.book_change("S", True, raw, [], MS, objects("p", "q"))
    with pytest.raises((ValueError, TypeError, msgspec.ValidationError), match=r"."):
        emitter.book_change("S", True, raw, [], MS, positions(0, 1))
    assert emitter.take().count == 0


def test_tickers_leave_out_what_is_absent() -> None:
    emitter = _emitter("derivative_ticker", "book_ticker")
    emitter.derivative_ticker("S", MS, last_price="1.0", funding_timestamp=MS, mark_price=1e-7)
    assert _one(emitter) == (
        '{"type":"derivative_ticker","symbol":"S","exchange":"bitmex","lastPrice":1,'
        f'"fundingTimestamp":"{TIME}","markPrice":1e-7,"timestamp":"{TIME}",'
        f'"localTimestamp":"{LOCAL}"}}'
    )
    emitter.book_ticker("S", 0, 2, None, "3.10", MS)
    assert _one(emitter) == (
        '{"type":"book_ticker","symbol":"S","exchange":"bitmex","askAmount":0,"askPrice":2,'
        f'"bidAmount":3.1,"timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
    )


def test_liquidation_and_option_summary() -> None:
    emitter = _emitter("liquidation", "option_summary")
    emitter.liquidation("S", "7", 1, 2, "sell", MS)
    assert _one(emitter) == (
        '{"type":"liquidation","symbol":"S","exchange":"bitmex","id":"7","price":1,"amount":2,'
        f'"side":"sell","timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
    )
    emitter.option_summary(
        "S",
        MS,
        option_type="call",
        strike_price=60000,
        expiration_date=MS,
        best_bid_price=0.05,
        mark_iv="55.10",
        rho=-0.0,
        underlying_index="SYN",
    )
    assert _one(emitter) == (
        '{"type":"option_summary","symbol":"S","exchange":"bitmex","optionType":"call",'
        f'"strikePrice":60000,"expirationDate":"{TIME}","bestBidPrice":0.05,"markIV":55.1,'
        f'"rho":0,"underlyingIndex":"SYN","timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
    )


def test_disconnect_and_error() -> None:
    emitter = _emitter("trade")
    emitter.disconnect()
    assert _one(emitter) == (
        f'{{"type":"disconnect","exchange":"bitmex","localTimestamp":"{LOCAL}"}}'
    )
    emitter.disconnect(["A", "B"])
    assert _one(emitter).endswith(f'"localTimestamp":"{LOCAL}","symbols":["A","B"]}}')
    emitter.error("no\nroute", 3)
    assert _one(emitter) == (
        f'{{"type":"error","exchange":"bitmex","localTimestamp":"{LOCAL}",'
        '"details":"no\\nroute","subSequentErrorsCount":3}'
    )


def test_only_what_was_asked_for_is_sent() -> None:
    emitter = _emitter("quote", "trade_bar_1ticks")
    emitter.trade("S", None, 1, 2, "buy", MS)
    emitter.book_change("S", True, [(1, 1)], [], MS)
    emitter.derivative_ticker("S", MS, last_price=1)
    emitter.book_ticker("S", 1, 1, 1, 1, MS)
    emitter.liquidation("S", None, 1, 1, "buy", MS)
    names = [msgspec.json.decode(line)["name"] for line in emitter.take().data.splitlines()]
    assert names == ["trade_bar_1ticks", "quote"]


def test_a_merged_stream_sends_what_its_exchange_was_asked_for() -> None:
    emitter = Emitter("bitmex", parse_all(["trade_bar_1ticks"]), sent=["trade"])
    emitter.begin(LOCAL)
    emitter.trade("S", None, 1, 2, "buy", MS)
    types = [msgspec.json.decode(line)["type"] for line in emitter.take().data.splitlines()]
    assert types == ["trade", "trade_bar"]


def test_only_allowed_symbols_pass() -> None:
    emitter = _emitter("trade", "book_change", "quote", "derivative_ticker", "book_ticker")
    emitter.allow(frozenset({"A"}))
    for symbol in ("A", "B"):
        emitter.trade(symbol, None, 1, 2, "buy", MS)
        emitter.book_change(symbol, True, [(1, 1)], [], MS)
        emitter.derivative_ticker(symbol, MS, last_price=1)
        emitter.book_ticker(symbol, 1, 1, 1, 1, MS)
    messages = [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]
    assert [message["symbol"] for message in messages] == ["A"] * 5


def test_computables_are_kept_per_symbol_and_dropped_by_a_reset() -> None:
    emitter = _emitter("trade_bar_2ticks", "quote")
    emitter.trade("A", None, 1, 1, "buy", MS)
    emitter.trade("B", None, 5, 1, "buy", MS)
    emitter.book_change("A", True, [(1, 1)], [(2, 1)], MS)
    assert emitter.take().count == 1
    emitter.reset()
    emitter.trade("A", None, 3, 1, "sell", MS)
    emitter.book_change("A", False, [(1, 2)], [], MS)
    assert emitter.take().count == 0
    assert emitter.ignored_changes == 1
    emitter.trade("A", None, 4, 1, "sell", MS)
    assert msgspec.json.decode(emitter.take().data)["open"] == 3


@pytest.mark.parametrize("time", [0, -5, "yesterday", 10**18])
def test_a_time_that_is_none_is_an_error(time: int | str) -> None:
    emitter = _emitter("trade")
    with pytest.raises(ValueError, match="not"):
        emitter.trade("S", None, 1, 2, "buy", time)
    assert emitter.take().count == 0
