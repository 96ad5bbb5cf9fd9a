"""bitFlyer's ticker names its product in the message and in its channel."""

import pytest

from tests.exchanges.feed import Feed


@pytest.mark.parametrize("told", [{}, {"product_code": None}, {"product_code": ""}])
def test_ticker_without_product_code_takes_that_of_its_channel(
    told: dict[str, str | None],
) -> None:
    message = {"timestamp": "2023-05-01T01:02:03.4567891Z", "best_bid": 1, **told}
    params = {"channel": "lightning_ticker_FX_BTC_JPY", "message": message}
    (ticker,) = Feed("bitflyer", ["book_ticker"])(
        {"jsonrpc": "2.0", "method": "channelMessage", "params": params}
    )
    assert ticker["symbol"] == "FX_BTC_JPY"
