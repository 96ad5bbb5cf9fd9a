import msgspec
import pytest

from tardis_machine import engine
from tardis_machine.engine import LOCAL_TIME, Emitter, Objects, Positions, create, parse_all
from tardis_machine.engine.choice import KernelChoiceError, kernel

LOCAL = "2024-03-01T00:00:00.123456Z"
TIME = "2024-03-01T00:00:00.120Z"
MS = 1_709_251_200_120


def _emitter(*names: str) -> Emitter:
    emitter = create("bitmex", parse_all(names))
    emitter.begin(LOCAL)
    return emitter


def _one(emitter: Emitter) -> str:
    taken = emitter.take()
    assert taken.count == 1
    assert taken.data.endswith(b"\n")
    return taken.data.decode()[:-1]


def test_what_was_taken_stays_as_it_is() -> None:
    emitter = _emitter("trade")
    held = []
    # Much is handed over where it was written, little is copied; both go on in memory used before.
    for trades in (1, 300, 1, 300, 2000, 2, 1500):
        for number in range(trades):
            emitter.trade("XBTUSD", str(number), trades, number, "buy", MS)
        taken = emitter.take()
        held.append((trades, memoryview(taken.written), taken))
    for trades, view, taken in held:
        lines = [msgspec.json.decode(line) for line in bytes(view).splitlines()]
        assert [(line["price"], line["amount"]) for line in lines] == [
            (trades, number) for number in range(trades)
        ]
        assert bytes(view) == taken.data
        assert taken.ends[-1] == len(view)


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
            Objects("p", "q"),
        ),
        "positions": (msgspec.Raw(b'[["x",2,"1.50"],["y",0,1.4]]'), Positions(2, 1)),
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
    [
        b"7",
        b'"x"',
        b"[7]",
        b"[[[],1]]",
        b'[{"p":{},"q":1}]',
        b'[["1"]]',
        b"[[]]",
        b'[["1",null]]',
        b'[["1",[]]]',
        b'[{"p":1}]',
    ],
)
def test_malformed_levels_are_an_error_of_the_message(levels: bytes) -> None:
    emitter = _emitter("book_change", "quote")
    raw = msgspec.Raw(levels)
    with pytest.raises(ValueError, match=r"."):
        emitter.book_change("S", True, raw, [], MS)
    with pytest.raises(ValueError, match=r"."):
        emitter.book_change("S", True, raw, [], MS, Objects("p", "q"))
    with pytest.raises(ValueError, match=r"."):
        emitter.book_change("S", True, raw, [], MS, Positions(0, 1))
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
    emitter = create("bitmex", parse_all(["trade_bar_1ticks"]), sent=["trade"])
    emitter.begin(LOCAL)
    emitter.trade("S", None, 1, 2, "buy", MS)
    types = [msgspec.json.decode(line)["type"] for line in emitter.take().data.splitlines()]
    assert types == ["trade", "trade_bar"]


def test_only_allowed_symbols_pass() -> None:
    emitter = _emitter(
        *("trade", "book_change", "quote", "derivative_ticker", "book_ticker", "option_summary")
    )
    emitter.allow(frozenset({"A"}))
    for symbol in ("A", "B"):
        emitter.trade(symbol, None, 1, 2, "buy", MS)
        emitter.book_change(symbol, True, [(1, 1)], [], MS)
        emitter.derivative_ticker(symbol, MS, last_price=1)
        emitter.book_ticker(symbol, 1, 1, 1, 1, MS)
        emitter.option_summary(symbol, MS, option_type="put", strike_price=1, expiration_date=MS)
    messages = [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]
    assert [message["symbol"] for message in messages] == ["A"] * 6


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


def test_a_time_prints_as_many_digits_as_it_is_given_with() -> None:
    emitter = _emitter("trade")
    for time, printed in (
        (MS, TIME),
        (MS * 1000, "2024-03-01T00:00:00.120000Z"),
        (MS * 1000 + 7, "2024-03-01T00:00:00.120007Z"),
        ("2024-03-01T00:00:00.120Z", TIME),
        ("2024-03-01T00:00:00.120007Z", "2024-03-01T00:00:00.120007Z"),
        (None, LOCAL),
    ):
        emitter.trade("S", None, 1, 2, "buy", time)
        assert f'"timestamp":"{printed}"' in _one(emitter)


