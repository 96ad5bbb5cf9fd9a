"""The registry of exchanges with mappers: adding one is adding its module here.

What Tardis.dev records of any exchange, for raw replays, is in `catalog`.
"""

from typing import Final

from tardis_machine.exchanges import (
    ascendex,
    aster,
    binance,
    binance_dex,
    binance_options,
    bitfinex,
    bitflyer,
    bitget,
    bitmex,
    bitnomial,
    bitstamp,
    blockchain_com,
    bullish,
    bybit,
    catalog,
    coinbase,
    coinbase_international,
    coinflex,
    crypto_com,
    cryptofacilities,
    delta,
    deribit,
    dydx,
    ftx,
    gate_io,
    gate_io_spot,
    gemini,
    hitbtc,
    huobi,
    hyperliquid,
    kraken,
    kucoin,
    lighter,
    mexc,
    okex,
    okex_options,
    okex_spreads,
    phemex,
    poloniex,
    polymarket,
    serum,
    upbit,
    woo_x,
)
from tardis_machine.exchanges.errors import (
    BookGapError,
    MapperError,
    UnknownExchangeError,
    UnsupportedTypeError,
)
from tardis_machine.exchanges.exchange import Exchange

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

_FAMILIES: Final[tuple[tuple[Exchange, ...], ...]] = (
    ascendex.EXCHANGES,
    aster.EXCHANGES,
    binance.EXCHANGES,
    binance_dex.EXCHANGES,
    binance_options.EXCHANGES,
    bitfinex.EXCHANGES,
    bitflyer.EXCHANGES,
    bitget.EXCHANGES,
    bitmex.EXCHANGES,
    bitnomial.EXCHANGES,
    bitstamp.EXCHANGES,
    blockchain_com.EXCHANGES,
    bullish.EXCHANGES,
    bybit.EXCHANGES,
    coinbase.EXCHANGES,
    coinbase_international.EXCHANGES,
    coinflex.EXCHANGES,
    crypto_com.EXCHANGES,
    cryptofacilities.EXCHANGES,
    delta.EXCHANGES,
    deribit.EXCHANGES,
    dydx.EXCHANGES,
    ftx.EXCHANGES,
    gate_io.EXCHANGES,
    gate_io_spot.EXCHANGES,
    gemini.EXCHANGES,
    hitbtc.EXCHANGES,
    huobi.EXCHANGES,
    hyperliquid.EXCHANGES,
    kraken.EXCHANGES,
    kucoin.EXCHANGES,
    lighter.EXCHANGES,
    mexc.EXCHANGES,
    okex.EXCHANGES,
    okex_options.EXCHANGES,
    okex_spreads.EXCHANGES,
    phemex.EXCHANGES,
    poloniex.EXCHANGES,
    polymarket.EXCHANGES,
    serum.EXCHANGES,
    upbit.EXCHANGES,
    woo_x.EXCHANGES,
)

_EXCHANGES: Final[dict[str, Exchange]] = {each.name: each for its in _FAMILIES for each in its}


def names() -> tuple[str, ...]:
    """Name the exchanges whose data can be normalized."""
    return tuple(_EXCHANGES)


def get(name: str) -> Exchange:
    """Give the exchange of that name; UnknownExchangeError if it has no mappers."""
    try:
        return _EXCHANGES[name]
    except KeyError:
        recorded = name in catalog.CHANNELS
        reason = "no normalized data of this exchange yet" if recorded else "unknown exchange"
        raise UnknownExchangeError(name, _EXCHANGES, reason) from None
