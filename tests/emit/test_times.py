import pytest

from tardis_machine.emit import times


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
        10**15,
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
