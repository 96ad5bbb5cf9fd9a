import re
from collections import Counter
from pathlib import Path

import pytest

from tardis_machine.exchanges import get
from tardis_machine.history import Filter, History, HistoryError, sample
from tardis_machine.messages import BookSnapshot
from tardis_machine.replays import replay_normalized
from tests.support.feeds.generator import write_shipped

START = int(sample.START.timestamp()) * 1_000_000
END = START + sample.MINUTES * 60_000_000


def read(exchange: str, *filters: Filter, start: int = START, end: int = END) -> bytes:
    with sample.sample_history() as history:
        return b"".join(history.read(exchange, filters, start, end))


def test_what_is_shipped_is_what_the_generator_makes(tmp_path: Path) -> None:
    shipped = sample.SAMPLE.directory
    made = write_shipped(tmp_path)
    names = [path.relative_to(tmp_path) for path in made]
    assert sorted(names) == sorted(
        path.relative_to(shipped) for path in shipped.rglob("*") if path.is_file()
    )
    with History(cache_dir=tmp_path) as history:
        for exchange in sample.EXCHANGES:
            assert b"".join(history.read(exchange, [], START, END)) == read(exchange)


def test_it_is_small() -> None:
    size = sum(path.stat().st_size for path in sample.SAMPLE.directory.rglob("*") if path.is_file())
    assert size < 1_000_000


@pytest.mark.parametrize("exchange", sample.EXCHANGES)
def test_every_type_is_there_and_nothing_is_left_out(exchange: str) -> None:
    types = get(exchange).data_types()
    counts: Counter[str] = Counter()
    with replay_normalized(
        exchange=exchange,
        from_="2024-03-01",
        to="2024-03-01T00:05:00Z",
        data_types=[*types, "book_snapshot_2_0ms", "trade_bar_10s"],
        with_disconnect_messages=True,
        strict=True,
        sample=True,
    ) as replay:
        for message in replay:
            counts[str(message.__struct_config__.tag)] += 1
            if isinstance(message, BookSnapshot):
                bid, ask = message.bids[0].price, message.asks[0].price
                assert bid is not None
                assert ask is not None
                assert bid < ask
    assert replay.malformed == replay.ignored_changes == 0
    assert set(types) <= set(counts)
    assert min(counts[each] for each in types) >= 5
    assert counts["disconnect"] == (exchange == "deribit")


def test_channels_and_symbols_are_selected() -> None:
    everything = read("bitmex")
    trades = read("bitmex", Filter("trade"))
    assert trades
    assert set(re.findall(rb'"table":"(\w+)"', trades)) == {b"trade"}
    one = read("bitmex", Filter("trade", ("ETHUSD",)), Filter("quote", ("XBTUSD",)))
    assert set(re.findall(rb'"table":"(\w+)".*?"symbol":"(\w+)"', one)) == {
        (b"trade", b"ETHUSD"),
        (b"quote", b"XBTUSD"),
    }
    assert read("bitmex", Filter("trade", ())) == trades
    assert len(one) < len(everything)
    streams = read("binance-futures", Filter("markPrice", ("btcusdt",)))
    assert set(re.findall(rb'"stream":"([^"]+)"', streams)) == {b"btcusdt@markPrice@1s"}
    books = read("deribit", Filter("book", ("BTC-29MAR24-62000-C",)))
    assert set(re.findall(rb'"channel":"([^"]+)"', books)) == {b"book.BTC-29MAR24-62000-C.raw"}
    assert b"\n\n" in books


DAY = 86_400_000_000


@pytest.mark.parametrize(("start", "end"), [(START, START + DAY), (START - DAY, END + DAY)])
def test_what_lies_beyond_it_is_empty(start: int, end: int) -> None:
    assert read("bitmex", start=start, end=end) == read("bitmex")


@pytest.mark.parametrize(
    ("exchange", "start", "end"),
    [("ftx", START, END), ("bitmex", END, END + DAY), ("bitmex", START - DAY, START)],
)
def test_what_it_does_not_have_is_told(exchange: str, start: int, end: int) -> None:
    with pytest.raises(HistoryError, match="bitmex, deribit, binance-futures") as caught:
        read(exchange, start=start, end=end)
    assert caught.value.status == 404


def test_clearing_the_cache_spares_it() -> None:
    with sample.sample_history() as history:
        history.clear_cache()
    assert read("bitmex")
