from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tardis_machine import NoDataWarning
from tardis_machine.history import Filter, History, HistoryError
from tardis_machine.history import sample as sample_data
from tardis_machine.messages import BookSnapshot, Trade, TradeBar
from tardis_machine.replays import (
    MergedRawReplay,
    NormalizedReplay,
    ReplayEndedError,
    replay,
    replay_normalized,
)
from tardis_machine.replays.normalizer import Malformed, NormalizeError
from tardis_machine.replays.requests import OptionsError, ReplayNormalizedOptions, ReplayOptions
from tests.replays.span import END, START, START_US
from tests.support.bitmex import book, stamp, trade
from tests.support.feeds.generator import write

HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def sample() -> Iterator[History]:
    with sample_data.sample_history() as history:
        yield history


def _messages(replayed: NormalizedReplay) -> list[dict[str, Any]]:
    lines = b"".join(batch.data for batch in replayed.batches()).splitlines()
    return [msgspec.json.decode(line) for line in lines]


def _cached(directory: Path, exchange: str, channels: dict[str, Any], lines: bytes) -> None:
    """Put one minute into a cache, as if fetched with these filters."""
    filters = [Filter(channel, symbols) for channel, symbols in channels.items()]
    write(directory, exchange, START, iter([lines]), filters=filters)


def _options(exchange: str = "bitmex", minutes: int = 1, **options: Any) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange=exchange, from_=START_US, to=START_US + minutes * 60_000_000, **options
    )


@pytest.mark.parametrize("exchange", ["bitmex", "deribit", "binance-futures"])
def test_messages_come_in_the_order_of_local_time_and_have_the_types_asked_for(
    sample: History, exchange: str
) -> None:
    types = ["trade", "book_change", "derivative_ticker", "quote", "trade_bar_10s"]
    replayed = replay_normalized(
        exchange=exchange, from_=START, to=END, data_types=types, history=sample
    )
    messages = _messages(replayed)
    assert {message.get("name", message["type"]) for message in messages} == set(types)
    locals_ = [message["localTimestamp"] for message in messages]
    assert locals_ == sorted(locals_)
    assert replayed.malformed == replayed.ignored_changes == 0
    assert replayed.progress == 1


def test_iterates_over_typed_messages(sample: History) -> None:
    replayed = replay_normalized(
        exchange="bitmex",
        from_="2024-03-01",
        to="2024-03-01T00:01",
        symbols=["XBTUSD"],
        data_types=["trade", "quote", "trade_bar_10s"],
        history=sample,
    )
    kinds = {type(message) for message in replayed}
    assert kinds == {Trade, BookSnapshot, TradeBar}


def test_batches_never_end_inside_a_local_timestamp(sample: History) -> None:
    options = [
        _options("bitmex", 2, data_types=("trade", "book_change")),
        _options("deribit", 2, data_types=("trade", "book_change")),
    ]
    batches = [batch for batch in NormalizedReplay(options, history=sample).batches() if batch.data]
    assert len(batches) > 2
    borders = [
        (
            msgspec.json.decode(one.data.splitlines()[-1]),
            msgspec.json.decode(two.data.splitlines()[0]),
        )
        for one, two in pairwise(batches)
    ]
    for before, after in borders:
        assert before["localTimestamp"] < after["localTimestamp"]
    assert all(batch.count == batch.data.count(b"\n") for batch in batches)


def test_a_merged_replay_is_the_merged_replays(sample: History) -> None:
    options = [
        _options("deribit", 5, data_types=("trade", "quote"), with_disconnect_messages=True),
        _options("bitmex", 5, data_types=("trade",)),
        _options("binance-futures", 5, data_types=("trade", "trade_bar_5s")),
    ]
    merged = _messages(NormalizedReplay(options, history=sample))
    alone = [
        message
        for option in options
        for message in _messages(NormalizedReplay([option], history=sample))
    ]
    alone.sort(key=lambda message: message["localTimestamp"])
    assert merged == alone
    assert "disconnect" in {message["type"] for message in merged}


