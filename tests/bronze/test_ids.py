"""Event ids: what makes two messages the same, and what does not."""

import re

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from tardis_machine.bronze import Context, Encoder, Origin
from tardis_machine.bronze.ids import identity
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.support.messages import BAR, QUOTE, TRADE


def ids(*lines: bytes, context: Context | None = None, position: int = 0) -> list[str]:
    batch = Encoder(context or Context()).encode_lines(b"\n".join(lines), position)
    return [event.event_id for event in batch.events()]


def test_an_id_is_stable_for_ever() -> None:
    """These are in tables: a change of what goes in would make every event a new one."""
    trade = b"6:bitmex,6:XBTUSD,5:trade,0:,2024-03-01T00:00:00.123456Z"
    bar = b"6:bitmex,6:XBTUSD,8:tradeBar,16:trade_bar_0.5vol,2024-03-01T00:00:01.123456Z"
    quote = b"6:bitmex,6:XBTUSD,5:quote,5:quote,2024-03-01T00:00:00.123456Z"
    opened, closed, ended = (
        Timestamp(seconds=1_709_251_200 + second, nanos=nanos)
        for second, nanos in ((0, 123_000_000), (1, 123_000_000), (2, 0))
    )
    bar_content = pb.TradeBar(
        open_str="1",
        high_str="2",
        low_str="1",
        close_str="2",
        volume_str="3",
        trade_count=2,
        event_ts=opened,
        end_ts=closed,
        buy_volume_str="1",
        sell_volume_str="2",
        vwap_str="1.5",
        bar_ts=ended,
    )
    quote_content = pb.Quote(bid_price_str="1", bid_qty_str="2", event_ts=opened)
    assert ids(TRADE, TRADE, BAR, QUOTE) == [
        xxh3_128_hexdigest(trade),
        xxh3_128_hexdigest(trade + b"#1"),
        xxh3_128_hexdigest(bar + bar_content.SerializeToString()),
        xxh3_128_hexdigest(quote + quote_content.SerializeToString()),
    ]
    assert ids(TRADE) == ["c0579b0b7dbf0f5e0c571c9e12d01d6d"]


def test_an_id_is_128_bits_in_lower_case() -> None:
    assert all(re.fullmatch("[0-9a-f]{32}", event_id) for event_id in ids(TRADE, BAR, QUOTE))


def test_the_way_a_message_came_does_not_matter() -> None:
    context = Context(
        source="other",
        producer_id="other",
        origin=Origin.REALTIME,
        ingest_us=1,
        request_id="other",
        session_id="other",
        meta={"other": "other"},
    )
    assert ids(TRADE, BAR, context=context, position=99) == ids(TRADE, BAR)


def test_what_else_was_asked_for_does_not_matter() -> None:
    assert ids(TRADE)[0] in ids(QUOTE, BAR, TRADE)
    assert ids(QUOTE)[0] in ids(BAR, TRADE, QUOTE)


def test_equal_messages_of_one_microsecond_are_different_events() -> None:
    several = ids(TRADE, TRADE, TRADE)
    assert len(set(several)) == 3
    assert several[:2] == ids(TRADE, TRADE)


def test_the_ordinal_counts_messages_whatever_their_content() -> None:
    """A trade's content is not in its id, so that a replay that rounds otherwise keeps ids."""
    other = TRADE.replace(b'"amount":100', b'"amount":200')
    assert ids(TRADE, other) == ids(other, TRADE)


@pytest.mark.parametrize(
    "change",
    [
        (b'"exchange":"bitmex"', b'"exchange":"deribit"'),
        (b"XBTUSD", b"ETHUSD"),
        (
            b'"localTimestamp":"2024-03-01T00:00:01.123456Z"',
            b'"localTimestamp":"2024-03-01T00:00:01.123457Z"',
        ),
        (b"trade_bar_0.5vol", b"trade_bar_1vol"),
        (b'"open":1,', b'"open":1.1,'),
        (b'"trades":2', b'"trades":3'),
        (b'"timestamp":"2024-03-01T00:00:02.000Z"', b'"timestamp":"2024-03-01T00:00:02.001Z"'),
    ],
)
def test_identity_and_content_of_a_computed_message_count(change: tuple[bytes, bytes]) -> None:
    changed = BAR.replace(*change)
    assert changed != BAR
    assert ids(changed) != ids(BAR)


def test_local_time_counts_but_not_how_it_is_printed() -> None:
    six = TRADE.replace(b"123456Z", b"123000Z")
    three = TRADE.replace(b"123456Z", b"123Z")
    assert ids(six) == ids(three) != ids(TRADE)


def test_levels_of_a_computed_message_count() -> None:
    assert ids(QUOTE) != ids(QUOTE.replace(b'"amount":2', b'"amount":3'))
    assert ids(QUOTE) != ids(
        QUOTE.replace(b'"bids"', b'"x"').replace(b'"asks"', b'"bids"').replace(b'"x"', b'"asks"')
    )


@given(st.text(max_size=3), st.text(max_size=3), st.text(max_size=3), st.text(max_size=3))
def test_names_are_never_taken_for_others(one: str, two: str, three: str, four: str) -> None:
    same = (one, two) == (three, four)
    assert (identity(one, two, "trade", "") == identity(three, four, "trade", "")) == same
    joined = identity(one + two, "", "trade", "") == identity(one, two, "trade", "")
    assert joined == (two == "")
