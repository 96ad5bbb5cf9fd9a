import _strptime
import calendar

import pytest

from tardis_machine.exchanges import MapperError
from tardis_machine.exchanges.base.option_names import Option, Options, expiration


def _read(name: str) -> Option:
    base, expiry, strike = name.split("-")
    return Option(base, "put", strike, expiration(expiry, "%y%m%d"))


def test_a_name_is_read_once() -> None:
    names: list[str] = []

    def read(name: str) -> Option:
        names.append(name)
        return _read(name)

    options = Options("ticker", read)
    for _ in range(2):
        assert options["BTC-240301-60000"] == Option("BTC", "put", "60000", 1_709_280_000_000)
    assert names == ["BTC-240301-60000"]


@pytest.mark.parametrize("name", ["BTC", "BTC-240231-1", "BTC-x-1", ""])
def test_what_is_no_option_s_name_is_malformed(name: str) -> None:
    with pytest.raises(MapperError, match="ticker: not an option's name"):
        Options("ticker", _read)[name]


def test_made_up_names_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.bounded.MAX_NAMES", 2)
    options = Options("ticker", _read)
    for strike in range(5):
        assert options[f"BTC-240301-{strike}"].strike_price == str(strike)
    assert len(options) <= 2


def test_the_hour_is_the_exchange_s() -> None:
    assert expiration("1MAR24", "%d%b%y") == 1_709_280_000_000
    assert expiration("240301", "%y%m%d", hour=12) == 1_709_294_400_000


def test_months_are_english_in_any_locale(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `locale.setlocale(locale.LC_ALL, "")` in Germany."""
    german = {3: "Mär", 5: "Mai", 10: "Okt", 12: "Dez"}
    names = [german.get(number, name) for number, name in enumerate(calendar.month_abbr)]
    monkeypatch.setattr(calendar, "month_abbr", names)
    monkeypatch.setattr(_strptime, "_TimeRE_cache", _strptime.TimeRE())
    monkeypatch.setattr(_strptime, "_regex_cache", {})
    assert expiration("1MAR24", "%d%b%y") == 1_709_280_000_000
    assert expiration("31DEC24", "%d%b%y") == 1_735_632_000_000
    for wrong in ("1MAI24", "1MARCH24", "1/3/24", "MAR24", "1MAR", "32MAR24"):
        with pytest.raises(ValueError, match=r"."):
            expiration(wrong, "%d%b%y")