def test_equal_times_keep_the_order_of_the_options(tmp_path: Path) -> None:
    one = trade(1, 1) + trade(2, 2) + trade(2, 3) + trade(4, 4)
    two = trade(2, 20) + trade(3, 30) + trade(4, 40)
    _cached(tmp_path, "bitmex", {"trade": ("A", "XBTUSD")}, one)
    _cached(tmp_path, "bitmex", {"trade": ("B", "XBTUSD")}, two)
    options = [_options(data_types=("trade",), symbols=(symbol, "XBTUSD")) for symbol in "AB"]
    with History(cache_dir=tmp_path) as history:
        forth = _messages(NormalizedReplay(options, history=history))
        back = _messages(NormalizedReplay(options[::-1], history=history))
    assert [message["price"] for message in forth] == [1, 2, 3, 20, 30, 4, 40]
    assert [message["price"] for message in back] == [1, 20, 2, 3, 30, 40, 4]


def test_types_of_one_option_are_sent_from_the_others_of_its_exchange(tmp_path: Path) -> None:
    lines = trade(1) + trade(2)
    for symbol in "AB":
        _cached(tmp_path, "bitmex", {"trade": (symbol, "XBTUSD")}, lines)
    with History(cache_dir=tmp_path) as history:
        options = [
            _options(data_types=("trade",), symbols=("A", "XBTUSD")),
            _options(data_types=("trade_bar_1ticks",), symbols=("B", "XBTUSD")),
        ]
        messages = _messages(NormalizedReplay(options, history=history))
    types = [message["type"] for message in messages]
    assert types == ["trade", "trade", "trade_bar"] * 2


def test_disconnects_are_sent_when_asked_for_and_hidden_otherwise(tmp_path: Path) -> None:
    _cached(tmp_path, "bitmex", {"trade": None}, trade(1) + b"\n\n" + trade(2) + b"\n")
    with History(cache_dir=tmp_path) as history:
        option = _options(data_types=("trade",), with_disconnect_messages=True)
        asked = _messages(NormalizedReplay([option], history=history))
        option = _options(data_types=("trade",))
        batches = [*NormalizedReplay([option], history=history).batches()]
    assert [message["type"] for message in asked] == ["trade", "disconnect"] * 2
    told = [batch for batch in batches if batch.hidden]
    assert [(batch.count, batch.hidden_count) for batch in told] == [(1, 1), (1, 1)]
    for batch in told:
        hidden = msgspec.json.decode(batch.hidden)
        assert hidden["type"] == "disconnect"
        assert hidden["localTimestamp"] == msgspec.json.decode(batch.data)["localTimestamp"]
    assert sum(batch.count for batch in batches) == 2


def test_a_replay_may_begin_with_a_disconnect(tmp_path: Path) -> None:
    _cached(tmp_path, "bitmex", {"trade": None}, b"\n" + trade(1) + b"\n")
    options = [_options(data_types=("trade",), with_disconnect_messages=True)]
    with History(cache_dir=tmp_path) as history:
        messages = _messages(NormalizedReplay(options, history=history))
    assert [message["type"] for message in messages] == ["trade", "disconnect"]


def test_a_merged_replay_may_begin_with_disconnects(tmp_path: Path) -> None:
    for symbol, lines in {"A": b"\n\n" + trade(2, 2), "B": b"\n" + trade(1, 1), "C": b"\n"}.items():
        _cached(tmp_path, "bitmex", {"trade": (symbol, "XBTUSD")}, lines)
    options = [_options(data_types=("trade",), symbols=(symbol, "XBTUSD")) for symbol in "ABC"]
    with History(cache_dir=tmp_path) as history:
        messages = _messages(NormalizedReplay(options, history=history))
    assert [message["price"] for message in messages] == [1, 2]