def test_without_a_time_every_message_has_the_local_one() -> None:
    emitter = _emitter("book_change", "book_ticker", "liquidation", "option_summary")
    emitter.book_change("S", True, [], [], None)
    emitter.book_ticker("S", 1, 1, 1, 1, None)
    emitter.liquidation("S", None, 1, 1, "buy", None)
    emitter.option_summary("S", None, option_type="put", strike_price=1, expiration_date=MS)
    for line in emitter.take().data.splitlines():
        assert line.endswith(f'"timestamp":"{LOCAL}","localTimestamp":"{LOCAL}"}}'.encode())


def test_numbers_pass_as_raw_json() -> None:
    emitter = _emitter("trade", "liquidation", "book_ticker", "derivative_ticker")
    emitter.trade("S", None, msgspec.Raw(b'"61130.10"'), msgspec.Raw(b"1E-7"), "buy", MS)
    assert '"price":61130.1,"amount":1e-7,' in _one(emitter)
    emitter.trade("S", None, b'"61130.10"', b"100.0", "buy", MS)
    assert '"price":61130.1,"amount":100,' in _one(emitter)
    emitter.liquidation("S", None, msgspec.Raw(b"1.0"), "2.0", "buy", MS)
    assert '"price":1,"amount":2,' in _one(emitter)
    emitter.book_ticker("S", msgspec.Raw(b"1.0"), b'"2.0"', "3.0", 4.0, MS)
    assert '"askAmount":1,"askPrice":2,"bidPrice":3,"bidAmount":4,' in _one(emitter)
    emitter.derivative_ticker("S", MS, mark_price=msgspec.Raw(b'"1.50"'))
    assert '"markPrice":1.5,' in _one(emitter)
    with pytest.raises(ValueError, match="not"):
        emitter.trade("S", None, msgspec.Raw(b"null"), 1, "buy", MS)
    assert emitter.take().count == 0


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("a", '"a"'),
        ('"', '"\\""'),
        (2**64 + 1, '"18446744073709551617"'),
        (msgspec.Raw(b"18240999426"), "18240999426"),
        (msgspec.Raw(b'"x"'), '"x"'),
    ],
)
def test_an_id_is_never_rounded(given: engine.Id, printed: str) -> None:
    emitter = _emitter("trade", "liquidation")
    emitter.trade("S", given, 1, 2, "buy", MS)
    assert f'"bitmex","id":{printed},"price":1' in _one(emitter)
    emitter.liquidation("S", given, 1, 2, "buy", MS)
    assert f'"bitmex","id":{printed},"price":1' in _one(emitter)


@pytest.mark.parametrize(
    ("keys", "printed"),
    [
        (engine.COMMON_ORDER, '"askAmount":1,"askPrice":2,"bidPrice":3,"bidAmount":4'),
        (engine.BID_FIRST, '"bidPrice":3,"bidAmount":4,"askPrice":2,"askAmount":1'),
        (engine.ASK_FIRST, '"askPrice":2,"askAmount":1,"bidPrice":3,"bidAmount":4'),
        (engine.AMOUNTS_FIRST, '"askAmount":1,"askPrice":2,"bidAmount":4,"bidPrice":3'),
    ],
)
def test_book_tickers_print_their_keys_in_the_order_they_were_told(
    keys: engine.BookTickerKeys, printed: str
) -> None:
    emitter = _emitter("book_ticker")
    emitter.order_book_ticker(keys)
    emitter.book_ticker("S", 1, 2, 3, 4, MS)
    assert f'"exchange":"bitmex",{printed},"timestamp"' in _one(emitter)
    emitter.forget()
    emitter.book_ticker("S", 1, 2, None, None, MS)
    assert '"exchange":"bitmex","askAmount":1,"askPrice":2,"timestamp"' in _one(emitter)


def test_other_keys_are_refused() -> None:
    with pytest.raises(ValueError, match="not the keys"):
        _emitter("book_ticker").order_book_ticker(("a", "b", "c", "d"))


