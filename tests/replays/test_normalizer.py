import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.engine import Taken
from tardis_machine.exchanges.base.channels import ChannelHandlers, prefixed
from tardis_machine.exchanges.base.exchange import Channel, Era, Exchange, MapperContext
from tardis_machine.replays.merger import StreamMerger
from tardis_machine.replays.normalizer import NormalizeError, Normalizer
from tests.support.bitmex import book, stamp, trade
from tests.support.normalizers import START, ReadyBlocks, normalizer


def flat(stream: Normalizer) -> list[dict[str, Any]]:
    """All its messages."""
    messages = []
    while stream.reached is not None:
        if stream.needs_block:
            stream.read()
        else:
            stream.run()
        messages += decoded(stream.take())
    return messages


def decoded(taken: Taken) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in taken.data.splitlines()]


def test_local_times_drop_the_seventh_digit() -> None:
    (message,) = flat(normalizer(trade(1_234_567, digit=9)))
    assert message["localTimestamp"] == "2024-03-01T00:00:01.234567Z"


_gaps = st.lists(st.sampled_from([0, 0, 1, 5, None]), max_size=30)


@settings(max_examples=150, deadline=None)
@given(_gaps, st.lists(st.integers(0, 30)), st.booleans())
def test_borders_of_pieces_change_nothing(
    gaps: list[int | None], cuts: list[int], sends_disconnects: bool
) -> None:
    lines: list[bytes] = []
    now = 0
    for price, gap in enumerate(gaps):
        # The disconnect takes a local time, so the next message has a later one.
        now += 1 if gap is None else gap
        lines.append(b"\n" if gap is None else trade(now, price))
        now += gap is None
    borders = sorted({0, len(lines), *(cut for cut in cuts if cut < len(lines))})
    blocks = [b"".join(lines[a:b]) for a, b in pairwise(borders)]
    whole, cut = (
        list(StreamMerger([normalizer(*given, sends_disconnects=sends_disconnects)]).steps())
        for given in ([b"".join(lines)], blocks)
    )
    whole_data, cut_data = (
        [step.batch().data + step.batch().hidden for step in steps] for steps in (whole, cut)
    )
    assert b"".join(cut_data) == b"".join(whole_data)
    batches = [decoded(Taken(data, 0)) for data in cut_data if data]
    for before, after in pairwise(batches):
        assert before[-1]["localTimestamp"] < after[0]["localTimestamp"]


def test_lines_to_come_are_not_earlier_than_what_is_reached() -> None:
    stream = normalizer(b"\n" + trade(5) + b"\n" + trade(9), trade(7) + trade(6) + trade(8))
    assert stream.reached == ""
    stream.read()
    reached = []
    while stream.reached is not None:
        reached.append(stream.reached[20:-1].lstrip("0"))
        if stream.needs_block:
            stream.read()
        else:
            stream.run()
            stream._pace = 1
    assert reached == ["", "5", "5", "9", "9", "6", "6", "8", "8"]


def test_several_empty_lines_are_one_disconnect_also_across_pieces() -> None:
    stream = normalizer(trade(1) + b"\n\n", b"\n", b"\n" + trade(2) + b"\n", b"\n\n")
    assert [message["type"] for message in flat(stream)] == [
        "trade",
        "disconnect",
        "trade",
        "disconnect",
    ]


def test_a_disconnect_has_the_local_time_before_it_and_belongs_to_its_batch() -> None:
    for blocks in ([trade(1) + b"\n", trade(2)], [trade(1), b"\n", trade(2)]):
        steps = [step.batch().data for step in StreamMerger([normalizer(*blocks)]).steps()]
        first, second = (decoded(Taken(data, 0)) for data in steps if data)
        assert [message["type"] for message in first] == ["trade", "disconnect"]
        assert first[1]["localTimestamp"] == first[0]["localTimestamp"]
        assert [message["type"] for message in second] == ["trade"]


def test_a_disconnect_before_anything_is_not_told() -> None:
    assert [message["type"] for message in flat(normalizer(b"\n" + trade(1)))] == ["trade"]


