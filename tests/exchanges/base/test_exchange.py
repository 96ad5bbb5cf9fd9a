from collections.abc import Callable, Sequence

import pytest

from tardis_machine import exchanges
from tardis_machine.engine import create, parse_all
from tardis_machine.exchanges import UnsupportedTypeError
from tardis_machine.exchanges.base.channels import (
    ChannelHandlers,
    SharedDecoder,
    keyed,
    named,
    prefixed,
)
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.history.filters import Filter

NOW = 1_709_251_200_000_000
SWITCH = 1_700_000_000_000_000
LATER_SWITCH = 1_710_000_000_000_000
LATEST = 4_000_000_000_000_000


def _example(made: list[tuple[str, MapperContext]]) -> Exchange:
    def makes(what: str) -> Callable[[MapperContext], ChannelHandlers]:
        def make(context: MapperContext) -> ChannelHandlers:
            made.append((what, context))
            return named({})

        return make

    return Exchange(
        name="example",
        types={
            "trade": (
                Era((Channel("old_trades", str.upper),), makes("old"), SWITCH),
                Era((Channel("trades", str.lower),), makes("middle"), LATER_SWITCH),
                Era((Channel("all_trades", str.lower),), makes("new")),
            ),
            "liquidation": (
                Era(
                    (Channel("trades", str.lower), Channel("index", lambda s: s[:3])), makes("any")
                ),
            ),
            "derivative_ticker": (
                Era(
                    (
                        Channel("all", has_symbols=False),
                        Channel("none", has_symbols=False, default_symbols=()),
                        Channel("some", default_symbols=()),
                        Channel("perpetuals", _perpetual, needs_symbols=True),
                    ),
                    makes("any"),
                ),
            ),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
    )


def _perpetual(symbol: str) -> str | None:
    return symbol.removesuffix("-PERP") if symbol.endswith("-PERP") else None


EXAMPLE = _example([])


def test_filters_of_several_types_and_eras_lose_no_symbol() -> None:
    for name in exchanges.names():
        _assert_filters_are_united(exchanges.get(name))


def _assert_filters_are_united(exchange: Exchange) -> None:
    asked = ("BTCUSDT", "ethusdt", "BTC-USD", "tBTCUSD")
    alone: dict[str, set[str] | None] = {}
    for data_type, eras in exchange.types.items():
        for era in eras:
            moment = (era.until or LATEST) - 1
            for wanted in exchange.filters([data_type], asked, moment, moment):
                known = alone.setdefault(wanted.channel, set())
                no_symbols = wanted.symbols is None or known is None
                alone[wanted.channel] = None if no_symbols else known | set(wanted.symbols)
    together = exchange.filters(exchange.data_types(), asked, 0, LATEST)
    found = {each.channel: None if each.symbols is None else set(each.symbols) for each in together}
    assert found == alone, exchange.name
    assert len(together) == len(found)


@pytest.mark.parametrize(
    ("start", "end", "channels"),
    [
        (SWITCH - 60, SWITCH, ["old_trades"]),
        (SWITCH - 60, SWITCH + 60, ["old_trades", "trades"]),
        (SWITCH, SWITCH + 60, ["trades"]),
        (SWITCH, SWITCH, ["trades"]),
        (0, 1 << 62, ["old_trades", "trades", "all_trades"]),
        (LATER_SWITCH, 1 << 62, ["all_trades"]),
    ],
)
def test_filters_are_those_of_the_eras_touched(start: int, end: int, channels: list[str]) -> None:
    assert [f.channel for f in EXAMPLE.filters(["trade"], None, start, end)] == channels


def test_filters_spell_symbols_per_channel_and_name_each_once() -> None:
    assert EXAMPLE.filters(["trade", "liquidation"], ["BtcUsd", "BtcEur"], SWITCH - 1, NOW) == [
        Filter("old_trades", ("BTCUSD", "BTCEUR")),
        Filter("trades", ("btcusd", "btceur")),
        Filter("index", ("Btc", "Btc")),  # the API is asked for each once
    ]


def test_no_symbols_is_not_an_empty_list_of_symbols() -> None:
    assert EXAMPLE.filters(["liquidation"], None, NOW, NOW) == [Filter("trades"), Filter("index")]
    assert EXAMPLE.filters(["liquidation"], [], NOW, NOW) == [
        Filter("trades", ()),
        Filter("index", ()),
    ]


def test_eras_are_the_times_at_which_mappers_change() -> None:
    assert EXAMPLE.era_ends(["trade", "liquidation"]) == (SWITCH, LATER_SWITCH)
    assert EXAMPLE.era_ends(["liquidation"]) == ()


@pytest.mark.parametrize(
    ("created", "live", "era"),
    [
        (SWITCH - 1, False, "old"),
        (SWITCH, False, "middle"),
        (LATER_SWITCH - 1, False, "middle"),
        (LATER_SWITCH, False, "new"),
        (None, False, "new"),
        (SWITCH - 1, True, "new"),
    ],
)
def test_a_mapper_is_made_for_its_era(created: int | None, live: bool, era: str) -> None:
    made: list[tuple[str, MapperContext]] = []
    emitter = create("example", [])
    _example(made).mapper(["trade"], created, emitter, live=live, checks_ids=live)
    assert made == [(era, MapperContext("example", emitter, live, live))]


def test_a_new_mapper_lets_the_emitter_forget() -> None:
    emitter = create("bitmex", parse_all(["derivative_ticker"]))
    emitter.begin("2024-03-01T00:00:00.000000Z")
    for _ in range(2):
        EXAMPLE.mapper(["trade"], None, emitter)
        emitter.derivative_ticker("S", None, last_price=1)
    assert emitter.take().count == 2


@pytest.mark.parametrize(
    ("symbols", "filters"),
    [
        (None, [("all", None), ("none", ()), ("some", ()), ("perpetuals", None)]),
        ([], [("all", None), ("none", ()), ("some", ()), ("perpetuals", ())]),
        (["A"], [("all", None), ("none", ()), ("some", ("A",))]),
        (
            ["A", "B-PERP", "B-PERP"],
            [
                ("all", None),
                ("none", ()),
                ("some", ("A", "B-PERP", "B-PERP")),
                ("perpetuals", ("B", "B")),
            ],
        ),
    ],
)
def test_channels_may_be_odd_about_symbols(
    symbols: list[str] | None, filters: list[tuple[str, tuple[str, ...] | None]]
) -> None:
    asked = EXAMPLE.filters(["derivative_ticker"], symbols, NOW, NOW)
    assert asked == [Filter(channel, its_symbols) for channel, its_symbols in filters]


def test_symbols_pass_as_asked_in_upper_case_and_as_spelled() -> None:
    assert EXAMPLE.allowed(["trade"], None) is None
    assert EXAMPLE.allowed(["trade"], []) is None
    assert EXAMPLE.allowed(["trade"], ["BtcUsd"]) == {"BtcUsd", "BTCUSD", "btcusd"}
    assert EXAMPLE.allowed(["liquidation"], ["BtcUsd"]) == {"BtcUsd", "BTCUSD", "btcusd", "Btc"}


def test_types_of_one_channel_are_emitted_in_the_order_asked_for_and_decoded_once() -> None:
    seen: list[str] = []

    def decode(line: bytes) -> bytes:
        seen.append("decoded")
        return line

    def makes(what: str, *, handles: bool) -> Callable[[MapperContext], ChannelHandlers]:
        def see(_: bytes) -> bool:
            seen.append(what)
            return handles

        return lambda _: named({"x": SharedDecoder(decode, see)})

    exchange = Exchange(
        name="example",
        types={
            "trade": (Era((Channel("x"),), makes("trade", handles=False)),),
            "liquidation": (Era((Channel("x"),), makes("liquidation", handles=True)),),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
    )
    for types in (["trade", "liquidation"], ["liquidation", "trade"], ["trade"]):
        seen.clear()
        handle = exchange.mapper(types, None, create("example", []))
        assert handle(b'{"channel":"x"}') == ("liquidation" in types)
        assert seen == ["decoded", *types]


def test_types_of_one_mapper_may_tell_their_channels_differently() -> None:
    def makes(channel: str) -> Callable[[MapperContext], ChannelHandlers]:
        return lambda context: named({channel: lambda line: True})

    exchange = Exchange(
        name="example",
        types={
            "trade": (Era((Channel("x"),), makes("x")),),
            "liquidation": (
                Era((Channel("y"),), makes("y"), dispatch=prefixed(b'{"topic":"', "topic")),
            ),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
    )
    handle = exchange.mapper(["trade", "liquidation"], None, create("example", []))
    assert handle(b'{"channel":"x"}')
    assert handle(b'{"topic":"y"}')
    assert not handle(b'{"channel":"y"}')
    assert not handle(b'{"topic":"x"}')


def test_a_line_reaches_every_type_that_wants_it_whichever_way_it_is_told() -> None:
    taken: list[str] = []

    def makes(what: str) -> Callable[[MapperContext], ChannelHandlers]:
        def take(_: bytes) -> bool:
            taken.append(what)
            return True

        return lambda context: named({"x": take})

    exchange = Exchange(
        name="example",
        types={
            "trade": (Era((Channel("x"),), makes("trade")),),
            "liquidation": (Era((Channel("x"),), makes("liquidation"), dispatch=keyed("channel")),),
        },
        dispatch=prefixed(b'{"channel":"', "channel"),
    )
    handle = exchange.mapper(["trade", "liquidation"], None, create("example", []))
    assert handle(b'{"channel":"x"}')
    assert taken == ["trade", "liquidation"]


def test_a_type_that_the_exchange_lacks_says_what_it_has() -> None:
    with pytest.raises(UnsupportedTypeError, match="bitmex has no option_summary; it has: trade,"):
        exchanges.get("bitmex").filters(["option_summary"], None, NOW, NOW)
    with pytest.raises(UnsupportedTypeError):
        exchanges.get("bitmex").mapper(["quote"], None, create("bitmex", []))


@pytest.mark.parametrize(
    ("exchange", "data_type", "channels"),
    [
        ("bitmex", "trade", ["trade"]),
        ("bitmex", "book_change", ["orderBookL2"]),
        ("bitmex", "derivative_ticker", ["instrument"]),
        ("bitmex", "liquidation", ["liquidation"]),
        ("bitmex", "book_ticker", ["quote"]),
        ("deribit", "trade", ["trades"]),
        ("deribit", "book_change", ["book"]),
        ("deribit", "derivative_ticker", ["ticker"]),
        ("deribit", "option_summary", ["ticker"]),
        ("deribit", "liquidation", ["trades"]),
        ("deribit", "book_ticker", ["ticker"]),
        ("binance-futures", "trade", ["trade"]),
        ("binance-futures", "book_change", ["depth", "depthSnapshot"]),
        ("binance-futures", "derivative_ticker", ["markPrice", "ticker", "openInterest"]),
        ("binance-futures", "liquidation", ["forceOrder"]),
        ("binance-futures", "book_ticker", ["bookTicker"]),
    ],
)
def test_channels_of_each_type(exchange: str, data_type: str, channels: Sequence[str]) -> None:
    asked = exchanges.get(exchange).filters([data_type], ["AbC-1"], NOW, NOW)
    symbol = "abc-1" if exchange == "binance-futures" else "ABC-1"
    assert asked == [Filter(channel, (symbol,)) for channel in channels]


def test_each_exchange_has_these_types_and_no_others() -> None:
    common = {"trade", "book_change", "derivative_ticker", "liquidation", "book_ticker"}
    assert set(exchanges.get("bitmex").data_types()) == common
    assert set(exchanges.get("binance-futures").data_types()) == common
    assert set(exchanges.get("deribit").data_types()) == common | {"option_summary"}