@pytest.mark.parametrize(
    ("layout", "levels"),
    [
        (engine.FLAT, b'["1.50","2.0",1.4,0]'),
        (Positions(2, 1), b'[["x",2,"1.50"],["y",0,1.4]]'),
        (Positions(1, 2, 0, "delete"), b'[["new",1.5,2],["delete",1.4,7]]'),
        (Objects("p", "q"), b'[{"p":"1.50","q":2},{"p":1.4,"q":"0"}]'),
    ],
)
def test_layouts_say_where_price_and_amount_stand(layout: engine.Layout, levels: bytes) -> None:
    emitter = _emitter("book_change")
    for given in (levels, msgspec.Raw(levels), msgspec.json.decode(levels)):
        emitter.book_change("S", False, given, b"[]", MS, layout)
        assert '"bids":[{"price":1.5,"amount":2},{"price":1.4,"amount":0}],"asks":[]' in _one(
            emitter
        )


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (engine.Sided(0, 1, 2, "buy"), b'[["sell","3","1"],["buy","1.50","2"],["buy",1,0]]'),
        (
            engine.Sided("s", "p", "a", "B"),
            b'[{"s":"A","p":3,"a":1},{"s":"B","p":1.5,"a":2},{"s":"B","p":1,"a":"0"}]',
        ),
        (engine.Signed(0, 2, 1), b"[[3,7,-1],[1.5,1,2],[1,0,1]]"),
    ],
)
def test_rows_tell_their_side(layout: engine.RowLayout, rows: bytes) -> None:
    emitter = _emitter("book_change")
    for given in (rows, msgspec.Raw(rows), msgspec.json.decode(rows)):
        emitter.book_rows("S", True, given, MS, layout)
        assert _one(emitter) == (
            '{"type":"book_change","symbol":"S","exchange":"bitmex","isSnapshot":true,'
            '"bids":[{"price":1.5,"amount":2},{"price":1,"amount":0}],'
            '"asks":[{"price":3,"amount":1}],'
            f'"timestamp":"{TIME}","localTimestamp":"{LOCAL}"}}'
        )


@pytest.mark.parametrize(
    ("layout", "rows"),
    [
        (engine.Signed(0, 1), b'[[3,-1.0],["1.5","2"],[1,0]]'),
        (engine.Signed("p", "s"), b'[{"p":3,"s":"-1"},{"p":"1.5","s":2},{"p":1,"s":"0.0"}]'),
        (engine.Signed(0, 2, 1), b"[[3,7,-1],[1.5,1,2],[1,1,0]]"),
    ],
)
def test_an_amount_without_a_sign_removes_from_both_sides(
    layout: engine.RowLayout, rows: bytes
) -> None:
    emitter = _emitter("book_change")
    for given in (rows, msgspec.Raw(rows), msgspec.json.decode(rows)):
        emitter.book_rows("S", False, given, MS, layout)
        assert (
            '"bids":[{"price":1.5,"amount":2},{"price":1,"amount":0}],'
            '"asks":[{"price":3,"amount":1},{"price":1,"amount":0}]' in _one(emitter)
        )


@pytest.mark.parametrize("rows", [b"7", b"[7]", b'[["buy","1"]]', b'[["buy","1",null]]', b"[{}]"])
@pytest.mark.parametrize("layout", [engine.Sided(0, 1, 2, "buy"), engine.Signed(1, 2)])
def test_malformed_rows_are_an_error_of_the_message(rows: bytes, layout: engine.RowLayout) -> None:
    emitter = _emitter("book_change", "quote")
    with pytest.raises(ValueError, match=r"."):
        emitter.book_rows("S", True, rows, MS, layout)
    assert emitter.take().count == 0


TABLE = engine.Keyed(
    rows="data",
    action="action",
    snapshot="partial",
    removal="delete",
    selection="filter",
    symbol="symbol",
    id="id",
    side="side",
    price="price",
    amount="size",
    timestamp="timestamp",
    bid="Buy",
)


def _change(emitter: Emitter, rows: list[dict[str, object]], action: str = "update") -> list[str]:
    """Send a table's rows; gives the sides and the time of each message."""
    emitter.book_table(msgspec.json.encode({"action": action, "data": rows}), TABLE)
    lines = emitter.take().data.decode().splitlines()
    return [line[line.index('"symbol"') + 9 : line.index(',"localTimestamp"')] for line in lines]