@pytest.mark.parametrize("with_disconnects", [False, True])
def test_a_window_may_begin_after_a_disconnect(tmp_path: Path, with_disconnects: bool) -> None:
    lines = trade(1) + b"\n" + trade(1).replace(b"00:00:00.0", b"00:01:00.0")
    write(tmp_path, "bitmex", START, iter([lines]), filters=[Filter("trade")])
    (path,) = tmp_path.rglob("00.json.zst")
    path.rename(path.with_name("00.size-2.json.zst"))
    minute = 60_000_000
    options = ReplayNormalizedOptions(
        exchange="bitmex",
        from_=START_US + minute,
        to=START_US + 2 * minute,
        data_types=("trade",),
        with_disconnect_messages=with_disconnects,
    )
    with History(cache_dir=tmp_path) as history:
        alone = _messages(NormalizedReplay([options], history=history))
        merged = _messages(NormalizedReplay([options, options], history=history))
    assert [message["type"] for message in alone] == ["trade"]
    assert merged == alone * 2


def test_each_option_is_told_of_its_own_disconnects(tmp_path: Path) -> None:
    for symbol in "AB":
        lines = trade(1) + b"\n" + trade(2)
        _cached(tmp_path, "bitmex", {"trade": (symbol, "XBTUSD")}, lines)
    options = [
        _options(
            data_types=("trade",),
            symbols=(symbol, "XBTUSD"),
            with_disconnect_messages=symbol == "B",
        )
        for symbol in "AB"
    ]
    with History(cache_dir=tmp_path) as history:
        replayed = NormalizedReplay(options, history=history)
        batches = list(replayed.batches())
    types = [
        msgspec.json.decode(line)["type"] for batch in batches for line in batch.data.splitlines()
    ]
    assert types == ["trade", "trade", "disconnect", "trade", "trade"]
    assert sum(batch.hidden_count for batch in batches) == 1


def test_bars_and_books_end_at_a_disconnect_only_for_who_is_told_of_it(tmp_path: Path) -> None:
    lines = book(1, "partial", 10, 1) + trade(2, 5) + b"\n" + trade(3, 6) + trade(4, 7)
    lines += book(5, "partial", 11, 3)
    channels = {"orderBookL2": None, "trade": None}
    _cached(tmp_path, "bitmex", channels, lines)
    types = ("trade_bar_2ticks", "quote")
    names = {}
    with History(cache_dir=tmp_path) as history:
        for told in (False, True):
            option = _options(data_types=types, with_disconnect_messages=told)
            messages = _messages(NormalizedReplay([option], history=history))
            names[told] = [
                (message.get("name", message["type"]), message.get("open")) for message in messages
            ]
    assert names[False] == [("quote", None), ("trade_bar_2ticks", 5), ("quote", None)]
    assert names[True] == [
        *(("quote", None), ("disconnect", None)),
        *(("trade_bar_2ticks", 6), ("quote", None)),
    ]


def test_strict_sends_what_precedes_the_line_that_ends_it(tmp_path: Path) -> None:
    bad = f"{stamp(2)}0Z ".encode() + b'{"table":"trade","action":"insert","data":[7]}\n'
    _cached(tmp_path, "bitmex", {"trade": None}, trade(1) + bad + trade(3))
    collected: list[bytes] = []
    with History(cache_dir=tmp_path) as history:
        lenient = NormalizedReplay([_options(data_types=("trade",))], history=history)
        assert len(_messages(lenient)) == 2
        assert lenient.malformed == 1
        strict = NormalizedReplay([_options(data_types=("trade",))], history=history, strict=True)
        batches = strict.batches()
        with pytest.raises(NormalizeError):
            collected.extend(batch.data for batch in batches)
    assert b"".join(collected).count(b"\n") == 1


