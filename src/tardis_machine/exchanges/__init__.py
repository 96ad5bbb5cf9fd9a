"""The registry of exchanges with mappers. A new family adds its module's name to `_FAMILIES`.

`catalog` has the channels of all exchanges that Tardis.dev records, for raw replays.
"""

from importlib import import_module
from typing import Final

from tardis_machine.exchanges import catalog
from tardis_machine.exchanges.base.errors import (
    BookGapError,
    MapperError,
    UnknownExchangeError,
    UnsupportedTypeError,
)
from tardis_machine.exchanges.base.exchange import Exchange

__all__ = [
    "BookGapError",
    "Exchange",
    "MapperError",
    "UnknownExchangeError",
    "UnsupportedTypeError",
    "catalog",
    "get",
    "names",
]

_FAMILIES: Final = (
    "ascendex",
    "aster",
    "binance",
    "binance_dex",
    "binance_options",
    "bitfinex",
    "bitflyer",
    "bitget",
    "bitmex",
    "bitnomial",
    "bitstamp",
    "blockchain_com",
    "bullish",
    "bybit",
    "coinbase",
    "coinbase_international",
    "coinflex",
    "crypto_com",
    "cryptofacilities",
    "delta",
    "deribit",
    "dydx",
    "ftx",
    "gate_io",
    "gate_io_spot",
    "gemini",
    "hitbtc",
    "huobi",
    "hyperliquid",
    "kraken",
    "kucoin",
    "lighter",
    "mexc",
    "okex",
    "okex_options",
    "okex_spreads",
    "phemex",
    "poloniex",
    "polymarket",
    "serum",
    "upbit",
    "woo_x",
)
"""Names of the modules of this package that define `EXCHANGES`."""


def _registered() -> dict[str, Exchange]:
    exchanges: dict[str, Exchange] = {}
    for family in _FAMILIES:
        module = import_module(f"{__name__}.{family}")
        exchanges.update((exchange.name, exchange) for exchange in module.EXCHANGES)
    return exchanges


_EXCHANGES: Final = _registered()


def names() -> tuple[str, ...]:
    """Return the names of the exchanges whose data can be normalized."""
    return tuple(_EXCHANGES)


def get(name: str) -> Exchange:
    """Return an exchange by its name; raise UnknownExchangeError if it has no mappers."""
    try:
        return _EXCHANGES[name]
    except KeyError:
        is_recorded = name in catalog.CHANNELS
        reason = "no normalized data of this exchange yet" if is_recorded else "unknown exchange"
        raise UnknownExchangeError(name, _EXCHANGES, reason) from None
