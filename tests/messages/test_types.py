"""Times are microseconds that remember how many digits their source had."""

import pytest
from hypothesis import given

from tardis_machine.messages import Milliseconds, Time
from tests.support.documents import times


@given(times())
def test_text_survives(text: str) -> None:
    assert str(Time.parse(text)) == text


def test_six_digits_and_three_are_the_same_time_printed_differently() -> None:
    six, three = Time.parse("2024-03-01T00:00:00.123000Z"), Time.parse("2024-03-01T00:00:00.123Z")
    assert six == three == 1_709_251_200_123_000
    assert (six.digits, three.digits) == (6, 3)
    assert isinstance(three, Milliseconds)


def test_years_from_first_to_last() -> None:
    for text in (
        "0001-01-01T00:00:00.000Z",
        "1969-12-31T23:59:59.999999Z",
        "9999-12-31T23:59:59.999Z",
    ):
        assert str(Time.parse(text)) == text


def test_milliseconds_drop_what_they_do_not_print() -> None:
    assert Milliseconds.of(1_234_567) == 1_234_000
    assert Time.of(1_234_567) == 1_234_567


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2024-03-01T00:00:00Z",
        "2024-03-01T00:00:00.12Z",
        "2024-03-01T00:00:00.1234Z",
        "2024-03-01T00:00:00.123456",
        "2024-03-01T00:00:00.123456+",
        "2024-03-01T00:00:00,123Z",
        "2024-03-01 00:00:00.123Z",
        "2024-02-30T00:00:00.123Z",
        "2024-03-01T24:00:00.123Z",
        "2024-03-01T00:00:00.+12Z",
        "2024-03-01T00:00:00.1_3Z",
        "2024-03-01T00:00:00.١٢٣Z",
        "٢٠٢٤-03-01T00:00:00.123Z",
        "2024-03-01T00:00:00.123456789Z",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a time such as"):
        Time.parse(text)