def test_a_table_remembers_the_price_of_an_id() -> None:
    emitter = _emitter("book_change")
    row = {"symbol": "S", "id": 7, "side": "Buy", "size": 3}
    assert _change(emitter, [row]) == []
    (full,) = _change(emitter, [{**row, "price": 1.5}], "partial")
    assert '"isSnapshot":true,"bids":[{"price":1.5,"amount":3}],"asks":[]' in full
    assert full.endswith(f'"timestamp":"{LOCAL}"')
    (update,) = _change(emitter, [{**row, "size": 4}])
    assert '"isSnapshot":false,"bids":[{"price":1.5,"amount":4}]' in update
    (removed,) = _change(emitter, [{"symbol": "S", "id": 7, "side": "Buy"}], "delete")
    assert '"bids":[{"price":1.5,"amount":0}]' in removed
    assert _change(emitter, [row]) == []
    _change(emitter, [{**row, "price": 1.5}])
    emitter.forget()
    assert _change(emitter, [row]) == []


@pytest.mark.parametrize("price", [{}, {"price": 1.5}])
def test_table_delete_that_names_an_id_twice_prints_one_removal(price: dict[str, object]) -> None:
    emitter = _emitter("book_change")
    rows = [
        {"symbol": "S", "id": 7, "side": "Buy", "size": 3, "price": 1.5},
        {"symbol": "S", "id": 8, "side": "Sell", "size": 3, "price": 2},
    ]
    _change(emitter, rows, "partial")
    removed = {"symbol": "S", "id": 7, "side": "Buy", **price}
    other = {"symbol": "S", "id": 8, "side": "Sell"}
    again = {**removed, "timestamp": "2024-03-01T00:00:00.300Z"}
    (change,) = _change(emitter, [removed, other, again], "delete")
    assert change.endswith('"timestamp":"2024-03-01T00:00:00.300Z"')
    assert '"bids":[{"price":1.5,"amount":0}],"asks":[{"price":2,"amount":0}]' in change
    assert _change(emitter, [{"symbol": "S", "id": 7, "side": "Buy"}], "delete") == []


def test_a_table_s_snapshot_may_have_several_symbols_or_no_rows() -> None:
    emitter = _emitter("book_change")
    rows = [
        {"symbol": "B", "id": 1, "side": "Buy", "size": 1, "price": 1},
        {"symbol": "A", "id": 2, "side": "Sell", "size": 1, "price": 2},
        {"symbol": "B", "id": 3, "side": "Sell", "size": 1, "price": 3},
    ]
    first, second = _change(emitter, rows, "partial")
    assert first.startswith('"B"')
    assert '"asks":[{"price":3,"amount":1}]' in first
    assert second.startswith('"A"')
    assert _change(emitter, [], "partial") == []
    emitter.book_table(b'{"data":[],"action":"partial","filter":{"symbol":"S"}}', TABLE)
    assert '"symbol":"S","exchange":"bitmex","isSnapshot":true,"bids":[],"asks":[]' in _one(emitter)


def test_a_table_s_change_has_the_latest_time_of_its_rows() -> None:
    emitter = _emitter("book_change")
    row = {"symbol": "S", "id": 7, "side": "Buy", "size": 3, "price": 1}
    times = ["2024-03-01T00:00:00.100Z", "2024-03-01T00:00:00.300999Z", "2024-03-01T00:00:00.200Z"]
    (change,) = _change(emitter, [{**row, "timestamp": each} for each in times])
    assert change.endswith('"timestamp":"2024-03-01T00:00:00.300Z"')


@pytest.mark.parametrize(
    "rows",
    [
        b"7",
        b"[]",
        b"[7]",
        b'[{"id":1,"side":"Buy","size":1,"price":1}]',
        b'[{"symbol":"S","id":1,"side":"Buy","size":1,"price":1,"timestamp":null}]',
        b'[{"symbol":"S","id":1,"side":"Buy","size":1,"price":1,"timestamp":"now"}]',
        b'[{"symbol":"S","id":1,"price":1},{"symbol":"S","id":2,"size":"x","price":1}]',
    ],
)
def test_a_table_s_error_teaches_it_nothing(rows: bytes) -> None:
    emitter = _emitter("book_change", "quote")
    with pytest.raises(ValueError, match=r"."):
        emitter.book_table(b'{"data":%b}' % rows, TABLE)
    assert _change(emitter, [{"symbol": "S", "id": 1, "side": "Buy", "size": 1}]) == []


