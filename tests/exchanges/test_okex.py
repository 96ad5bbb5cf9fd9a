"""OKEx live: ids of books, and the signature of its login."""

import hmac
from base64 import b64encode
from typing import Any

import pytest

from tardis_machine import exchanges
from tardis_machine.exchanges import BookGapError
from tardis_machine.exchanges.base.dialect import ConnectionContext
from tests.exchanges.feed import Feed


def _book(previous: int, last: int, action: str = "update") -> dict[str, Any]:
    row = {"bids": [["2", "1"]], "asks": [], "ts": "1709251200120"}
    return {
        "arg": {"channel": "books", "instId": "SOL-USDT"},
        "action": action,
        "data": [row | {"prevSeqId": previous, "seqId": last}],
    }


def test_a_book_that_lost_an_update_waits_for_its_snapshot() -> None:
    feed = Feed("okex", ["book_change"], live=True, checks_ids=True)
    assert len(feed(_book(-1, 10, "snapshot"))) == 1
    assert len(feed(_book(10, 15))) == 1
    with pytest.raises(BookGapError, match="an update of SOL-USDT follows 16, the last was 15"):
        feed(_book(16, 18))
    assert feed(_book(18, 19)) == []
    assert len(feed(_book(-1, 20, "snapshot"))) == 1


def test_login_is_signed() -> None:
    dialect = exchanges.get("okex").live
    assert dialect is not None
    assert dialect.login is not None
    message: Any = dialect.login(
        ConnectionContext(1_709_251_200_120, (), ("key", "secret", "phrase"))
    )
    digest = hmac.digest(b"secret", b"1709251200GET/users/self/verify", "sha256")
    assert message == {
        "op": "login",
        "args": [
            {
                "apiKey": "key",
                "passphrase": "phrase",
                "timestamp": "1709251200",
                "sign": b64encode(digest).decode(),
            }
        ],
    }
    assert dialect.logged_in({"event": "login", "code": "0"})
    assert not dialect.logged_in({"event": "login", "code": "60009"})
