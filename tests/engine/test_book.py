from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.engine import Emitter, create, parse
from tardis_machine.engine.datatypes import BookSnapshots
from tests.engine.model import Levels, ModelSnapshots, Rows

_PRICES = [round(tick * 0.1, 1) for tick in range(-30, 130, 3)]
_AMOUNTS = [0.0, 0.0, 0.1, 0.2, 0.3, 1.7, 5.0]

_levels = st.lists(st.tuples(st.sampled_from(_PRICES), st.sampled_from(_AMOUNTS)), max_size=14)
_change = st.tuples(
    st.sampled_from([True, False, False, False, False, False, False, False]),
    _levels,
    _levels,
    st.integers(0, 130),
)

_TYPES = (
    "book_snapshot_3_0ms",
    "quote",
    "book_snapshot_7_100ms",
    "quote_50ms",
    "book_snapshot_3_grouped1_0ms",
    "book_snapshot_4_grouped0.5_0ms",
    "book_snapshot_2_grouped0.7_100ms",
    "book_snapshot_40_0ms",
)


def _compare(types: tuple[str, ...], changes: list[tuple[bool, Levels, Levels, int]]) -> None:
    """Run one emitter with all types beside one model per type."""
    specs = [parse(name) for name in types]
    emitter = create("x", specs)
    emitter.begin("2024-03-01T00:00:00.000000Z")
    models = [ModelSnapshots(spec) for spec in specs if isinstance(spec, BookSnapshots)]
    now = 1_709_251_200_000
    for is_snapshot, bids, asks, later in changes:
        now += later
        emitter.book_change("S", is_snapshot, bids, asks, now)
        ours = [msgspec.json.decode(line) for line in emitter.take().data.splitlines()]
        expected = [
            (model.spec.name, _shown(due[0]), _shown(due[1]), due[2])
            for model in models
            for due in model.change(is_snapshot, bids, asks, now)
        ]
        assert [_read(message) for message in ours] == expected


def _shown(rows: Rows) -> list[dict[str, float]]:
    return [{} if row is None else {"price": row[0], "amount": row[1]} for row in rows]


def _read(message: dict[str, Any]) -> tuple[str, Any, Any, int]:
    seconds, ms = divmod(int(message["timestamp"][17:23].replace(".", "")), 1000)
    minutes = int(message["timestamp"][14:16])
    at = 1_709_251_200_000 + minutes * 60_000 + seconds * 1000 + ms
    return message["name"], message["bids"], message["asks"], at


@settings(max_examples=300, deadline=None)
@given(st.lists(_change, max_size=25))
def test_snapshots_equal_those_of_a_plain_model(
    changes: list[tuple[bool, Levels, Levels, int]],
) -> None:
    _compare(_TYPES, [(True, [(1.0, 5.0)], [(2.3, 1.7)], 0), *changes])


@settings(max_examples=60, deadline=None)
@given(st.lists(_change, max_size=10))
def test_changes_before_the_first_snapshot_are_ignored(
    changes: list[tuple[bool, Levels, Levels, int]],
) -> None:
    _compare(_TYPES, [(False, [(1.0, 5.0)], [(2.3, 1.7)], 0), *changes])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 29), st.sampled_from(_AMOUNTS[2:])), max_size=40))
def test_many_levels_change_at_once(several: list[tuple[int, float]]) -> None:
    levels: Levels = [(50.0 - at, 0.1) for at in range(30)]
    changed: Levels = [(50.0 - at, amount) for at, amount in several]
    _compare(
        ("book_snapshot_7_0ms", "book_snapshot_25_100ms"),
        [
            (True, levels, [(60.0, 1.7)], 0),
            (False, changed, [], 10),
            (False, changed[::2], [], 200),
        ],
    )


def _last_snapshot(emitter: Emitter) -> dict[str, Any]:
    message: dict[str, Any] = msgspec.json.decode(emitter.take().data.splitlines()[-1])
    return message


def test_a_crossing_ask_removes_bids() -> None:
    emitter = create("x", [parse("book_snapshot_2_0ms")])
    emitter.book_change("S", True, [(10, 1), (9, 1)], [(11, 1), (12, 1)], 1)
    emitter.book_change("S", False, [], [(9.5, 3)], 2)
    message = _last_snapshot(emitter)
    assert message["bids"] == [{"price": 9, "amount": 1}, {}]
    assert message["asks"] == [{"price": 9.5, "amount": 3}, {"price": 11, "amount": 1}]


def test_a_crossing_bid_removes_asks() -> None:
    emitter = create("x", [parse("book_snapshot_2_0ms")])
    emitter.book_change("S", True, [(10, 1), (9, 1)], [(11, 1), (12, 1)], 1)
    emitter.book_change("S", False, [(11.5, 3)], [], 2)
    message = _last_snapshot(emitter)
    assert message["bids"] == [{"price": 11.5, "amount": 3}, {"price": 10, "amount": 1}]
    assert message["asks"] == [{"price": 12, "amount": 1}, {}]


def test_a_change_below_the_depth_makes_no_snapshot() -> None:
    emitter = create("x", [parse("book_snapshot_2_0ms")])
    bids = [(price, 1) for price in range(1, 1000)]
    emitter.book_change("S", True, bids, [(2000, 1)], 1)
    emitter.take()
    emitter.book_change("S", False, [(500, 7), (3, 0), (3.5, 2)], [], 2)
    assert emitter.take().count == 0
    emitter.book_change("S", False, [(999, 0), (998, 0)], [], 3)
    assert _last_snapshot(emitter)["bids"][0] == {"price": 997, "amount": 1}


def test_a_malformed_change_leaves_the_book_as_it_was() -> None:
    emitter = create("x", [parse("book_snapshot_2_0ms")])
    emitter.book_change("S", True, [(10, 1)], [(11, 1)], 1)
    before = _last_snapshot(emitter)
    try:
        emitter.book_change("S", False, [(10, 2)], [("no price", 1)], 2)
    except ValueError:
        pass
    else:
        raise AssertionError("a level without a price was taken")
    emitter.book_change("S", False, [(9, 1)], [], 3)
    assert _last_snapshot(emitter)["bids"] == [before["bids"][0], {"price": 9, "amount": 1}]