def test_a_book_change_before_its_snapshot_is_counted(tmp_path: Path) -> None:
    lines = book(1, "insert", 10, 1) + book(2, "partial", 11, 1)
    _cached(tmp_path, "bitmex", {"orderBookL2": None}, lines)
    with History(cache_dir=tmp_path) as history:
        replayed = NormalizedReplay([_options(data_types=("quote",))], history=history)
        assert [message["bids"] for message in _messages(replayed)] == [
            [{"price": 11, "amount": 1}]
        ]
    assert replayed.ignored_changes == 1


def test_what_is_missing_is_an_error_before_the_first_batch(sample: History) -> None:
    after = msgspec.structs.replace(
        _options("bitmex", data_types=("trade",)),
        from_=START_US + HOUR_US,
        to=START_US + 2 * HOUR_US,
    )
    with pytest.raises(HistoryError):
        _messages(NormalizedReplay([after], history=sample))


def test_arguments_are_checked_before_anything_starts(sample: History) -> None:
    with pytest.raises(OptionsError, match="exchange"):
        replay_normalized(
            exchange="nowhere", from_=START, to=END, data_types=["trade"], history=sample
        )
    with pytest.raises(OptionsError, match="invalid data type: trades"):
        replay_normalized(
            exchange="bitmex", from_=START, to=END, data_types=["trades"], history=sample
        )
    with pytest.raises(OptionsError, match="channel"):
        replay(exchange="bitmex", from_=START, to=END, filters=[Filter("no")], history=sample)


def test_raw_replays_keep_every_line_as_it_was(tmp_path: Path) -> None:
    lines = trade(1) + b"\n" + trade(2, digit=7) + b"garbage\n" + trade(3)
    _cached(tmp_path, "bitmex", {"trade": None}, lines)
    with History(cache_dir=tmp_path) as history:
        replayed = replay(
            exchange="bitmex",
            from_=START,
            to=START + timedelta(minutes=1),
            filters=[Filter("trade")],
            history=history,
        )
        data = b"".join(replayed.batches())
    wrapped = data.splitlines()
    assert len(wrapped) == replayed.messages == 3
    assert replayed.malformed == 1
    raw = trade(2, digit=7)
    assert wrapped[1] == (
        b'{"localTimestamp":"2024-03-01T00:00:00.0000027Z","message":' + raw[29:-1] + b"}"
    )


def test_raw_replays_tell_of_disconnects_when_asked(tmp_path: Path) -> None:
    lines = b"\n\n" + trade(1) + b"\n\n" + trade(2) + b"garbage\n" + trade(3) + b"\n"
    _cached(tmp_path, "bitmex", {"trade": None}, lines)
    write(tmp_path, "bitmex", START, iter([lines, b"\n" + trade(4)]), filters=[Filter("trade")])
    got = {}
    with History(cache_dir=tmp_path) as history:
        for told in (False, True):
            replayed = replay(
                exchange="bitmex",
                from_=START,
                to=START + timedelta(minutes=2),
                filters=[Filter("trade")],
                with_disconnects=told,
                history=history,
            )
            got[told] = b"".join(replayed.batches())
            assert replayed.messages == 4
    expected = b"".join(
        b"\n"
        if us is None
        else b'{"localTimestamp":"%b","message":%b}\n' % (trade(us)[:28], trade(us)[29:-1])
        for us in (None, 1, None, 2, 3, None, 4)
    )
    assert got[True] == expected
    assert got[False] == expected.replace(b"\n\n", b"\n").removeprefix(b"\n")


