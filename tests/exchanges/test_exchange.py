from collections.abc import Sequence

import pytest

from tardis_machine import exchanges
from tardis_machine.emit import create
from tardis_machine.exchanges import UnsupportedTypeError
from tardis_machine.exchanges.exchange import Channel, Era, Exchange, Handler, Making
from tardis_machine.filters import Filter

NOW = 1_709_251_200_000_000
SWITCH = 1_700_000_000_000_000
LATER_SWITCH = 1_710_000_000_000_000


def _making(makings: list[Making]) -> Exchange:
    def make(making: Making) -> Handler:
        makings.append(making)
        return lambda line: False

    return Exchange(
        name="example",
        types={
            "trade": (
                Era((Channel("old_trades", str.upper),), until=SWITCH, form="old"),
                Era((Channel("trades", str.lower),), until=LATER_SWITCH, form="middle"),
                Era((Channel("all_trades", str.lower),)),
            ),
            "liquidation": (
                Era((Channel("trades", str.lower), Channel("index", lambda s: s[:3]))),
            ),
        },
        make=make,
    )


EXAMPLE = _making([])


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
        Filter("index", ("Btc",)),
    ]


def test_no_symbols_is_not_an_empty_list_of_symbols() -> None:
    assert EXAMPLE.filters(["liquidation"], None, NOW, NOW) == [Filter("trades"), Filter("index")]
    assert EXAMPLE.filters(["liquidation"], [], NOW, NOW) == [
        Filter("trades", ()),
        Filter("index", ()),
    ]


def test_eras_are_the_times_at_which_mappers_change() -> None:
    assert EXAMPLE.eras(["trade", "liquidation"]) == (SWITCH, LATER_SWITCH)
    assert EXAMPLE.eras(["liquidation"]) == ()


@pytest.mark.parametrize(
    ("created", "live", "form"),
    [
        (SWITCH - 1, False, "old"),
        (SWITCH, False, "middle"),
        (LATER_SWITCH - 1, False, "middle"),
        (LATER_SWITCH, False, ""),
        (None, False, ""),
        (SWITCH - 1, True, ""),
    ],
)
def test_a_mapper_is_made_for_its_era(created: int | None, live: bool, form: str) -> None:
    makings: list[Making] = []
    _making(makings).mapper(["trade"], None, created, create("example", []), live=live)
    (making,) = makings
    assert (making.exchange, making.forms, making.live) == ("example", {"trade": form}, live)


def test_a_type_that_the_exchange_lacks_says_what_it_has() -> None:
    with pytest.raises(UnsupportedTypeError, match="bitmex has no option_summary; it has: trade,"):
        exchanges.get("bitmex").filters(["option_summary"], None, NOW, NOW)
    with pytest.raises(UnsupportedTypeError):
        exchanges.get("bitmex").mapper(["quote"], None, None, create("bitmex", []))


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