def test_no_symbol_of_a_table_s_snapshot_is_sent_when_one_is_malformed() -> None:
    emitter = _emitter("book_change", "quote")
    good = {"symbol": "A", "id": 1, "side": "Buy", "size": 1, "price": 1}
    for bad in ({"price": "x"}, {"price": "1e200"}, {"timestamp": "now"}):
        with pytest.raises(ValueError, match=r"."):
            _change(emitter, [good, {**good, "symbol": "B", **bad}], "partial")
        assert emitter.take().count == 0
    _change(emitter, [good])
    assert emitter.ignored_changes == 1


def _tickers(emitter: Emitter) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]


def test_a_derivative_ticker_is_sent_only_when_something_has_changed() -> None:
    emitter = _emitter("derivative_ticker")
    emitter.derivative_ticker("A", MS)
    emitter.derivative_ticker("A", MS, last_price=1.5)
    emitter.derivative_ticker("A", MS, last_price="1.50", mark_price=None)
    emitter.derivative_ticker("A", MS, funding_rate=0)
    emitter.derivative_ticker("B", MS, last_price=1.5)
    assert [(m["symbol"], m["lastPrice"], m.get("fundingRate")) for m in _tickers(emitter)] == [
        ("A", 1.5, None),
        ("A", 1.5, 0),
        ("B", 1.5, None),
    ]
    emitter.forget()
    emitter.derivative_ticker("A", MS, mark_price=2)
    (anew,) = _tickers(emitter)
    assert "lastPrice" not in anew


@pytest.mark.parametrize(
    "field",
    [
        "last_price",
        "open_interest",
        "funding_rate",
        "funding_timestamp",
        "predicted_funding_rate",
        "index_price",
        "mark_price",
    ],
)
def test_every_field_of_a_derivative_ticker_counts_and_is_kept(field: str) -> None:
    emitter = _emitter("derivative_ticker")
    emitter.derivative_ticker("A", MS, **{field: 7_000})
    emitter.derivative_ticker("A", MS, **{field: 7_000})
    emitter.derivative_ticker("A", MS, **{field: 8_000})
    emitter.derivative_ticker("A", MS)
    first, second = _tickers(emitter)
    assert len(first) == 6
    assert first != second


def test_a_derivative_ticker_s_time_never_goes_back() -> None:
    emitter = _emitter("derivative_ticker")
    times = (
        MS,
        MS - 50,
        None,
        0,
        (MS - 1) * 1000,
        MS * 1000 + 7,
        MS + 100,
        "2024-03-01T00:00:00.100Z",
    )
    for price, time in enumerate(times):
        emitter.derivative_ticker("A", time, last_price=price)
    assert [str(message["timestamp"])[20:] for message in _tickers(emitter)] == [
        "120Z",
        "120Z",
        "120Z",
        "120Z",
        "120Z",
        "120007Z",
        "220Z",
        "220Z",
    ]


def test_a_derivative_ticker_s_time_that_no_clock_shows_is_an_error() -> None:
    emitter = _emitter("derivative_ticker")
    with pytest.raises(ValueError, match="not a time"):
        emitter.derivative_ticker("S", 10**40, last_price=1)
    assert emitter.take().count == 0


def test_a_polled_ticker_has_the_local_time_every_time() -> None:
    emitter = _emitter("derivative_ticker")
    for second in range(3):
        emitter.begin(f"2024-03-01T00:00:0{second}.000001Z")
        emitter.derivative_ticker("A", LOCAL_TIME, last_price=second)
    assert [str(message["timestamp"])[17:] for message in _tickers(emitter)] == [
        "00.000001Z",
        "01.000001Z",
        "02.000001Z",
    ]


def test_a_time_that_changes_nothing_is_kept() -> None:
    emitter = _emitter("derivative_ticker")
    emitter.derivative_ticker("A", MS, last_price=1)
    emitter.derivative_ticker("A", MS + 5, last_price=1)
    emitter.derivative_ticker("A", MS + 1, last_price=2)
    assert str(_tickers(emitter)[-1]["timestamp"]).endswith("125Z")