def test_a_disconnect_nobody_asked_for_is_hidden_and_comes_last() -> None:
    stream = normalizer(trade(1) + b"\n" + trade(2) + trade(3), sends_disconnects=False)
    stream.read()
    stream._pace = 100
    stream.run()
    assert stream.take().count == 1
    hidden = stream.take_hidden()
    assert hidden is not None
    assert hidden.stamps == ["2024-03-01T00:00:00.000001Z"]
    assert msgspec.json.decode(hidden.data)["type"] == "disconnect"
    assert stream.take_hidden() is None
    assert [message["type"] for message in flat(stream)] == ["trade", "trade"]


def test_a_disconnect_starts_mappers_and_computables_anew() -> None:
    stream = normalizer(
        book(1, "partial", 10, 1),
        b"\n" + book(2, "update", 10, 2),
        book(3, "partial", 11, 3),
        data_types=["book_change", "quote"],
    )
    messages = flat(stream)
    assert [message.get("name", message["type"]) for message in messages] == [
        "book_change",
        "quote",
        "disconnect",
        "book_change",
        "book_change",
        "quote",
    ]
    assert messages[-1]["bids"] == [{"price": 11, "amount": 3}]
    assert stream.ignored_changes == 1


def test_malformed_lines_are_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    bad = f"{stamp(2)}0Z ".encode() + b'{"table":"trade","action":"insert","data":[{}]}\n'
    cut = f"{stamp(3)}0Z ".encode() + b'{"table":"trade","act\n'
    stream = normalizer(trade(1) + bad + b"garbage\n" + cut + trade(4))
    with caplog.at_level(logging.WARNING):
        assert [message["type"] for message in flat(stream)] == ["trade", "trade"]
    assert stream.malformed == 3
    (record,) = caplog.records
    assert record.__dict__["exchange"] == "bitmex"
    assert record.__dict__["channel"] == "trade"
    assert record.__dict__["time"] == "2024-03-01T00:00:00.000002Z"


def test_strict_ends_at_the_first_malformed_line() -> None:
    bad = f"{stamp(2)}0Z ".encode() + b'{"table":"trade","action":"insert","data":[{}]}\n'
    stream = normalizer(trade(1) + bad + trade(3), strict=True)
    with pytest.raises(NormalizeError, match=r"bitmex.*trade.*00:00:00\.000002Z") as caught:
        flat(stream)
    assert caught.value.channel == "trade"


def test_strict_ends_at_a_book_change_before_its_snapshot() -> None:
    stream = normalizer(book(1, "insert", 10, 1), data_types=["quote"], strict=True)
    with pytest.raises(NormalizeError, match="before the book's first snapshot"):
        flat(stream)


def test_symbols_nobody_asked_for_are_left_out() -> None:
    assert flat(normalizer(trade(1), symbols=["ethusd"])) == []
    assert len(flat(normalizer(trade(1), symbols=["xbtusd"]))) == 1
    assert len(flat(normalizer(trade(1), symbols=[]))) == 1


def test_a_failure_comes_after_what_was_read() -> None:
    class Failing(ReadyBlocks):
        def __next__(self) -> bytes:
            try:
                return super().__next__()
            except StopIteration:
                raise OSError("gone") from None

    stream = normalizer(of=Failing([trade(1) + trade(2), trade(3)]))
    assert len(flat(stream)) == 3
    assert isinstance(stream.failure, OSError)


def test_mappers_are_made_anew_at_an_eras_date() -> None:
    made: list[str] = []

    def makes(era: str) -> Callable[[MapperContext], ChannelHandlers]:
        def make(context: MapperContext) -> ChannelHandlers:
            made.append(era)

            def handle(line: bytes) -> bool:
                context.emitter.trade(era, None, 1, 1, "buy", None)
                return bool(line)

            return lambda _: handle

        return make

    eras = tuple(
        Era((Channel("trade"),), makes(era), until)
        for era, until in (("A", START + 2), ("B", START + 4), ("C", None))
    )
    exchange = Exchange(name="x", types={"trade": eras}, dispatch=prefixed(b'{"table":"', "table"))
    lines = b"".join(trade(us) for us in (1, 2, 3, 4, 5))
    for pace in (1, 2, 100):
        made.clear()
        stream = normalizer(lines, exchange=exchange)
        stream._pace = pace
        messages = flat(stream)
        assert [message["symbol"] for message in messages] == ["A", "B", "B", "C", "C"]
        assert made == ["A", "B", "C"]
