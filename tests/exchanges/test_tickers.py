import msgspec
import pytest

from tardis_machine.emit import Emitter, parse_all
from tardis_machine.exchanges import MapperError
from tardis_machine.exchanges.tickers import Tickers


@pytest.fixture
def emitter() -> Emitter:
    emitter = Emitter("example", parse_all(["derivative_ticker"]))
    emitter.begin("2024-03-01T00:00:01.000500Z")
    return emitter


def _sent(emitter: Emitter) -> list[dict[str, object]]:
    return [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]


def test_a_ticker_is_sent_only_when_something_has_changed(emitter: Emitter) -> None:
    ticker = Tickers(emitter)["A"]
    ticker.send()
    ticker.update(last_price=1.5)
    ticker.send()
    ticker.update(last_price=1.5, mark_price=None)
    ticker.send()
    assert [message["lastPrice"] for message in _sent(emitter)] == [1.5]


@pytest.mark.parametrize(
    "field",
    [
        "last_price",
        "open_interest",
        "funding_rate",
        "funding_timestamp",
        "predicted_funding_rate",
        "index_price",
        "mark_price",
    ],
)
def test_every_field_counts_as_a_change_and_is_kept(emitter: Emitter, field: str) -> None:
    ticker = Tickers(emitter)["A"]
    ticker.update(**{field: 7_000})
    ticker.send()
    ticker.update(**{field: 7_000})
    ticker.send()
    ticker.update(**{field: 8_000})
    ticker.send()
    first, second = _sent(emitter)
    assert len(first) == 6
    assert first != second


def test_zero_is_a_value(emitter: Emitter) -> None:
    ticker = Tickers(emitter)["A"]
    ticker.update(funding_rate=0)
    ticker.send()
    assert _sent(emitter)[0]["fundingRate"] == 0


def test_time_never_goes_back(emitter: Emitter) -> None:
    ticker = Tickers(emitter)["A"]
    for time, price in ((1_709_251_200_100, 1), (1_709_251_200_050, 2), (1_709_251_200_200, 3)):
        ticker.seen_at(time, "ticker")
        ticker.update(last_price=price)
        ticker.send()
    assert [str(m["timestamp"])[20:] for m in _sent(emitter)] == ["100Z", "100Z", "200Z"]


def test_without_a_time_of_the_exchange_the_local_one_stands_in_with_its_digits(
    emitter: Emitter,
) -> None:
    ticker = Tickers(emitter)["A"]
    ticker.update(open_interest=5)
    ticker.send()
    ticker.seen_at(1_709_251_200_999, "ticker")  # before the local time
    ticker.update(open_interest=6)
    ticker.send()
    ticker.seen_at(1_709_251_201_001, "ticker")
    ticker.update(open_interest=7)
    ticker.send()
    assert [m["timestamp"] for m in _sent(emitter)] == [
        "2024-03-01T00:00:01.000500Z",
        "2024-03-01T00:00:01.000500Z",
        "2024-03-01T00:00:01.001Z",
    ]


def test_a_message_without_time_is_malformed_unless_a_time_is_known(emitter: Emitter) -> None:
    ticker = Tickers(emitter)["A"]
    with pytest.raises(MapperError, match="markPrice: no time for A"):
        ticker.seen_at(None, "markPrice")
    ticker.seen_at(1_709_251_200_100, "markPrice")
    ticker.seen_at(None, "markPrice")
    ticker.update(last_price=1)
    ticker.send()
    assert _sent(emitter)[0]["timestamp"] == "2024-03-01T00:00:00.100Z"


def test_symbols_are_kept_apart(emitter: Emitter) -> None:
    tickers = Tickers(emitter)
    tickers["A"].update(last_price=1)
    tickers["B"].update(mark_price=2)
    tickers["B"].send()
    tickers["A"].send()
    assert [m["symbol"] for m in _sent(emitter)] == ["B", "A"]