def test_a_derivative_ticker_without_a_time_has_that_of_the_first_one_sent() -> None:
    emitter = _emitter("derivative_ticker")
    emitter.derivative_ticker("A", None)
    emitter.begin("2024-03-01T00:00:08.000000Z")
    emitter.derivative_ticker("A", None, last_price=1)
    emitter.begin("2024-03-01T00:00:09.000000Z")
    emitter.derivative_ticker("A", None, last_price=2)
    first = "2024-03-01T00:00:08.000000Z"
    assert [message["timestamp"] for message in _tickers(emitter)] == [first, first]


def test_a_derivative_ticker_s_first_time_must_not_be_missing() -> None:
    emitter = _emitter("derivative_ticker")
    with pytest.raises(ValueError, match="no time for A"):
        emitter.derivative_ticker("A", 0, last_price=1)
    emitter.derivative_ticker("A", MS, last_price=1)
    with pytest.raises(ValueError, match="not"):
        emitter.derivative_ticker("A", MS + 1, last_price=2, mark_price="x")
    emitter.derivative_ticker("A", MS, last_price=1, mark_price=1)
    assert [str(m["timestamp"])[20:] for m in _tickers(emitter)] == ["120Z", "120Z"]


def test_borders_tell_where_each_local_timestamp_ends() -> None:
    emitter = _emitter("trade")
    stamps = [f"2024-03-01T00:00:00.00000{n}Z" for n in range(5)]
    expected: list[tuple[str, int, int]] = []
    whole = b""
    for stamp, symbols in zip(stamps, (["A", "B"], [], ["ü"], [], ["C"]), strict=True):
        for symbol in symbols:  # equal stamps may begin twice
            emitter.begin(stamp)
            emitter.trade(symbol, None, 1, 2, "buy", MS)
    taken = emitter.take()
    lines = taken.data.splitlines(keepends=True)
    for stamp, count in ((stamps[0], 2), (stamps[2], 3), (stamps[4], 4)):
        whole = b"".join(lines[:count])
        expected.append((stamp, len(whole), count))
    assert list(zip(taken.stamps, taken.ends, taken.counts, strict=True)) == expected
    assert taken.count == 4
    taken = emitter.take()
    assert (taken.data, taken.count) == (b"", 0)
    assert (taken.stamps, taken.ends, taken.counts) == ([], [], [])
    emitter.trade("A", None, 1, 2, "buy", MS)
    assert list(emitter.take().stamps) == [stamps[4]]


@pytest.mark.parametrize("number", ["1e200", 1e200, -1e151, "nan", 10**400])
def test_what_cannot_be_computed_with_changes_nothing(number: float | str) -> None:
    names = ("trade", "book_change", "trade_bar_2ticks", "trade_bar_1s", "quote")
    emitter = _emitter(*names, "book_snapshot_3_grouped0.1_0ms", "quote_100ms")
    emitter.trade("S", None, 1, 1, "buy", MS)
    emitter.book_change("S", True, [(1, 1)], [(2, 1)], MS)
    emitter.take()
    for bad in ((number, 1), (1, number)):
        with pytest.raises(ValueError, match=r"."):
            emitter.trade("S", None, *bad, "buy", MS)
        with pytest.raises(ValueError, match=r"."):
            emitter.book_change("S", False, [(1, 0)], [bad], MS)
        with pytest.raises(ValueError, match=r"."):
            emitter.book_change("S", True, [], [bad], MS + 500)
    assert emitter.take().count == 0
    emitter.trade("S", None, 3, 1, "buy", MS)
    emitter.book_change("S", False, [(0.5, 1)], [], MS)
    bar = msgspec.json.decode(emitter.take().data.splitlines()[1])
    assert (bar["open"], bar["trades"], bar["volume"]) == (1, 2, 2)
    emitter.book_change("S", False, [(1, 2)], [], MS)
    quote = msgspec.json.decode(emitter.take().data.splitlines()[1])
    assert (quote["bids"], quote["asks"]) == (
        [{"price": 1, "amount": 2}],
        [{"price": 2, "amount": 1}],
    )


def test_an_unknown_implementation_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TM_KERNEL", "fortran")
    kernel.cache_clear()
    with pytest.raises(KernelChoiceError, match="TM_KERNEL=fortran: expected auto"):
        create("x", [])
