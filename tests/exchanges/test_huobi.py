"""Huobi's frames are compressed; its newer markets' trade ids are numbers that no integer holds."""

import gzip
import zlib
from collections.abc import Callable

import pytest

from tardis_machine import exchanges
from tests.exchanges.feed import Feed
from tests.support.live_streams import streaming
from tests.support.servers.exchange import ScriptedExchange

MESSAGE = b'{"ch":"market.btcusdt.trade.detail","ts":1,"tick":{"id":7,"ts":1,"data":[]}}'


def decode(name: str) -> Callable[[bytes], bytes]:
    live = exchanges.get(name).live
    assert live is not None
    return live.decode


@pytest.mark.parametrize("compress", [gzip.compress, zlib.compress, bytes])
def test_frames_are_gzip_zlib_or_plain(compress: Callable[[bytes], bytes]) -> None:
    assert decode("huobi")(compress(MESSAGE)) == MESSAGE


def test_trade_ids_become_text_where_history_has_text() -> None:
    sent = MESSAGE.replace(b'"id":7', b'"id": 123456789012345678901234567890')
    expected = MESSAGE.replace(b'"id":7', b'"id":"123456789012345678901234567890"')
    assert decode("huobi-dm")(gzip.compress(sent)) == expected
    book = sent.replace(b"trade.detail", b"depth.step0")
    assert decode("huobi-dm")(gzip.compress(book)) == book


@pytest.mark.parametrize(
    ("frame", "problem"),
    [
        (gzip.compress(MESSAGE)[:-20], "cut short"),
        (b"\x1f\x8b\x08garbage", "incorrect|invalid|unknown"),
        (b"", "cut short"),
        (gzip.compress(bytes(65 << 20), 1), "more than"),
    ],
    ids=["cut", "garbage", "empty", "too much"],
)
def test_what_is_no_frame_is_refused(frame: bytes, problem: str) -> None:
    with pytest.raises((ValueError, zlib.error), match=problem):
        decode("huobi")(frame)


async def test_compressed_frames_become_messages_and_broken_ones_a_new_connection() -> None:
    trade = {"id": 1, "ts": 1, "tradeId": 2, "amount": 3, "price": 4, "direction": "buy"}
    text = f'{{"ch":"market.btcusdt.trade.detail","ts":1,"tick":{{"data":[{trade}]}}}}'
    frame = gzip.compress(text.replace("'", '"').encode())
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "huobi", ["trade"], ["btcusdt"]) as reader,
    ):
        peer = await exchange.accepted()
        assert (await peer.received())["sub"] == "market.btcusdt.trade.detail"
        await peer.send(gzip.compress(b'{"ping":5}'))
        assert await peer.received() == {"pong": 5}
        await peer.send(frame)
        assert (await reader.next())["id"] == "2"
        await peer.send(frame[:-9])
        assert (await reader.until("disconnect"))["exchange"] == "huobi"
        again = await exchange.accepted()
        await again.send(frame)
        assert (await reader.until("trade"))["price"] == 4


@pytest.mark.parametrize("empty", [{"bids": None}, {}, {"bids": []}])
def test_update_with_null_bids_that_waits_for_its_snapshot_changes_no_bids(
    empty: dict[str, list[list[float]] | None],
) -> None:
    feed = Feed("huobi", ["book_change"])
    tick = {"prevSeqNum": 4, "seqNum": 5, "asks": [[2.5, 3]], **empty}
    assert feed({"ch": "market.kasusdt.mbp.400", "ts": 1709251200000, "tick": tick}) == []
    data = {"seqNum": 4, "bids": [[1.5, 1]], "asks": [[2, 1]]}
    rep = {"id": "1", "rep": "market.kasusdt.mbp.400", "ts": 1709251200000, "data": data}
    (snapshot,) = feed(rep)
    assert snapshot["bids"] == [{"price": 1.5, "amount": 1}]
    assert snapshot["asks"] == [{"price": 2, "amount": 1}, {"price": 2.5, "amount": 3}]
    later = {"prevSeqNum": 5, "seqNum": 6, "asks": [[2.5, 0]], **empty}
    (update,) = feed({"ch": "market.kasusdt.mbp.400", "ts": 1709251200001, "tick": later})
    assert (update["bids"], update["asks"]) == ([], [{"price": 2.5, "amount": 0}])
