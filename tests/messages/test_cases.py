"""Which payload carries which message."""

import pytest

from tardis_machine import messages
from tardis_machine.messages import PAYLOAD_CASES, BookSnapshot, Time, payload_case
from tests.support.documents import KEYS


def snapshot(name: str, grouping: float | None) -> BookSnapshot:
    return BookSnapshot(
        symbol="s",
        exchange="e",
        name=name,
        depth=1,
        interval=0.0,
        grouping=grouping,
        bids=[],
        asks=[],
        timestamp=Time(0),
        local_timestamp=Time(0),
    )


@pytest.mark.parametrize(
    ("name", "grouping", "case"),
    [
        ("book_snapshot_5_0ms", None, "bookSnapshot"),
        ("book_snapshot_5_grouped0.5_0ms", 0.5, "groupedBookSnapshot"),
        ("quote", None, "quote"),
        ("quote_10s", None, "quote"),
    ],
)
def test_snapshots_are_three_cases(name: str, grouping: float | None, case: str) -> None:
    assert payload_case(snapshot(name, grouping)) == case


def test_every_other_type_is_one_case() -> None:
    assert set(messages.CASES) == set(KEYS) - {"book_snapshot"}
    snapshots = {"bookSnapshot", "quote", "groupedBookSnapshot"}
    assert {*messages.CASES.values(), *snapshots} == set(PAYLOAD_CASES)