def test_raw_replays_merge_by_local_time(tmp_path: Path) -> None:
    one = trade(1, 1) + b"\n" + trade(2, 2) + b"garbage\n" + trade(2, 3) + trade(4, 4)
    two = b"\n" + trade(2, 20) + trade(3, 30) + trade(4, 40)
    _cached(tmp_path, "bitmex", {"trade": ("A",)}, one)
    _cached(tmp_path, "bitmex", {"trade": ("B",)}, two)
    options = [
        ReplayOptions(
            exchange="bitmex",
            from_=START_US,
            to=START_US + 60_000_000,
            filters=(Filter("trade", (symbol,)),),
        )
        for symbol in "AB"
    ]
    with History(cache_dir=tmp_path) as history:
        replayed = MergedRawReplay(options, history=history)
        steps = list(replayed.steps())
        alone = list(MergedRawReplay(options[:1], history=history).steps())
    sent = [
        (index, msgspec.json.decode(message)["data"][0]["price"])
        for step in steps
        for index, data in step.by_stream()
        for message in data.splitlines()
    ]
    assert sent == [(0, 1), (0, 2), (0, 3), (1, 20), (1, 30), (0, 4), (1, 40)]
    assert sum(step.count for step in steps) == 7
    assert replayed.malformed == 1
    assert replayed.progress == 1
    raw = b"".join(line[29:] + b"\n" for line in one.split(b"\n") if line[:4] == b"2024")
    assert b"".join(data for step in alone for _, data in step.by_stream()) == raw


def test_a_merged_raw_replay_tells_what_is_missing(tmp_path: Path, sample: History) -> None:
    option = ReplayOptions(exchange="bitmex", from_=START_US + HOUR_US, to=START_US + 2 * HOUR_US)
    with pytest.raises(HistoryError):
        list(MergedRawReplay([option], history=sample).steps())


def test_a_replay_of_its_own_history_closes_it() -> None:
    with replay_normalized(
        exchange="bitmex", from_=START, to=END, data_types=["trade"], sample=True
    ) as replayed:
        first = next(iter(replayed))
    assert isinstance(first, Trade)
    with pytest.raises(ReplayEndedError):
        _messages(replayed)


def test_steps_tell_what_they_wait_for(sample: History) -> None:
    replayed = replay_normalized(
        exchange="bitmex", from_=START, to=END, data_types=["trade"], history=sample
    )
    batches = replayed.batches()
    count = 0
    while True:
        if (waiting := replayed.pending()) is not None:
            waiting.result(timeout=30)
            continue
        if (batch := next(batches, None)) is None:
            break
        count += batch.count
    again = replay_normalized(
        exchange="bitmex", from_=START, to=END, data_types=["trade"], history=sample
    )
    assert count == len(_messages(again)) > 0


def test_bars_in_progress_are_closed_at_the_end_for_whoever_asks(sample: History) -> None:
    def bars(**more: Any) -> list[dict[str, Any]]:
        types = ("trade_bar_1m", "trade_bar_1000000ticks")
        return _messages(
            NormalizedReplay([_options(data_types=types, minutes=2)], history=sample, **more)
        )

    complete, closed = bars(), bars(closes_bars=True)
    assert closed[: len(complete)] == complete
    last = closed[len(complete) :]
    assert {bar["timestamp"] for bar in last} == {"2024-03-01T00:02:00.000Z"}
    assert {bar["localTimestamp"] for bar in last} == {"2024-03-01T00:01:59.999999Z"}
    assert {bar["name"] for bar in last} == {"trade_bar_1m"}
    trades = _messages(
        NormalizedReplay([_options(data_types=("trade",), minutes=2)], history=sample)
    )
    in_bars = sum(bar["trades"] for bar in closed)
    assert in_bars == len(trades)


def test_lines_that_are_left_out_are_told(tmp_path: Path) -> None:
    bad = f"{stamp(2)}0Z ".encode() + b'{"table":"trade","action":"insert","data":[7]}'
    _cached(tmp_path, "bitmex", {"trade": None}, trade(1) + bad + b"\n")
    told: list[Malformed] = []
    with History(cache_dir=tmp_path) as history:
        options = [_options(data_types=("trade",))]
        replayed = NormalizedReplay(options, history=history, on_malformed=told.append)
        assert len(_messages(replayed)) == 1
    [malformed] = told
    assert malformed[:3] == ("bitmex", bad, "2024-03-01T00:00:00.000002Z")
    assert malformed.reason


