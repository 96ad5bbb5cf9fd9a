"""Coinbase International live: every subscription is signed."""

import hmac
from base64 import b64encode

from tardis_machine import exchanges
from tardis_machine.exchanges.base.dialect import ConnectionContext
from tardis_machine.history.filters import Filter


def test_subscriptions_are_signed() -> None:
    dialect = exchanges.get("coinbase-international").live
    assert dialect is not None
    filters = [Filter("LEVEL2", ("ADA-PERP", "LINK-PERP")), Filter("MATCH", ("ADA-PERP",))]
    session = ConnectionContext(
        1_733_048_100_120, (), ("key", b64encode(b"secret").decode(), "phrase")
    )
    digest = hmac.digest(b"secret", b"1733048100keyCBINTLMDphrase", "sha256")
    common = {
        "type": "SUBSCRIBE",
        "time": "1733048100",
        "key": "key",
        "passphrase": "phrase",
        "signature": b64encode(digest).decode(),
    }
    assert list(dialect.subscribe(filters, session)) == [
        common | {"channels": ["LEVEL2"], "product_ids": ["ADA-PERP", "LINK-PERP"]},
        common | {"channels": ["MATCH"], "product_ids": ["ADA-PERP"]},
    ]
