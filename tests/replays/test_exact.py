"""Exact replays: those of whole minutes, trimmed by local time."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import pytest

from tardis_machine import exchanges
from tardis_machine.engine.datatypes import parse_all, sources
from tardis_machine.history import Filter, History
from tardis_machine.history import sample as sample_data
from tardis_machine.messages import Trade
from tardis_machine.messages.times import iso_us, us_of
from tardis_machine.replays import (
    NativeReplay,
    NormalizedReplay,
    RawReplay,
    ReplayEndedError,
    replay,
    replay_normalized,
)
from tardis_machine.replays.requests import (
    OptionsError,
    ReplayOptions,
    Request,
    parse_time,
    replay_normalized_options,
)
from tests.replays.span import START, START_US
from tests.support.clock import ManualClock
from tests.support.feeds.generator import write

MINUTE: Final = 60_000_000
MINUTES: Final = 3
TYPES: Final = ("trade", "book_change", "quote", "trade_bar_1s", "book_snapshot_2_100ms")
RAW: Final = (Filter("trade"), Filter("orderBookL2"))
Range = tuple[int, int]


def _line(chance: random.Random, us: int) -> bytes:
    price = 60_000 + chance.randrange(8)
    row = {"timestamp": f"{iso_us(us)[:23]}Z", "symbol": "XBTUSD", "size": 1, "price": price}
    if chance.random() < 0.5:
        row |= {"side": "Buy", "trdMatchID": "m"}
        message = {"table": "trade", "action": "insert", "data": [row]}
    else:
        action = "partial" if chance.random() < 0.2 else "insert"
        row |= {"id": price, "side": "Buy" if price < 60_004 else "Sell"}
        message = {"table": "orderBookL2", "action": action, "data": [row]}
    stamp = f"{iso_us(us)[:-1]}{chance.randrange(10)}Z "
    return stamp.encode() + msgspec.json.encode(message) + b"\n"


def _minute(chance: random.Random, start: int) -> bytes:
    """Lines with equal and late times, times at the borders, disconnects anywhere."""
    times = sorted(chance.randrange(start, start + MINUTE) for _ in range(60))
    times = [start, start, *times, *times[30:33], times[-1], start + MINUTE - 1]
    lines = [_line(chance, us) for us in times]
    for _ in range(4):
        lines.insert(chance.randrange(len(lines)), b"\n")
    lines.insert(chance.choice((0, len(lines))), b"\n")
    return b"".join(lines)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[History]:
    """Three minutes, as they are fetched for normalized and for raw replays."""
    directory = tmp_path_factory.mktemp("slices")
    chance = random.Random(7)
    minutes = [_minute(chance, START_US + MINUTE * number) for number in range(MINUTES)]
    bitmex = exchanges.get("bitmex")
    needed = bitmex.filters(
        sources(parse_all(TYPES)), ["XBTUSD"], START_US, START_US + MINUTE * MINUTES
    )
    for filters in (needed, RAW):
        write(directory, "bitmex", START, iter(minutes), filters=filters)
    with History(cache_dir=directory) as history:
        yield history


@pytest.fixture(scope="module")
def sample() -> Iterator[History]:
    with sample_data.sample_history() as history:
        yield history


def _ranges(locals_: Sequence[str]) -> Iterator[Range]:
    """Yield ranges of whole minutes, of no length, within a minute, beside and on messages."""
    chance = random.Random(11)
    end = START_US + MINUTE * MINUTES
    yield START_US, end
    yield START_US + MINUTE, START_US + 2 * MINUTE
    yield START_US + 1, START_US + 1
    yield START_US + 1, START_US + 2
    places = [us_of(local) for local in locals_ if local != "Z"]
    for _ in range(40):
        first = chance.choice(places) + chance.choice((-1, 0, 1))
        last = chance.choice(places) + chance.choice((-1, 0, 1))
        if chance.random() < 0.5:
            last = first + chance.randrange(20_000_000)
        first, last = sorted((max(first, START_US), min(max(last, START_US), end)))
        yield min(first, end), last


def _around(range_: Range) -> Range:
    first, last = range_
    return first - first % MINUTE, last + -last % MINUTE


def _local(line: bytes) -> str:
    return line.partition(b'"localTimestamp":"')[2][:26].decode() + "Z"


def _kept(lines: Sequence[bytes], range_: Range) -> list[bytes]:
    """Filter messages by their local times; an empty line has that of the line before it."""
    kept = []
    local = iso_us(_around(range_)[0])
    for line in lines:
        local = _local(line) if line.strip() else local
        if range_[0] <= us_of(local) < range_[1]:
            kept.append(line)
    return kept


def _asked(range_: Range, **more: Any) -> dict[str, Any]:
    return {
        "exchange": "bitmex",
        "symbols": ["XBTUSD"],
        "dataTypes": TYPES,
        "from": iso_us(range_[0]),
        "to": iso_us(range_[1]),
        **more,
    }


def _normalized(
    history: History, *asked: dict[str, Any], clock: ManualClock | None = None
) -> NormalizedReplay[Any]:
    options = replay_normalized_options(list(map(Request, asked)))
    return NormalizedReplay(options, history=history, clock=clock)


def _lines(replayed: NormalizedReplay[Any]) -> list[bytes]:
    return b"".join(batch.data for batch in replayed.batches()).splitlines(keepends=True)


@pytest.mark.parametrize("tells", [True, False])
def test_exact_answer_is_that_of_whole_minutes_filtered_by_local_time(
    recorded: History, tells: bool
) -> None:
    everything = _lines(_normalized(recorded, _asked((START_US, START_US + MINUTE * MINUTES))))
    found = set()
    for range_ in _ranges([_local(line) for line in everything]):
        more = {"withDisconnectMessages": tells}
        exact = _lines(_normalized(recorded, _asked(range_, exact=True, **more)))
        whole = []
        if range_[0] < range_[1]:
            whole = _lines(_normalized(recorded, _asked(_around(range_), **more)))
        assert exact == _kept(whole, range_)
        found |= {msgspec.json.decode(line)["type"] for line in exact}
    kinds = {"trade", "book_change", "book_snapshot", "trade_bar"}
    assert found == (kinds | {"disconnect"} if tells else kinds)


def test_hidden_disconnects_of_an_exact_replay_are_trimmed(recorded: History) -> None:
    def hidden(**asked: Any) -> list[bytes]:
        batches = _normalized(recorded, _asked(**asked)).batches()
        return b"".join(batch.hidden for batch in batches).splitlines(keepends=True)

    whole = hidden(range_=(START_US, START_US + MINUTE))
    border = us_of(_local(whole[2]))
    assert hidden(range_=(START_US + 1, border), exact=True) == _kept(whole, (START_US + 1, border))
    assert len(whole) > 3


def test_members_of_a_merge_are_trimmed_each_by_its_own_range(sample: History) -> None:
    def asked(exchange: str, symbol: str, range_: Range, **more: Any) -> dict[str, Any]:
        types = ["trade", "book_change", "trade_bar_10s"]
        return _asked(range_, exchange=exchange, symbols=[symbol], dataTypes=types, **more)

    chance = random.Random(3)
    for _ in range(8):
        first, second = (
            (START_US + start, START_US + start + chance.randrange(1, 70_000_000))
            for start in (chance.randrange(MINUTE), chance.randrange(MINUTE))
        )
        one, other = ("bitmex", "XBTUSD"), ("deribit", "BTC-PERPETUAL")
        exact = _lines(
            _normalized(sample, asked(*one, first, exact=True), asked(*other, second, exact=True))
        )
        whole = _lines(
            _normalized(sample, asked(*one, _around(first)), asked(*other, _around(second)))
        )
        named = b'"exchange":"bitmex"'
        of_first = set(_kept([line for line in whole if named in line], first))
        of_second = set(_kept([line for line in whole if named not in line], second))
        assert exact == [line for line in whole if line in of_first | of_second]
        assert of_first
        assert of_second


@pytest.mark.parametrize("speed", [1.0, 1000.0])
def test_exact_replay_at_a_speed_begins_with_from_and_ends_by_to(
    recorded: History, speed: float
) -> None:
    range_ = (START_US + 50_000_000, START_US + 71_234_567)
    clock = ManualClock()
    paced = _normalized(recorded, _asked(range_, exact=True, speed=speed), clock=clock)
    found = []
    for batch in paced.batches():
        found.append(batch.data)
        for line in batch.data.splitlines():
            due_ns = (us_of(_local(line)) - range_[0]) * 1000 / speed
            assert due_ns <= clock.ns - 1_000
    assert b"".join(found) == b"".join(_lines(_normalized(recorded, _asked(range_, exact=True))))
    assert found
    assert clock.ns - 1_000 <= (range_[1] - range_[0]) * 1000 / speed + 6_000_000


def _raw(range_: Range, *, window: Range | None = None) -> ReplayOptions:
    return ReplayOptions(
        exchange="bitmex",
        from_=range_[0],
        to=range_[1],
        filters=RAW,
        with_disconnects=True,
        window=window,
    )


def test_exact_raw_answer_is_that_of_whole_minutes_filtered_by_local_time(
    recorded: History,
) -> None:
    whole = (START_US, START_US + MINUTE * MINUTES)
    everything = b"".join(RawReplay(_raw(whole), history=recorded).batches())
    for range_ in _ranges([_local(line) for line in everything.splitlines()]):
        around = _around(range_)
        untrimmed = b"".join(RawReplay(_raw(around), history=recorded).batches())
        exact = replay(
            "bitmex",
            iso_us(range_[0]),
            iso_us(range_[1]),
            RAW,
            with_disconnects=True,
            exact=True,
            history=recorded,
        )
        kept = _kept(untrimmed.splitlines(keepends=True), range_)
        assert b"".join(exact.batches()) == b"".join(kept)
        options = _raw(around, window=range_)
        lines = b"".join(NativeReplay(options, history=recorded).blocks())
        native = [line for line in lines.splitlines() if line]
        assert [line[:26].decode() + "Z" for line in native] == [
            _local(line) for line in kept if line.strip()
        ]


def test_exact_raw_replays_are_merged_trimmed(sample: History) -> None:
    def times(**span: Any) -> list[int]:
        asked: Any = [
            {"exchange": exchange, "filters": [channel], **span}
            for exchange, channel in (("bitmex", "trade"), ("deribit", "trades"))
        ]
        return [local for local, _ in replay(asked, history=sample)]

    first, last = START_US + 12_345_678, START_US + 17_000_001
    exact = times(from_=iso_us(first), to=iso_us(last), exact=True)
    whole = times(from_=START, to="2024-03-01T00:01")
    assert exact == [local for local in whole if first <= local < last]
    assert exact


@pytest.mark.parametrize(
    ("from_", "to"),
    [
        ("2024-03-01T00:00:10.123456Z", "2024-03-01T00:00:40.5Z"),
        ("2024-03-01T00:00:10.123456Z", "2024-03-01T00:02:40.5Z"),
        ("2024-03-01T00:01", "2024-03-01T00:03"),
    ],
)
def test_tables_are_exact_unless_that_is_refused(sample: History, from_: str, to: str) -> None:
    def of(exact: bool | None = None) -> NormalizedReplay[Trade]:
        return replay_normalized(
            "bitmex",
            from_=from_,
            to=to,
            symbols=["XBTUSD"],
            data_types=["trade"],
            history=sample,
            exact=exact,
        )

    messages = [message.local_timestamp for message in of(exact=True)]
    assert messages
    first, last = parse_time(from_, "from"), parse_time(to, "to")
    assert all(first <= each < last for each in messages)
    column = of().to_arrow()["local_timestamp"].cast("int64").to_pylist()
    assert column == messages
    assert of().to_polars()["local_timestamp"].dt.epoch("us").to_list() == messages
    assert len(of().to_pandas()) == len(messages)
    if "10.1" in from_ and "00:02" in to:
        whole = [message.local_timestamp for message in of()]
        assert len(of(exact=False).to_arrow()) == len(whole) != len(messages)
        assert whole == [message.local_timestamp for message in of(exact=False)]


def test_messages_of_a_range_within_a_minute_are_refused_and_its_table_is_not(
    sample: History,
) -> None:
    within: Any = {"from_": "2024-03-01T00:00:10", "to": "2024-03-01T00:00:40"}
    within["data_types"] = ["trade"]
    asked = replay_normalized("bitmex", history=sample, **within)
    with pytest.raises(OptionsError, match=r"00:00:10.* holds no whole minute"):
        next(asked)
    assert len(asked.to_arrow())
    with pytest.raises(OptionsError, match="no whole minute"):
        replay_normalized("bitmex", history=sample, exact=False, **within)
    closed = replay_normalized("bitmex", history=sample, **within)
    closed.close()
    with pytest.raises(ReplayEndedError, match="was closed"):
        closed.to_arrow()
