import pytest

from tardis_machine.messages import times
from tardis_machine.messages.times import (
    cut_ms,
    is_before_1970,
    is_later,
    nanos_ms,
    nanos_us,
    parse_ms,
    parse_us,
    seconds_ms,
    seconds_us,
)


def test_prints_three_or_six_digits() -> None:
    assert times.iso_ms(1_709_251_200_007) == "2024-03-01T00:00:00.007Z"
    assert times.iso_us(1_709_251_200_007_089) == "2024-03-01T00:00:00.007089Z"


def test_reads_what_it_prints() -> None:
    assert times.ms_of("2024-03-01T00:00:00.007Z") == 1_709_251_200_007
    assert times.ms_of("2024-03-01T00:00:00.007999Z") == 1_709_251_200_007
    assert times.us_of("2024-03-01T00:00:00.007089Z") == 1_709_251_200_007_089
    assert times.us_of("2024-03-01T00:00:00.007Z") == 1_709_251_200_007_000


def test_text_passes_as_it_is() -> None:
    for text in ("2024-03-01T00:00:00.007Z", "2024-03-01T00:00:00.007089Z"):
        assert times.text_of(text) == text


@pytest.mark.parametrize(
    "time",
    [
        0,
        -1,
        10**18,
        "",
        "2024-03-01",
        "2024-03-01T00:00:00Z",
        "2024-13-01T00:00:00.000Z",
        "2024-03-01T00:00:00.00xZ",
        "2024-03-01T00:00:00.000+",
        "2024-03-01T00:00:00.00000Z",
        '2024-03-01T00:00:00.0"0000Z',
    ],
)
def test_refuses_what_is_no_time(time: int | str) -> None:
    times.text_of("2024-03-01T00:00:00.000Z")
    with pytest.raises(ValueError, match="not"):
        times.text_of(time)


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
    assert parse_ms(text) == expected


@pytest.mark.parametrize("text", ["", "yesterday", "2024-13-01T00:00:00.000Z"])
def test_what_is_no_time_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_ms(text)


def test_text_of_three_digits_is_left_as_it_is() -> None:
    assert cut_ms("2024-03-01T00:00:00.123Z") == "2024-03-01T00:00:00.123Z"
    assert cut_ms("2024-03-01T00:00:00.123456Z") == 1_709_251_200_123


def test_order_does_not_depend_on_the_number_of_digits() -> None:
    assert is_later("2024-03-01T00:00:00.002Z", "2024-03-01T00:00:00.001Z")
    assert not is_later("2024-03-01T00:00:00.001Z", "2024-03-01T00:00:00.002Z")
    assert is_later("2024-03-01T00:00:00.001Z", "2024-03-01T00:00:00Z")
    assert not is_later("2024-03-01T00:00:00Z", "2024-03-01T00:00:00.001Z")


def test_times_before_1970_are_told_from_others_and_from_what_is_none() -> None:
    for text in ("0001-01-01T00:00:00.000000Z", "0001-01-01T00:00:00Z", "1969-12-31T23:59:59.999Z"):
        assert is_before_1970(text)
    assert not is_before_1970("1970-01-01T00:00:00.000Z")
    assert not is_before_1970("2024-03-01T00:00:00.123456Z")
    with pytest.raises(ValueError, match="0001"):
        is_before_1970("0001")


def test_an_int_tells_by_its_size_what_it_counts() -> None:
    assert times.text_of(1_709_251_200_007) == "2024-03-01T00:00:00.007Z"
    assert times.text_of(1_709_251_200_007_000) == "2024-03-01T00:00:00.007000Z"
    assert times.ms_of(1_709_251_200_007_999) == times.ms_of(1_709_251_200_007)


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("2024-03-01T00:00:00.123456Z", 1_709_251_200_123_456),
        ("2024-03-01T00:00:00.1234567Z", 1_709_251_200_123_456),
        ("2024-03-01T00:00:00.123456789Z", 1_709_251_200_123_456),
        ("2024-03-01T00:00:00.123456+00:00", 1_709_251_200_123_456),
        ("2024-03-01T00:00:00.12345Z", 1_709_251_200_123_000),
        ("2024-03-01T00:00:00.123Z", 1_709_251_200_123_000),
        ("2024-03-01T00:00:00Z", 1_709_251_200_000_000),
    ],
)
def test_microseconds_are_kept_of_texts_of_some_lengths(text: str, us: int) -> None:
    assert parse_us(text) == us


def test_microseconds_of_any_time_print_six_digits() -> None:
    for us in (1, 10**14 - 1, 10**14, 1_709_251_200_000_000):
        assert times.text_of(times.micros(us)) == times.iso_us(us)
    assert times.text_of(seconds_us("21322")) == "1970-01-01T05:55:22.000000Z"


def test_seconds_are_cut() -> None:
    assert seconds_ms("1709251200.1239") == 1_709_251_200_123
    assert seconds_us(1709251200.123456) == 1_709_251_200_123_456


@pytest.mark.parametrize("seconds", ["", "x", "nan", "1e400", "-1", 0, float("inf"), 1e300])
def test_seconds_that_are_no_time_are_refused(seconds: str | float) -> None:
    with pytest.raises(ValueError, match=r"."):
        times.text_of(seconds_us(seconds))
    with pytest.raises(ValueError, match=r"."):
        times.text_of(seconds_ms(seconds))


def test_nanoseconds_are_rounded_to_a_double_before_they_are_cut() -> None:
    assert nanos_ms(1_709_251_200_002_000_000) == 1_709_251_200_001
    assert nanos_us(1_786_344_162_254_963_888) == 1_786_344_162_254_964
    for nanoseconds in (10**400, float("inf")):
        with pytest.raises(ValueError, match="nanoseconds"):
            nanos_us(nanoseconds)


def test_years_are_padded_and_bounded() -> None:
    assert times.SECOND_TEXTS[-62_135_596_800] == "0001-01-01T00:00:00."
    assert times.SECONDS["0001-01-01T00:00:00."] == -62_135_596_800
    with pytest.raises(ValueError, match="9999"):
        times.SECOND_TEXTS[253_402_300_800]


@pytest.mark.parametrize("second", ["2024-03-01 00:00:00.", "2024-W09-5T00:00:00.", "2024-03-01T0"])
def test_only_what_would_be_printed_is_a_second(second: str) -> None:
    with pytest.raises(ValueError, match="not a time such as"):
        times.SECONDS[second]
