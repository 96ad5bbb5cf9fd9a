"""Replays to rows, without Spark: the same rows however a day is cut."""

import itertools
import random
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tardis_machine.bronze import Context, Encoder, Origin
from tardis_machine.history import History
from tardis_machine.history.sample import SAMPLE
from tardis_machine.lake.sources.projections import (
    TROUBLE,
    Breaks,
    Disconnects,
    Events,
    Part,
    Projection,
    Rejects,
    Rows,
    project,
)
from tardis_machine.lake.sources.resumptions import between, matching
from tardis_machine.lake.sources.tardis import bucketed, slices
from tardis_machine.lake.units import case_of
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.lake.days import DAY_US, MINUTE_US, START_US, book, line, trade, trades, write_day

TYPES = ("trade", "book_change", "book_snapshot_5_1s", "trade_bar_10s", "quote")


def options(
    start: int, end: int, *, types: Sequence[str] = TYPES, exchange: str = "deribit"
) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange=exchange,
        from_=START_US + start,
        to=START_US + end,
        data_types=tuple(types),
        with_disconnect_messages=True,
    )


def rows(
    projection: Projection, replay: ReplayNormalizedOptions, history: History
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kept_from, part in slices(replay):
        for batch in project(projection, Part(part, kept_from), history):
            found += batch.to_pylist()
    return found


def sound(found: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Give rows by id, without their position, which depends on where the replay began."""
    kept = [dict(row) for row in found if row.get(TROUBLE) is None]
    for row in kept:
        del row["position"]
    by_id = {row["event_id"]: row for row in kept}
    assert len(by_id) == len(kept)
    return by_id


@pytest.mark.parametrize("exchange", ["deribit", "bitmex", "binance-futures"])
def test_the_same_rows_come_out_however_the_range_is_cut(exchange: str) -> None:
    chance = random.Random(7)
    end = 5 * MINUTE_US
    with History(source=SAMPLE) as history:
        for data_type in TYPES:
            case = case_of(data_type)
            whole = options(0, end, exchange=exchange)
            expected = sound(rows(Rows(case), whole, history))
            assert expected
            borders = sorted(chance.sample(range(1, 5), chance.randint(1, 3)))
            cuts = [0, *(minute * MINUTE_US for minute in borders), end]
            blocks: dict[str, dict[str, Any]] = {}
            for start, stop in itertools.pairwise(cuts):
                block = sound(rows(Rows(case), options(start, stop, exchange=exchange), history))
                assert not blocks.keys() & block.keys()
                blocks |= block
            assert blocks == expected, (data_type, borders)


def test_rows_have_the_ids_of_the_whole_replay_whatever_else_is_asked_for() -> None:
    replay = options(0, 2 * MINUTE_US)
    with History(source=SAMPLE) as history:
        encoder, ids, position = Encoder(Context(origin=Origin.REPLAY)), set(), 0
        for batch in NormalizedReplay([replay], history=history).batches():
            encoded = encoder.encode_lines(batch.data, position)
            ids |= {event.event_id for event in encoded.events()}
            position += batch.count
        found = [row["event_id"] for row in rows(Events(), replay, history)]
        in_silver = [
            row["event_id"]
            for data_type in TYPES
            for row in rows(Rows(case_of(data_type)), replay, history)
        ]
    assert set(found) == set(in_silver) == ids
    assert len(found) == len(in_silver) == len(ids)


def test_bars_of_a_day_end_with_it_and_start_anew_with_the_next(tmp_path: Path) -> None:
    last = DAY_US - MINUTE_US
    day = {0: trade(1), 1439: trade(last + 1, 7) + trade(DAY_US - 1, 8)}
    whole = options(0, DAY_US, types=["trade_bar_1m", "book_change", "trade"], exchange="bitmex")
    with History(cache_dir=write_day(tmp_path, day)) as history:
        bars = rows(Rows("tradeBar"), whole, history)
    assert [(str(bar["event_ts"]), bar["trade_count"]) for bar in bars] == [
        ("2024-03-01 00:01:00+00:00", 1),
        ("2024-03-02 00:00:00+00:00", 2),
    ]
    assert str(bars[-1]["local_ts"]) == "2024-03-01 23:59:59.999999+00:00"
    assert {str(bar["day"]) for bar in bars} == {"2024-03-01"}


def test_a_disconnect_between_two_parts_is_lost_by_neither(tmp_path: Path) -> None:
    # The recorder wrote its empty line into the minute in which it was connected again.
    day = {0: trade(1), 2: b"\n" + trade(2 * MINUTE_US)}
    types = ["trade", "book_change"]
    with History(cache_dir=write_day(tmp_path, day)) as history:

        def disconnects(start: int, end: int) -> set[str]:
            replay = options(start, end, types=types, exchange="bitmex")
            return {row["event_id"] for row in rows(Disconnects(), replay, history)}

        whole = disconnects(0, 4 * MINUTE_US)
        parts = [disconnects(at, at + MINUTE_US) for at in range(0, 4 * MINUTE_US, MINUTE_US)]
    assert len(whole) == 1
    assert set.union(*parts) == whole


def test_disconnects_are_told_of_a_time_unless_others_did(tmp_path: Path) -> None:
    seconds = [10, 50, 70, 130, 170]
    day = {
        minute: b"\n".join([b"", *(trade(at * 1_000_000) for at in seconds if at // 60 == minute)])
        for minute in range(3)
    }
    types = ["trade", "book_change"]

    def told(
        *times: tuple[int, int], end: int = 3, others: Sequence[tuple[int, int]] = ()
    ) -> list[int]:
        within = tuple((START_US + a * MINUTE_US, START_US + b * MINUTE_US) for a, b in times)
        before = tuple((START_US + a * 1_000_000, START_US + b * 1_000_000) for a, b in others)
        replay = options(0, end * MINUTE_US, types=types, exchange="bitmex")
        return [
            _second(row["local_ts"]) for row in rows(Disconnects(within, before), replay, history)
        ]

    def _second(moment: datetime) -> int:
        return int(moment.timestamp()) - START_US // 1_000_000

    with History(cache_dir=write_day(tmp_path, day)) as history:
        # There is one between any two trades, and none before the first or behind the last.
        every = [10, 50, 70, 130]
        assert told((0, 1440)) == every
        assert told((0, 3)) == every
        # The second and third are in files of the minutes in which it was connected again.
        assert told((0, 1)) == [10]
        assert told((1, 2)) == [50]
        assert told((0, 1), (2, 3)) == [10, 70, 130]
        assert told((0, 1), end=1) == [10]
        assert told() == []
        # What others told is left out, whatever lines they know it by.
        assert told((0, 1440), others=[(10, 50)]) == [50, 70, 130]
        assert told((0, 1440), others=[(5, 55), (60, 65)]) == [70, 130]
        assert told((0, 1), others=[(20, 30), (60, 61)]) == []
        assert told((0, 1), others=[(50, 50)]) == [10]
        replay = options(0, 3 * MINUTE_US, types=types, exchange="bitmex")
        times = [
            tuple(_second(row[name]) for name in ("local_ts", "earliest_ts", "latest_ts"))
            for row in rows(Breaks(), replay, history)
        ]
        assert times == [(10, 10, 50), (50, 60, 70), (70, 120, 130), (130, 130, 170)]


def test_a_disconnect_that_others_told_is_found_by_when_it_can_have_been() -> None:
    assert matching([], [(1, 2)]) == set()
    assert matching([(1, 5), (5, 9)], []) == set()
    assert matching([(1, 5), (5, 9)], [(5, 7)]) == {1}
    # One behind the other, each known by other lines.
    assert matching([(10, 35), (35, 50)], [(0, 32), (32, 45)]) == {0, 1}
    assert matching([(0, 32), (32, 45)], [(10, 35), (35, 50)]) == {0, 1}
    # Several that passed for one stand for one.
    assert matching([(1, 2), (3, 4), (5, 6)], [(0, 9)]) == {0}
    assert matching([(0, 9)], [(1, 2), (3, 4), (5, 6)]) == {0}
    # Lines of one time before and after it.
    assert matching([(5, 5)], [(4, 9)]) == matching([(4, 9)], [(5, 5)]) == {0}


def test_times_around_disconnects_are_found_in_whatever_pieces() -> None:
    first, second, third = (trade(at) for at in (1, 2, 3))
    one, two, three, end = (START_US + at for at in (1, 2, 3, 9))
    lines = [b"\n", first, b"\n", b"\n", b"no time\n", second, b"\n", third, b"\n"]
    for cuts in itertools.product((True, False), repeat=len(lines) - 1):
        blocks = [lines[0]]
        for each, cut in zip(lines[1:], cuts, strict=True):
            if cut:
                blocks.append(each)
            else:
                blocks[-1] += each
        found = {one: (one, two), two: (two, three), three: (three, end)}
        assert between([(0, block) for block in blocks], end) == found, blocks
        blocks = [part for block in blocks for part in (b"", block)]
        assert between([(0, block) for block in blocks], end) == found, blocks
    # The file that has it does not begin before it, nor that of the last of several.
    placed = [(0, first), (one + 5, b"\n"), (one + 6, b"\n"), (one + 7, third)]
    assert between(placed, end) == {one: (one + 6, three)}


def test_what_has_no_row_is_counted_and_can_be_read_whole(tmp_path: Path) -> None:
    malformed = line(MINUTE_US, {"table": "trade", "action": "insert", "data": [7]})
    huge = trades(MINUTE_US + 1, [(1e30, 1, "m"), (2, 1, "n")])
    day = {0: trade(1), 1: malformed * 2 + huge, 2: book(2 * MINUTE_US, "partial", 1, 2)}
    with History(cache_dir=write_day(tmp_path, day)) as history:

        def of(projection: Projection, start: int = 0) -> list[dict[str, Any]]:
            replay = options(
                start, 3 * MINUTE_US, types=["trade", "book_change"], exchange="bitmex"
            )
            return rows(projection, replay, history)

        trade_rows = of(Rows("trade"))
        assert [row[TROUBLE] for row in trade_rows].count("rejected") == 3
        assert len(sound(trade_rows)) == 2
        assert len(sound(of(Events()))) == 4
        assert len(of(Events(), 2 * MINUTE_US + MINUTE_US // 2)) == 0
        rejects = of(Rejects())
        later = of(Rejects(), 2 * MINUTE_US)
    assert [row["stage"] for row in rejects] == ["normalize", "normalize", "silver"]
    assert [row["value"] for row in rejects[:2]] == [malformed.rstrip()] * 2
    assert len({row["id"] for row in rejects}) == 3
    assert all(row["reason"] for row in rejects)
    assert rejects[2]["reason"].startswith("price '1000000000000000000000000000000' does not fit")
    assert (rejects[2]["symbol"], rejects[2]["data_type"]) == ("XBTUSD", "trade")
    assert later == []


def test_buckets_of_symbols_bring_the_same_rows() -> None:
    whole = msgspec.structs.replace(
        options(0, MINUTE_US, types=["trade", "quote"], exchange="bitmex"),
        symbols=("ETHUSD", "XBTUSD"),
    )
    buckets = bucketed(whole, 2)
    assert [each.symbols for each in buckets] == [("ETHUSD",), ("XBTUSD",)]
    with History(source=SAMPLE) as history:
        for case in ("trade", "quote"):
            expected = sound(rows(Rows(case), whole, history))
            apart = [sound(rows(Rows(case), bucket, history)) for bucket in buckets]
            assert apart[0]
            assert apart[0] | apart[1] == expected


def test_memory_does_not_grow_with_the_length_of_a_day() -> None:
    # A chunk is let go of before the next one is made.
    replay = options(0, 5 * MINUTE_US, exchange="binance-futures")
    with History(source=SAMPLE) as history:
        batches = [
            batch
            for kept_from, part in slices(replay)
            for batch in project(Events(), Part(part, kept_from), history)
        ]
    assert max(batch.nbytes for batch in batches) < 8 << 20
