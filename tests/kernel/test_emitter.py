"""The compiled emitter beside the Python one: the same bytes, whatever mappers pass."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.engine import (
    BID_FIRST,
    COMMON_ORDER,
    FLAT,
    PAIRS,
    Emitter,
    Objects,
    Positions,
    Sided,
    Signed,
)
from tests.kernel.implementations import emitters
from tests.kernel.layouts import LAYOUTS, ROW_LAYOUTS, TABLE
from tests.kernel.numbers import number_texts

DATA_TYPES = (
    "trade",
    "book_change",
    "derivative_ticker",
    "liquidation",
    "option_summary",
    "book_ticker",
    "trade_bar_1s",
    "trade_bar_3ticks",
    "trade_bar_5vol",
    "quote",
    "quote_1s",
    "book_snapshot_3_0ms",
    "book_snapshot_2_500ms",
    "book_snapshot_2_grouped5_0ms",
    "book_snapshot_2_grouped0.1_1s",
)
START = 1_709_251_200_000
SYMBOLS = st.sampled_from(("A", "B", "ü", 'q"'))

# Few prices, so that levels meet; few odd ones, so that messages come through.
prices = st.one_of(
    st.sampled_from(("1", "2", "3.50", 4, 5, 5.5, "0.1", 100, "-1", 0)), st.integers(1, 30)
)
amounts = st.one_of(st.sampled_from((0, 0, "0", "0.000", 1, "2.50", 1e-7)), st.integers(0, 9))
odd_numbers = st.one_of(
    number_texts,
    number_texts.map(str.encode),
    number_texts.map(lambda text: msgspec.Raw(text.encode())),
    number_texts.map(lambda text: msgspec.Raw(b'"%b"' % text.encode())),
    st.integers(-(10**25), 10**25),
    st.floats(),
    st.sampled_from((None, True, [], "nan", "", " 1", "1_0", "٣", 1e200, "1e160")),
)
times = st.one_of(
    st.none(),
    st.integers(START, START + 5000),
    st.integers(START * 1000, START * 1000 + 5_000_000),
    st.integers(0, 5999).map(lambda ms: f"2024-03-01T00:00:0{ms // 1000}.{ms % 1000:03d}Z"),
)
odd_times = st.one_of(
    st.sampled_from(
        (0, -5, 10**30, "", "soon", "2024-03-01T00:00:00.12Z", "1969-12-31T23:59:59.999Z", 10**14)
    ),
    times,
)
odd_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), number_texts, st.floats(-1e9, 1e9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("pqs"), inner, max_size=3)
    ),
    max_leaves=6,
)


def seldom(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.integers(0, 19).flatmap(lambda n: usual if n else odd)


number = seldom(prices, odd_numbers)
amount = seldom(amounts, odd_numbers)
time = seldom(times, odd_times)


def raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@st.composite
def json_levels(draw: st.DrawFn, layout: object) -> object:
    pairs = draw(st.lists(st.tuples(prices, amounts), max_size=4))
    extra = draw(st.lists(odd_json, max_size=2))
    action = st.sampled_from(("new", "delete"))
    side = st.sampled_from(("b", "s"))
    match layout:
        case Objects():
            rows: list[Any] = [{"p": p, "x": extra, "q": q} for p, q in pairs]
        case Positions(price=1):
            rows = [[draw(action), p, q, *extra] for p, q in pairs]
        case Positions():
            rows = [[*extra, p, q] for p, q in pairs]
        case Sided(side="side"):
            rows = [{"q": q, "p": p, "side": draw(side)} for p, q in pairs]
        case Sided():
            rows = [[draw(side), p, q] for p, q in pairs]
        case Signed(count=None):
            rows = [[p, -q if isinstance(q, int) and draw(st.booleans()) else q] for p, q in pairs]
        case Signed():
            rows = [
                [p, draw(st.integers(0, 2)), draw(st.sampled_from((1, -1, "-2.5")))]
                for p, _ in pairs
            ]
        case _ if layout is FLAT:
            rows = [each for pair in pairs for each in pair]
        case _:
            rows = [[p, q, *extra] for p, q in pairs]
    return rows


def _without_raw(pair: tuple[object, object]) -> bool:
    """Pairs that a mapper makes have been decoded."""
    return not any(isinstance(each, msgspec.Raw) for each in pair)


@st.composite
def levels(draw: st.DrawFn, layout: object) -> object:
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return raw(draw(odd_json))
    if kind == 1:
        pairs = st.lists(st.tuples(number, amount).filter(_without_raw), max_size=3)
        return draw(pairs) if layout is PAIRS else []
    rows = draw(json_levels(layout))
    if kind == 2:
        return msgspec.json.format(msgspec.json.encode(rows), indent=1)
    return raw(rows)


@st.composite
def table_messages(draw: st.DrawFn) -> bytes:
    row = st.fixed_dictionaries(
        {
            "symbol": seldom(SYMBOLS, st.sampled_from((None, 5))),
            "id": seldom(st.integers(1, 5), odd_json),
        },
        optional={
            "side": seldom(st.sampled_from(("Buy", "Sell")), st.sampled_from((None, "x\n"))),
            "size": seldom(st.integers(0, 9), odd_json),
            "price": seldom(prices.filter(lambda p: not isinstance(p, str)), odd_json),
            "timestamp": seldom(
                st.sampled_from(("2024-03-01T00:00:00.000Z", "2024-03-01T00:00:01.000Z")),
                st.sampled_from((None, "", "soon", "2024-03-01T00:00:00.123456Z")),
            ),
            "pool": odd_json,
        },
    )
    message = {
        "table": "t",
        "action": draw(st.sampled_from(("partial", "update", "insert", "delete", None))),
        "data": draw(seldom(st.lists(row, max_size=4), odd_json)),
        "filter": draw(st.sampled_from(({"symbol": "A"}, {}, {"symbol": None}, {"account": 1}))),
    }
    return msgspec.json.encode(message)


class Call(NamedTuple):
    """A call with its arguments, to be made of both."""

    method: str
    arguments: tuple[Any, ...] = ()
    named: Mapping[str, Any] = MappingProxyType({})

    def outcome(self, emitter: Emitter) -> str:
        """Tell whether it was refused."""
        try:
            getattr(emitter, self.method)(*self.arguments, **self.named)
        except (ValueError, TypeError):
            return "refused"
        return "done"


METHODS = (
    "begin",
    "trade",
    "liquidation",
    *("book_change",) * 4,
    "book_rows",
    "book_table",
    "book_table",
    "derivative_ticker",
    "book_ticker",
    "order_book_ticker",
    "option_summary",
    "disconnect",
    "error",
    "allow",
    "close_bars",
    "reset",
    "forget",
)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    method = draw(st.sampled_from(METHODS))
    symbol = draw(SYMBOLS)
    at = draw(time)
    match method:
        case "begin":
            return Call(method, (f"2024-03-01T00:00:0{draw(st.integers(0, 9))}.000001Z",))
        case "trade" | "liquidation":
            identity = draw(st.sampled_from((None, "a", 5, msgspec.Raw(b'"r"'), "\n")))
            side = draw(st.sampled_from(("buy", "sell", "unknown")))
            return Call(method, (symbol, identity, draw(number), draw(amount), side, at))
        case "book_change":
            layout = draw(st.sampled_from(LAYOUTS))
            full, bids, asks = draw(st.booleans()), draw(levels(layout)), draw(levels(layout))
            return Call(method, (symbol, full, bids, asks, at, layout))
        case "book_rows":
            kind = draw(st.sampled_from(ROW_LAYOUTS))
            return Call(method, (symbol, draw(st.booleans()), draw(levels(kind)), at, kind))
        case "book_table":
            return Call(method, (draw(table_messages()), TABLE))
        case "derivative_ticker":
            names = ("last_price", "open_interest", "funding_rate", "index_price", "mark_price")
            fields = draw(st.dictionaries(st.sampled_from(names), number))
            return Call(method, (symbol, at), {**fields, "funding_timestamp": draw(time)})
        case "book_ticker":
            numbers = draw(st.tuples(*[st.one_of(st.none(), number)] * 4))
            return Call(method, (symbol, *numbers, at))
        case "order_book_ticker":
            orders = (COMMON_ORDER, BID_FIRST, ("bidPrice",) * 4, ("x",))
            return Call(method, (draw(st.sampled_from(orders)),))
        case "option_summary":
            fields = {
                "option_type": "put",
                "strike_price": draw(number),
                "expiration_date": draw(time.filter(lambda each: each is not None)),
                "delta": draw(number),
                "underlying_index": draw(st.sampled_from((None, "i", "\\"))),
            }
            return Call(method, (symbol, at), fields)
        case "disconnect":
            return Call(method, draw(st.sampled_from(((), (["A", symbol],)))))
        case "error":
            return Call(method, ("é\n", 2))
        case "allow":
            return Call(method, (draw(st.sampled_from((None, frozenset("AB")))),))
        case _:
            return Call(method)


def told(emitter: Emitter) -> tuple[object, ...]:
    taken = emitter.take()
    borders = list(taken.stamps), list(taken.ends), list(taken.counts)
    return taken.data.decode().splitlines(), taken.count, borders, emitter.ignored_changes


@settings(max_examples=400)
@given(st.lists(calls(), max_size=25), st.sets(st.sampled_from(DATA_TYPES), min_size=1))
def test_any_calls(made: list[Call], chosen: set[str]) -> None:
    names = [name for name in DATA_TYPES if name in chosen]
    python, compiled = emitters("ex", names)
    for emitter in (python, compiled):
        emitter.begin("2024-03-01T00:00:00.000000Z")
    for call in made:
        assert call.outcome(compiled) == call.outcome(python), call
    assert told(compiled) == told(python)
