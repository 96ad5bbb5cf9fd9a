"""Bybit's live books: ids without gaps."""

from typing import Any

import pytest

from tardis_machine.exchanges import BookGapError
from tests.exchanges.feed import Feed


def _book(number: int, kind: str = "delta") -> dict[str, Any]:
    data = {"s": "ADAUSDT", "b": [["0.45", "1"]], "a": [], "u": number}
    return {"topic": "orderbook.50.ADAUSDT", "type": kind, "ts": 1714521600000, "data": data}


def test_a_book_that_lost_an_update_waits_for_its_snapshot() -> None:
    feed = Feed("bybit", ["book_change"], live=True, checks_ids=True)
    assert len(feed(_book(10, "snapshot"))) == 1
    assert len(feed(_book(11))) == 1
    with pytest.raises(BookGapError, match="an update of ADAUSDT follows 12, the last was 11"):
        feed(_book(13))
    assert feed(_book(14)) == []
    assert len(feed(_book(1, "snapshot"))) == 1
    assert len(feed(_book(2))) == 1
