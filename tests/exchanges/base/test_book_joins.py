import msgspec
import pytest

from tardis_machine.engine import create
from tardis_machine.exchanges import BookGapError, MapperError
from tardis_machine.exchanges.base.book_joins import (
    JoinedBook,
    apply_updates,
    overwrite_levels,
)
from tardis_machine.exchanges.base.errors import LostUpdateError
from tardis_machine.exchanges.base.exchange import MapperContext


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Nothing is emitted here: once is enough."""


class Update(msgspec.Struct):
    first_id: int
    last_id: int
    previous_id: int | None = None


class Overlapping(JoinedBook[Update]):
    overlaps = True


class Few(JoinedBook[Update]):
    max_kept = 2


def book(
    kind: type[JoinedBook[Update]] = JoinedBook, *, live: bool = False, checks_ids: bool = False
) -> JoinedBook[Update]:
    return kind("S", "depth", MapperContext("x", create("x", []), live, checks_ids))


def last_ids(updates: list[Update]) -> list[int]:
    return [update.last_id for update in updates]


def test_updates_newer_than_the_snapshot_are_returned() -> None:
    joined = book()
    for number in range(1, 6):
        assert not joined.accept(Update(number, number))
    assert not joined.has_snapshot
    newer = joined.updates_after(3)
    assert last_ids(newer) == [4, 5]
    joined.start(3, newer)
    assert joined.has_snapshot
    assert not joined.accept(Update(3, 3))
    assert joined.accept(Update(6, 6))


def test_an_update_of_the_snapshot_s_own_id_counts_where_updates_overlap() -> None:
    assert last_ids(_joined_at_3(Overlapping)) == [3, 4]
    assert last_ids(_joined_at_3(JoinedBook)) == [4]


def _joined_at_3(kind: type[JoinedBook[Update]]) -> list[Update]:
    joined = book(kind)
    for number in range(1, 5):
        joined.accept(Update(number, number))
    return joined.updates_after(3)


def test_a_snapshot_that_was_not_sent_changes_nothing() -> None:
    joined = book(live=True, checks_ids=True)
    joined.accept(Update(1, 1, 0))
    joined.accept(Update(2, 2, 1))
    assert last_ids(joined.updates_after(1)) == [2]
    assert not joined.has_snapshot
    assert last_ids(joined.updates_after(0)) == [1, 2]


def test_only_so_many_are_kept() -> None:
    joined = book(Few)
    for number in range(1, 6):
        joined.accept(Update(number, number))
    assert last_ids(joined.updates_after(0)) == [4, 5]


def test_history_goes_on_where_they_do_not_join() -> None:
    joined = book()
    joined.accept(Update(7, 9))
    newer = joined.updates_after(3)
    assert last_ids(newer) == [9]
    joined.start(3, newer)
    joined = book()
    joined.start(3, [])
    assert joined.accept(Update(7, 9))


def test_a_live_snapshot_that_does_not_join_leaves_what_was_kept_for_the_next() -> None:
    joined = book(live=True)
    for number in (7, 8, 9):
        joined.accept(Update(number, number, number - 1))
    for snapshot_id in (3, 5):
        with pytest.raises(BookGapError, match=rf"snapshot of S \(last update {snapshot_id}\)"):
            joined.updates_after(snapshot_id)
    newer = joined.updates_after(7)
    assert last_ids(newer) == [8, 9]
    joined.start(7, newer)
    assert joined.accept(Update(10, 10, 9))


def test_a_live_update_that_does_not_join_waits_for_the_next_snapshot() -> None:
    joined = book(live=True)
    joined.start(3, [])
    with pytest.raises(BookGapError, match="7 to 9"):
        joined.accept(Update(7, 9))
    assert not joined.has_snapshot
    assert not joined.accept(Update(10, 10))
    newer = joined.updates_after(8)
    assert last_ids(newer) == [9, 10]
    joined.start(8, newer)
    assert joined.accept(Update(11, 11))


def test_a_lost_update_makes_a_book_that_checks_ids_start_over() -> None:
    joined = book(live=True, checks_ids=True)
    joined.start(3, [])
    assert joined.accept(Update(4, 5, 3))
    assert joined.accept(Update(6, 6, 5))
    with pytest.raises(LostUpdateError, match="follows 7, the last was 6"):
        joined.accept(Update(8, 8, 7))
    assert not joined.accept(Update(9, 9, 8))
    newer = joined.updates_after(7)
    assert last_ids(newer) == [8, 9]
    joined.start(7, newer)
    assert joined.accept(Update(10, 10, 9))


def test_a_loss_among_kept_updates_is_noticed_where_ids_are_checked() -> None:
    joined = book(live=True, checks_ids=True)
    for number in (4, 5, 7, 8):
        joined.accept(Update(number, number, number - 1))
    with pytest.raises(LostUpdateError):
        joined.updates_after(3)
    assert last_ids(joined.updates_after(6)) == [7, 8]
    careless = book(live=True)
    for number in (4, 5, 7, 8):
        careless.accept(Update(number, number, number - 1))
    assert last_ids(careless.updates_after(3)) == [4, 5, 7, 8]


def test_updates_are_applied_to_levels_of_the_snapshot() -> None:
    levels = [["99", "1"], ["98", "2", "more"], ["97", None]]
    updates = [
        msgspec.Raw(b'[["99","0"],["96","5"],["95","0.00"]]'),
        [["98", 7], ["96", "6", 0]],
    ]
    assert apply_updates(levels, updates) == [("98", 7), ("97", 0), ("96", "6")]


def test_removed_levels_stay_in_overwritten_levels() -> None:
    levels = [["99", "1"], ["98", "2", "more"], ["98", "3"], ["97", None]]
    updates = [msgspec.Raw(b'[["99","0"],["96","5"]]'), [["98", 7], ["96", "6", 0]]]
    assert overwrite_levels(levels, updates) == [
        ("99", "0"),
        ("98", 7),
        ("98", "3"),
        ("97", 0),
        ("96", "6"),
    ]


@pytest.mark.parametrize("levels", [[["1"]], [[]], [7], [None]])
def test_levels_without_price_and_amount_are_malformed(levels: list[list[str]]) -> None:
    with pytest.raises(MapperError, match="a level without price and amount"):
        apply_updates(levels, [])
    with pytest.raises(MapperError, match="a level without price and amount"):
        apply_updates([], [levels])
    with pytest.raises(MapperError, match="a level without price and amount"):
        overwrite_levels(levels, [])