def test_a_replay_of_some_types_shares_the_slices_of_all(tmp_path: Path) -> None:
    lines = book(1, "partial", 1, 2) + trade(2)
    _cached(tmp_path, "bitmex", {"orderBookL2": None, "trade": None}, lines)
    with History(cache_dir=tmp_path) as history:
        for types in (("trade",), ("book_change",), ()):
            replayed = NormalizedReplay(
                [_options(data_types=types)],
                history=history,
                fetched_types=("trade", "book_change"),
            )
            assert [message["type"] for message in _messages(replayed)] == [*types]
            assert replayed.malformed == 0


async def test_async_iteration_gives_the_same_and_can_be_left_early() -> None:
    def asked() -> NormalizedReplay:
        return replay_normalized(
            exchange="bitmex",
            from_="2024-03-01",
            to="2024-03-01T00:02",
            data_types=["trade", "book_snapshot_5_1s"],
            sample=True,
        )

    messages = [message async for message in asked()]
    assert messages == list(asked())
    left = aiter(asked())
    assert await anext(left) == messages[0]
    await left.aclose()  # type: ignore[attr-defined]


MISSING: dict[str, Any] = {
    "exchange": "bitmex",
    "from_": "2024-03-01",
    "to": "2024-03-01T00:02",
    "data_types": ["trade", "book_snapshot_2_1s"],
}


def test_library_warns_once_of_symbols_without_data(sample: History) -> None:
    replayed = replay_normalized(**MISSING, symbols=["XBTUSD", "XBTUSDD", "NONE"], history=sample)
    with pytest.warns(NoDataWarning, match="no message .* bitmex XBTUSDD, bitmex NONE:") as caught:
        messages = list(replayed)
    assert messages
    assert len(caught) == 1
    assert isinstance(caught[0].message, NoDataWarning)
    assert caught[0].message.symbols == (("bitmex", "XBTUSDD"), ("bitmex", "NONE"))


@pytest.mark.parametrize("data_type", ["trade", "book_change", "quote", "trade_bar_1m"])
@pytest.mark.parametrize("symbols", [["xbtusd"], [], None])
def test_symbols_with_data_of_any_type_are_not_warned_of(
    sample: History, data_type: str, symbols: list[str] | None
) -> None:
    asked = MISSING | {"data_types": [data_type]}
    assert list(replay_normalized(**asked, symbols=symbols, history=sample))


def test_symbol_with_data_in_one_of_several_replays_is_not_warned_of(sample: History) -> None:
    asked = MISSING | {"symbols": ["XBTUSD"]}
    types = [asked, asked | {"data_types": ["liquidation"], "to": "2024-03-01T00:01"}]
    assert list(replay_normalized(types, history=sample))


def test_replay_of_no_time_or_left_early_warns_of_nothing(sample: History) -> None:
    asked = MISSING | {"symbols": ["XBTUSD", "NONE"]}
    assert not list(replay_normalized(**asked | {"to": asked["from_"]}, history=sample))
    with replay_normalized(**asked, history=sample) as replayed:
        next(replayed)


def test_server_logs_symbols_without_data_once(
    sample: History, caplog: pytest.LogCaptureFixture
) -> None:
    options = [
        _options(symbols=("XBTUSD", "NONE"), data_types=("trade",)),
        _options("deribit", symbols=("NONE",), data_types=("trade",)),
    ]
    with caplog.at_level("INFO", "tardis_machine.replays"):
        assert _messages(NormalizedReplay(options, history=sample))
    (record,) = (each for each in caplog.records if each.message == "symbols without data")
    assert record.__dict__["count"] == 2
    assert "bitmex NONE, deribit NONE:" in record.__dict__["reason"]
