"""Poloniex's live books: ids without gaps."""

from typing import Any

import pytest

from tardis_machine.exchanges import BookGapError
from tests.exchanges.feed import Feed


def _book(previous: int, last: int, action: str = "update") -> dict[str, Any]:
    row = {"symbol": "ADA_USDT", "asks": [], "bids": [["0.35", "1"]], "ts": 1690000000100}
    data = [row | {"lastId": previous, "id": last}]
    return {"channel": "book_lv2", "data": data, "action": action}


def test_a_book_that_lost_an_update_waits_for_its_snapshot() -> None:
    feed = Feed("poloniex", ["book_change"], live=True, checks_ids=True)
    assert len(feed(_book(9, 10, "snapshot"))) == 1
    assert len(feed(_book(10, 11))) == 1
    with pytest.raises(BookGapError, match="an update of ADA_USDT follows 12, the last was 11"):
        feed(_book(12, 13))
    assert feed(_book(13, 14)) == []
    assert len(feed(_book(14, 15, "snapshot"))) == 1
