import pytest
from msgspec import UNSET, UnsetType

from tardis_machine.exchanges import MapperError
from tardis_machine.exchanges.base import fields
from tardis_machine.exchanges.base.fields import JsonNumber


@pytest.mark.parametrize(
    ("value", "optional", "filled", "nonzero"),
    [
        (UNSET, None, None, None),
        (None, 0, None, None),
        ("", 0, None, None),
        (0, 0, 0, None),
        ("0", "0", "0", None),
        ("0.000", "0.000", "0.000", None),
        ("1.5", "1.5", "1.5", "1.5"),
        (-1.5, -1.5, -1.5, -1.5),
        ("--", "--", "--", None),
        ("NaN", "NaN", "NaN", None),
        ("-Infinity", "-Infinity", "-Infinity", None),
    ],
)
def test_what_is_absent_becomes_zero_or_nothing(
    value: JsonNumber, optional: object, filled: object, nonzero: object
) -> None:
    assert fields.number_if_sent(value) == optional
    assert fields.number_if_not_empty(value) == filled
    assert fields.number_if_nonzero(value) == nonzero


def test_a_required_field_must_be_there() -> None:
    assert fields.number_or_error(None, "trades", "px") == 0
    assert fields.number_or_error("1", "trades", "px") == "1"
    with pytest.raises(MapperError, match="trades: no px"):
        fields.number_or_error(UNSET, "trades", "px")


@pytest.mark.parametrize("value", [UNSET, None, ""])
def test_a_message_without_a_time_is_malformed_but_a_ticker_keeps_the_last(
    value: JsonNumber,
) -> None:
    with pytest.raises(MapperError, match="trades: no time in ts"):
        fields.time(value, "trades", "ts")
    assert fields.ticker_time(value) == 0


def test_a_message_without_a_symbol_is_malformed() -> None:
    assert fields.symbol("A", "trades") == "A"
    assert fields.symbol("", "trades") == ""
    with pytest.raises(MapperError, match="trades: no symbol"):
        fields.symbol(None, "trades")


def test_times_may_be_text_or_have_a_fraction() -> None:
    assert fields.time("1709251200000", "trades", "ts") == 1_709_251_200_000
    assert fields.ticker_time(1_709_251_200_000.7) == 1_709_251_200_000


@pytest.mark.parametrize(
    ("value", "text"),
    [(UNSET, "undefined"), (None, "null"), ("a", "a"), (2**64, str(2**64)), (1e22, "1e+22")],
)
def test_ids_print_as_clients_know_them(value: str | float | None, text: str) -> None:
    assert fields.text(value) == text


def test_sides() -> None:
    assert [fields.side(each, "Buy") for each in ("Buy", "Sell", None)] == ["buy", "sell", "sell"]
    assert [fields.side_unless_sell(each, "S") for each in ("B", "S", None)] == [
        "buy",
        "sell",
        "buy",
    ]
    sides = [fields.side_or_unknown(each, "b", "s") for each in ("b", "s", "", UNSET)]
    assert sides == ["buy", "sell", "unknown", "unknown"]


def test_the_best_level_may_be_missing() -> None:
    assert fields.best(None, "bbo") == fields.best([], "bbo") == (None, None)
    assert fields.best([["1", None, 7], ["2", "3"]], "bbo") == ("1", 0)
    with pytest.raises(MapperError, match="bbo: a level without price and amount"):
        fields.best([["1"]], "bbo")


@pytest.mark.parametrize("value", [UNSET, None, ""])
def test_a_time_that_is_text_has_to_be_there(value: str | UnsetType | None) -> None:
    with pytest.raises(MapperError, match="trades: no time in created"):
        fields.time_text(value, "trades", "created")
    assert fields.time_text("2024-03-01T00:00:00Z", "trades", "created") == "2024-03-01T00:00:00Z"
