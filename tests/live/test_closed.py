"""Exchanges that have closed: history goes on, a live request needs an address of its own."""

import pytest

from tardis_machine import exchanges
from tardis_machine.exchanges.base.dialect import DialectError
from tardis_machine.live.addresses import variable
from tardis_machine.live.plan import plan
from tardis_machine.live.stream import stream_normalized

CLOSED = [name for name in exchanges.names() if exchanges.get(name).closed]


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Nothing is emitted here: once is enough."""


def test_closed_exchanges_are_those_that_are_gone_for_certain() -> None:
    assert sorted(CLOSED) == [
        *("binance-dex", "binance-jersey", "coinflex", "dydx", "ftx", "ftx-us"),
        *("huobi-dm-options", "mango", "okcoin", "serum", "star-atlas"),
    ]


@pytest.mark.parametrize("name", CLOSED)
def test_live_request_of_closed_exchange_is_refused_with_reason_and_variable(name: str) -> None:
    exchange = exchanges.get(name)
    with pytest.raises(DialectError, match=exchange.closed) as refused:
        plan(exchange, ["trade"], ["A"], {})
    assert variable("WSS_URL", name) in str(refused.value)
    # The reason of a WebSocket's close has room for 123 bytes.
    assert len(str(refused.value).encode()) <= 123


@pytest.mark.parametrize("name", CLOSED)
def test_live_request_of_closed_exchange_goes_to_an_address_that_is_set(name: str) -> None:
    exchange = exchanges.get(name)
    assert exchange.live is not None
    address = "ws://127.0.0.1:1/feed"
    for endpoint in ("", *(each.name for each in exchange.live.endpoints)):
        planned = plan(
            exchange, ["trade"], ["BTC-USD"], {variable("WSS_URL", name, endpoint): address}
        )
        assert planned.connections


async def test_library_refuses_closed_exchange() -> None:
    async with stream_normalized("ftx", symbols=["BTC-PERP"], data_types=["trade"]) as stream:
        with pytest.raises(DialectError, match="the exchange has closed"):
            await anext(stream.batches())
