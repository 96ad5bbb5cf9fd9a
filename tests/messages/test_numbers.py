import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.messages.numbers import Canonical, canonical, of_float, of_text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("61130.0", "61130"),
        ("61130.10", "61130.1"),
        ("0.00002142", "0.00002142"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("0.00000015", "1.5e-7"),
        ("1E-7", "1e-7"),
        ("1e21", "1e+21"),
        ("1e20", "100000000000000000000"),
        ("123456789012345680000", "123456789012345680000"),
        ("12345678901234567890", "12345678901234567000"),
        ("9007199254740993", "9007199254740992"),
        ("0.1234567890123456789", "0.12345678901234568"),
        ("-0", "0"),
        ("-0.50", "-0.5"),
        ("0", "0"),
        ("0.000", "0"),
        ("007.50", "7.5"),
        (".5", "0.5"),
        ("5.", "5"),
        ("100", "100"),
        ("+3", "3"),
        (b"2.50", "2.5"),
        (61130, "61130"),
        (-0.0, "0"),
        (1e-7, "1e-7"),
        (1.25e-10, "1.25e-10"),
        (2**53 + 1, "9007199254740992"),
        (10**21, "1e+21"),
        (0.1 + 0.2, "0.30000000000000004"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_prints_as_javascript_does(number: str | bytes | float, text: str) -> None:
    assert Canonical()[number] == text


@pytest.mark.parametrize(
    "number", ["", "abc", "nan", "Infinity", "1_000", "1.2.3", math.nan, math.inf, "1e999", "²"]
)
def test_refuses_what_is_no_finite_number(number: str | float) -> None:
    with pytest.raises(ValueError, match="not"):
        canonical[number]


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_text_reads_back_as_the_same_double(value: float) -> None:
    text = of_float(value)
    assert float(text) == value
    assert of_text(text) == text
    magnitude = abs(value)
    assert ("e" in text) == (magnitude != 0 and not 1e-6 <= magnitude < 1e21)


@given(st.integers(0, 10**20), st.integers(0, 24), st.booleans())
def test_text_of_decimals_is_that_of_their_double(digits: int, places: int, negative: bool) -> None:
    text = str(digits).rjust(places + 1, "0")
    text = f"{text[:-places]}.{text[-places:]}" if places else text
    text = f"-{text}" if negative else text
    assert of_text(text) == of_float(float(text))


def test_stays_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.messages.numbers._CACHE_SIZE", 10)
    numbers = Canonical()
    for number in range(100):
        assert numbers[number] == str(number)
    assert len(numbers) <= 10
