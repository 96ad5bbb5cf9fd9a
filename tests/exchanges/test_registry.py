import pytest

from tardis_machine import exchanges
from tardis_machine.exchanges import UnknownExchangeError, catalog


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Nothing is emitted here: once is enough."""


def test_every_exchange_with_mappers_is_recorded() -> None:
    assert set(exchanges.names()) <= set(catalog.names())
    assert len(set(exchanges.names())) == len(exchanges.names())


def test_channels_of_mappers_are_recorded_channels() -> None:
    for name in exchanges.names():
        exchange = exchanges.get(name)
        asked = exchange.filters(exchange.data_types(), None, 0, 1 << 62)
        assert {each.channel for each in asked} <= set(catalog.channels(name))


def test_unknown_exchange_says_what_is_allowed() -> None:
    with pytest.raises(UnknownExchangeError, match="unknown exchange: bitmax; allowed: ") as e:
        exchanges.get("bitmax")
    assert e.value.exchange == "bitmax"
    assert e.value.allowed == exchanges.names()


def test_exchange_without_mappers_is_told_apart_from_a_typo(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(catalog.CHANNELS, "new-exchange", ("trades",))
    with pytest.raises(
        UnknownExchangeError, match="no normalized data of this exchange yet: new-exchange"
    ):
        exchanges.get("new-exchange")


def test_catalog_has_all_exchanges() -> None:
    assert len(catalog.names()) == 64
    assert "orderBookL2_25" in catalog.channels("bitmex")
    with pytest.raises(UnknownExchangeError, match="kroken"):
        catalog.channels("kroken")
