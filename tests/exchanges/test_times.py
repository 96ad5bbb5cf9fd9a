import pytest

from tardis_machine.exchanges.times import is_later, milliseconds, to_millisecond


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00.001Z", 1),
        ("2024-03-01T00:00:00Z", 1_709_251_200_000),
        ("2024-03-01T00:00:00.5Z", 1_709_251_200_500),
        ("2024-03-01T00:00:00.123999Z", 1_709_251_200_123),
        ("2024-03-01T00:00:00.123999999Z", 1_709_251_200_123),
        ("2024-03-01T02:00:00.123+02:00", 1_709_251_200_123),
        ("2024-03-01T00:00:00.123", 1_709_251_200_123),
        ("2024-03-01", 1_709_251_200_000),
    ],
)
def test_text_is_cut_to_milliseconds(text: str, expected: int) -> None:
    assert milliseconds(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2024-13-01T00:00:00.000Z"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        milliseconds(text)


def test_text_of_three_digits_is_left_as_it_is() -> None:
    assert to_millisecond("2024-03-01T00:00:00.123Z") == "2024-03-01T00:00:00.123Z"
    assert to_millisecond("2024-03-01T00:00:00.123456Z") == 1_709_251_200_123


def test_order_does_not_depend_on_the_number_of_digits() -> None:
    assert is_later("2024-03-01T00:00:00.002Z", "2024-03-01T00:00:00.001Z")
    assert not is_later("2024-03-01T00:00:00.001Z", "2024-03-01T00:00:00.002Z")
    assert is_later("2024-03-01T00:00:00.001Z", "2024-03-01T00:00:00Z")
    assert not is_later("2024-03-01T00:00:00Z", "2024-03-01T00:00:00.001Z")
