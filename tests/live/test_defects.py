"""The numbered defects of the reference client, each ruled out by a test of that number."""

import asyncio
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from aiohttp import web

from tardis_machine import exchanges
from tardis_machine.exchanges.base.dialect import Budget, DialectError
from tardis_machine.history.filters import Filter, normalize
from tardis_machine.live.addresses import rest_url, websocket_url
from tardis_machine.live.errors import ExchangeError, RateLimitError
from tardis_machine.live.hub import Hub
from tardis_machine.live.plan import plan
from tardis_machine.live.rest import Rest, retry_after
from tardis_machine.live.settings import LiveConfig
from tardis_machine.live.stream import NormalizedStream, stream_normalized
from tardis_machine.replays.requests import OptionsError
from tests.support.dialects import FACTS
from tests.support.live_messages import (
    BTC,
    DEPTH,
    OPEN_INTEREST,
    XBT,
    bitmex_book,
    bitmex_trade,
    depth,
    depth_snapshot,
    futures_trade,
    mark_price,
)
from tests.support.live_streams import QUICK, Reader, environ_of, options_of, streaming
from tests.support.servers.exchange import ScriptedExchange

WELCOME = {"info": "Welcome to the BitMEX Realtime API."}
SLOWER = LiveConfig(live_reconnect_s=0.1, live_reconnect_max_s=0.8, live_stable_s=30)


def test_d01_all_symbols_are_not_narrowed_by_a_list() -> None:
    asked = [Filter("trade", ("A",)), Filter("trade"), Filter("trade", ("B",))]
    assert normalize(asked) == [Filter("trade")]


@pytest.mark.parametrize(
    ("name", "symbols", "environ", "reason"),
    [
        ("deribit", None, {}, "expected at least one: book cannot be streamed for all symbols"),
        ("deribit", ["A"], {"DERIBIT_API_CLIENT_ID": "x"}, "set DERIBIT_API_CLIENT_SECRET"),
        ("deribit", [], {}, "expected at least one: book cannot be streamed for all symbols"),
        ("bitmex", None, {"WSS_URL_BITMEX": "http://x"}, "invalid WSS_URL_BITMEX: http://x"),
        ("bitmex", None, {"WSS_URL_BITMEX": "ws://x:99999"}, "invalid WSS_URL_BITMEX: no URL"),
        ("bitmex", None, {"WSS_URL_BITMEX": "ws://[::1"}, "invalid WSS_URL_BITMEX: no URL"),
    ],
)
async def test_d02_wrong_arguments_fail_before_anything_is_connected(
    name: str, symbols: list[str] | None, environ: dict[str, str], reason: str
) -> None:
    asked = {"exchange": name, "symbols": symbols, "dataTypes": ["book_change"]}
    hub = Hub(QUICK, environ=environ)
    async with NormalizedStream(options_of(asked), hub=hub) as stream:
        with pytest.raises(DialectError, match=reason) as e:
            await anext(stream.batches())
    assert e.value.exchange == name
    await hub.close()


@pytest.mark.parametrize(
    ("name", "data_type"), [("kroken", "trade"), ("bitmex", "option_summary"), ("bitmex", "x")]
)
async def test_d03_what_cannot_be_streamed_is_refused_at_once(name: str, data_type: str) -> None:
    with pytest.raises(OptionsError, match="invalid"):
        stream_normalized(exchange=name, data_types=[data_type], symbols=["A"])


async def test_d04_subscriptions_wait_for_the_answer_to_a_login() -> None:
    async with ScriptedExchange() as exchange:
        environ = environ_of(exchange, "deribit") | {
            "DERIBIT_API_CLIENT_ID": "me",
            "DERIBIT_API_CLIENT_SECRET": "hush",
        }
        hub = Hub(QUICK, environ=environ)
        async with streaming(exchange, "deribit", ["trade"], ["A"], hub=hub):
            peer = await exchange.accepted()
            assert (await peer.received())["method"] == "public/set_heartbeat"
            assert (await peer.received())["method"] == "public/auth"
            await peer.send({"jsonrpc": "2.0", "id": 0, "result": "ok"})
            await asyncio.sleep(0.3)
            assert peer.heard() == []
            await peer.send({"jsonrpc": "2.0", "id": 1, "result": {"access_token": "t"}})
            assert (await peer.received())["method"] == "private/subscribe"
        await hub.close()


async def _accept_and_note(exchange: ScriptedExchange, times: int) -> list[float]:
    """Close each connection; return the pauses between them."""
    at = []
    for _ in range(times):
        peer = await exchange.accepted()
        at.append(time.monotonic())
        await peer.close()
    return [later - earlier for earlier, later in pairwise(at)]


async def test_d05_pauses_double_when_a_server_accepts_and_closes() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], config=SLOWER) as reader,
    ):
        pauses = await _accept_and_note(exchange, 5)
        errors = [await reader.until("error") for _ in range(4)]
    assert [pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.4), strict=True)]
    assert all(pause >= least for pause, least in zip(pauses, (0.05, 0.1, 0.2, 0.4), strict=True))
    assert [each["subSequentErrorsCount"] for each in errors] == [1, 2, 3, 4]


async def test_d06_greeting_does_not_reset_the_backoff() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], config=SLOWER) as reader,
    ):
        at = []
        for _ in range(4):
            peer = await exchange.accepted()
            at.append(time.monotonic())
            await peer.send(WELCOME)
            await peer.send({"success": True, "subscribe": "trade"})
            await peer.send({"error": "The system is overloaded."})
            assert "overloaded" in (await reader.until("error"))["details"]
            await peer.gone()
    assert at[3] - at[2] >= 0.2


async def test_d06_one_refused_symbol_is_reported_and_the_others_go_on() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], [XBT, "NOPE"]) as reader,
    ):
        peer = await exchange.accepted()
        await peer.send({"status": 400, "error": "Unknown or expired symbol: NOPE"})
        await peer.send(bitmex_trade(1))
        assert "NOPE" in (await reader.next())["details"]
        assert (await reader.next())["type"] == "trade"
        assert exchange.waiting() == 0


@pytest.mark.parametrize(
    ("name", "told"),
    [("bybit", "error:handler not found,topic:{}"), ("bybit-spot", "Invalid symbol :[{}]")],
)
async def test_d06_topics_refused_with_another_are_subscribed_again(name: str, told: str) -> None:
    """Bybit refuses a whole message for one topic in it."""
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, name, ["trade"], ["BTCUSDT", "NOPEUSDT", "NONEUSDT"]) as reader,
    ):
        peer = await exchange.accepted()
        args = ["publicTrade.BTCUSDT", "publicTrade.NONEUSDT", "publicTrade.NOPEUSDT"]
        for refused in ("publicTrade.NOPEUSDT", "publicTrade.NONEUSDT"):
            assert await peer.received() == {"op": "subscribe", "args": args}
            said = told.format(refused)
            await peer.send({"success": False, "ret_msg": said, "conn_id": "c", "op": "subscribe"})
            assert refused in (await reader.next())["details"]
            args.remove(refused)
        assert await peer.received() == {"op": "subscribe", "args": ["publicTrade.BTCUSDT"]}
        trade = {"T": 1, "s": "BTCUSDT", "S": "Buy", "v": "1", "p": "2", "i": "id"}
        await peer.send(
            {"topic": "publicTrade.BTCUSDT", "type": "snapshot", "ts": 1, "data": [trade]}
        )
        assert (await reader.next())["type"] == "trade"
        assert exchange.waiting() == 0


async def test_d06_products_refused_with_another_are_subscribed_again() -> None:
    """Coinbase refuses a whole message for one product in it."""
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "coinbase", ["trade"], ["BTC-USD", "NOPE-USD", "NO-USD"]) as reader,
    ):
        peer = await exchange.accepted()
        products = ["BTC-USD", "NO-USD", "NOPE-USD"]
        for refused in ("NOPE-USD", "NO-USD"):
            channels = [{"name": "matches", "product_ids": products}]
            assert await peer.received() == {"type": "subscribe", "channels": channels}
            reason = f"{refused} is not a valid product"
            await peer.send({"type": "error", "message": "Failed to subscribe", "reason": reason})
            assert refused in (await reader.next())["details"]
            products.remove(refused)
        channels = [{"name": "matches", "product_ids": ["BTC-USD"]}]
        assert await peer.received() == {"type": "subscribe", "channels": channels}
        assert exchange.waiting() == 0


async def test_d06_streams_refused_with_another_are_subscribed_again() -> None:
    """Gemini refuses a whole message for one stream in it."""
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "gemini", ["trade"], ["BTCUSD", "NOPE", "NONE"]) as reader,
    ):
        peer = await exchange.accepted()
        streams = ["btcusd@trade", "none@trade", "nope@trade"]
        for refused in ("nope@trade", "none@trade"):
            assert (await peer.received())["params"] == streams
            error = {"code": -1013, "msg": f"Invalid stream name: {refused}"}
            await peer.send({"id": 1, "status": 400, "error": error})
            assert refused in (await reader.next())["details"]
            streams.remove(refused)
        assert (await peer.received())["params"] == ["btcusd@trade"]
        assert exchange.waiting() == 0


async def test_answer_to_a_subscription_is_not_a_malformed_book() -> None:
    """Crypto.com names the channel in it, where its messages do."""
    row = {"bids": [["1", "2", "1"]], "asks": [], "t": 1770000000000, "u": 7}
    book = {"instrument_name": "SOLUSD-PERP", "channel": "book", "data": [row]}
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "crypto-com", ["book_change"], ["SOLUSD-PERP"]) as reader,
    ):
        peer = await exchange.accepted()
        await peer.received()
        answer = {"id": 1, "method": "subscribe", "code": 0}
        await peer.send(answer | {"channel": "book.SOLUSD-PERP.50"})
        await peer.send(answer | {"result": book})
        assert (await reader.next())["isSnapshot"]
        assert exchange.waiting() == 0


def test_d07_digits_in_a_text_are_not_a_rate_limit() -> None:
    assert ExchangeError("order 429 at 429.5 rejected").retry_after_s == 0
    assert RateLimitError("https://x", 429, 7).retry_after_s == 7


async def test_d08_limit_of_silence_doubles_for_a_stream_with_rare_data() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["liquidation"], [BTC], timeoutIntervalMS=100),
    ):
        peer = await exchange.accepted()
        await asyncio.sleep(1.0)
        assert not peer.ended.is_set()
        assert peer.pings > 0
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], [XBT], timeoutIntervalMS=100) as reader,
    ):
        lives = []
        for _ in range(4):
            peer = await exchange.accepted()
            await peer.send(bitmex_trade(1))
            since = time.monotonic()
            await reader.until("disconnect")
            lives.append(time.monotonic() - since)
    assert lives[3] > 0.8


async def test_d08_dead_channel_beside_a_busy_one_ends_the_connection() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(
            exchange, "bitmex", ["trade", "book_change"], [XBT], timeoutIntervalMS=200
        ) as reader,
    ):
        peer = await exchange.accepted()
        await peer.send(bitmex_book("partial", (1, 100, 5)))
        for price in range(40):
            await peer.send(bitmex_trade(price + 1))
            await peer.send(bitmex_book("update", (1, 100, price + 1)))

        async def keep_trading() -> None:
            while not peer.ended.is_set():
                await peer.send(bitmex_trade(1))
                await asyncio.sleep(0.01)

        trading = asyncio.create_task(keep_trading())
        disconnect = await reader.until("disconnect")
        assert disconnect["symbols"] == [XBT]
        await peer.gone()
        trading.cancel()
        await asyncio.gather(trading, return_exceptions=True)


async def test_d08_exchange_without_any_answer_is_reconnected() -> None:
    config = LiveConfig(live_reconnect_s=0.02, live_silence_s=0.5)
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["liquidation"], [BTC], config=config) as reader,
    ):
        peer = await exchange.accepted()
        peer.answers_pings = False
        assert "no sign of life" in (await reader.until("error"))["details"]
        await exchange.accepted()


async def test_d09_a_consumer_that_pauses_keeps_its_connection() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"], timeoutIntervalMS=2000) as reader,
    ):
        peer = await exchange.accepted()
        reader.pause()
        for price in range(100):
            await peer.send(bitmex_trade(price + 1))
            await asyncio.sleep(0.04)
        reader.go_on()
        prices = [(await reader.next())["price"] for _ in range(100)]
        assert prices == list(range(1, 101))
        assert exchange.waiting() == 0


async def test_d10_local_time_is_the_time_of_arrival() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["trade"]) as reader,
    ):
        peer = await exchange.accepted()
        reader.pause()
        await peer.send(bitmex_trade(1))
        await peer.send(bitmex_trade(2))
        await asyncio.sleep(0.5)
        asked_at = time.gmtime(time.time()), time.time()
        await asyncio.sleep(0.5)
        reader.go_on()
        stamps = [(await reader.next())["localTimestamp"] for _ in range(2)]
    now = time.strftime("%Y-%m-%dT%H:%M:%S", asked_at[0]) + f".{asked_at[1] % 1:.6f}"[2:]
    assert stamps[0] < stamps[1] < now
    assert len(stamps[0]) == 27


async def test_d11_long_ids_keep_their_digits() -> None:
    number = 123456789012345678901234567
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["trade"], [BTC]) as reader,
    ):
        peer = await exchange.accepted()
        text = msgspec.json.encode(futures_trade("0.0000001", number=7)).decode()
        await peer.send(text.replace('"t":7', f'"t":{number}'))
        await reader.next()
    assert b'"id":"%d","price":1e-7' % number in reader.lines[0]


async def test_d12_a_cut_connection_resets_its_own_state_only() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(
            exchange, "binance-futures", ["book_change", "derivative_ticker"], [BTC]
        ) as reader,
    ):
        exchange.rest[DEPTH] = depth_snapshot(100, ["99", "1"])
        peers = {each.path: each for each in [await exchange.accepted(), await exchange.accepted()]}
        public, market = peers["/public/stream"], peers["/market/stream"]
        await public.send({"result": None, "id": 1})
        assert (await reader.until("book_change"))["isSnapshot"]
        await public.send(depth(100, 101, 99, ["100", "2"]))
        assert not (await reader.until("book_change"))["isSnapshot"]
        await market.send(mark_price("5"))
        await reader.until("derivative_ticker")
        market.cut()
        await reader.until("disconnect")
        again = await reader.until("book_change")
        assert again["isSnapshot"]  # a client that dropped all books gets this one again
        assert again["bids"] == [{"price": 99, "amount": 1}, {"price": 100, "amount": 2}]
        assert (await exchange.accepted()).path == "/market/stream"
        await public.send(depth(102, 102, 101, ["100", "3"]))
        change = await reader.until("book_change")
        assert not change["isSnapshot"]
        assert change["bids"] == [{"price": 100, "amount": 3}]
        assert exchange.requests.count(f"{DEPTH}?symbol={BTC}&limit=1000") == 1


async def test_d13_pollers_report_what_fails() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["derivative_ticker"], [BTC]) as reader,
    ):
        exchange.rest[OPEN_INTEREST] = lambda _: web.Response(status=500, text="on fire")
        assert "status 500: on fire" in (await reader.until("error"))["details"]


@pytest.mark.parametrize("endpoint", ['"ws://127.0.0.1:99999"', '"ws://[::1"', '"\udcff"', "7"])
async def test_answer_without_an_address_is_requested_again(endpoint: str) -> None:
    made = f'{{"data":{{"token":"x","instanceServers":[{{"endpoint":{endpoint}}}]}}}}'
    body = made.encode(errors="surrogateescape")
    async with ScriptedExchange() as exchange:
        exchange.rest["/api/v1/bullet-public"] = lambda _: web.Response(body=body)
        hub = Hub(QUICK, environ={"REST_URL_KUCOIN": exchange.rest_url})
        async with streaming(None, "kucoin", ["trade"], ["BTC-USDT"], hub=hub) as reader:
            for count in (1, 2):
                error = await reader.until("error")
                assert error["details"].startswith("cannot connect to ")
                assert error["subSequentErrorsCount"] == count
        await hub.close()


async def test_answer_that_is_not_text_is_requested_again() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "kucoin-futures", ["book_change"], ["XBTUSDTM"]) as reader,
    ):
        exchange.rest["/api/v1/bullet-public"] = lambda _: web.json_response(
            {"data": {"token": "x", "instanceServers": [{"endpoint": exchange.ws_url}]}}
        )
        exchange.rest["/api/v1/level2/snapshot"] = lambda _: web.Response(body=b'{"\xff":1}')
        for _ in range(2):
            assert "utf-8" in (await reader.until("error"))["details"]


async def test_d14_snapshots_of_quiet_symbols_are_requested() -> None:
    symbols = [f"S{number}USDT" for number in range(30)]
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], symbols) as reader,
    ):
        exchange.rest[DEPTH] = depth_snapshot(1, ["1", "1"])
        peer = await exchange.accepted()
        await peer.send({"result": None, "id": 1})
        found = {(await reader.until("book_change"))["symbol"] for _ in symbols}
    assert found == set(symbols)


async def test_d15_a_snapshot_does_not_wait_for_the_next_update() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC]) as reader,
    ):
        exchange.rest[DEPTH] = depth_snapshot(100, ["99", "1"])
        peer = await exchange.accepted()
        await peer.send(depth(99, 100, 98))
        assert (await reader.next())["isSnapshot"]


async def test_d16_a_symbol_whose_snapshot_fails_is_tried_again_alone() -> None:
    delisted: set[str] = {"GONEUSDT"}

    def answer(request: web.Request) -> web.StreamResponse:
        if request.query["symbol"] in delisted:
            return web.json_response({"code": -1121, "msg": "Invalid symbol."}, status=404)
        return web.json_response({"lastUpdateId": 1, "bids": [["1", "1"]], "asks": []})

    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC, "GONEUSDT"]) as reader,
    ):
        exchange.rest[DEPTH] = answer
        peer = await exchange.accepted()
        await peer.send({"result": None, "id": 1})
        assert (await reader.until("book_change"))["symbol"] == BTC
        assert "status 404" in (await reader.until("error"))["details"]
        assert "status 404" in (await reader.until("error"))["details"]
        delisted.clear()
        assert (await reader.until("book_change"))["symbol"] == "GONEUSDT"
        assert exchange.waiting() == 0
        asked = [each for each in exchange.requests if BTC in each]
        assert len(asked) == 1


async def test_answer_over_the_size_limit_is_dropped() -> None:
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)
            sent += 65536

    async with (
        ScriptedExchange() as exchange,
        streaming(
            exchange,
            "binance-futures",
            ["book_change"],
            [BTC],
            config=LiveConfig(live_max_frame_bytes=1 << 20),
        ) as reader,
    ):
        exchange.rest[DEPTH] = endless
        peer = await exchange.accepted()
        await peer.send(depth(100, 101, 99))
        assert "an answer of more than 1048576 bytes" in (await reader.next())["details"]
    assert sent < 1 << 24


@pytest.mark.parametrize("bad", [b"", b"null", b"[]", b"<html>"])
async def test_d16_malformed_snapshot_is_requested_again_alone(bad: bytes) -> None:
    answers = iter([web.Response(body=bad)])
    good = depth_snapshot(100, ["99", "1"])
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC]) as reader,
    ):
        exchange.rest[DEPTH] = lambda request: next(answers, None) or good(request)
        peer = await exchange.accepted()
        await peer.send(depth(100, 101, 99, ["98", "2"]))
        assert (await reader.next())["details"].startswith("btcusdt: ")
        assert (await reader.next())["isSnapshot"]
        assert not peer.ended.is_set()


async def test_d16_snapshot_of_another_symbol_is_requested_again() -> None:
    other = {"lastUpdateId": 100, "symbol": "ETHUSDT", "bids": [["1", "1"]], "asks": []}
    answers = iter([web.json_response(other)])
    good = depth_snapshot(100, ["99", "1"])
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC]) as reader,
    ):
        exchange.rest[DEPTH] = lambda request: next(answers, None) or good(request)
        peer = await exchange.accepted()
        await peer.send(depth(100, 101, 99, ["98", "2"]))
        assert (await reader.next())["details"] == "a book of ETHUSDT instead of BTCUSDT"
        assert [level["price"] for level in (await reader.next())["bids"]] == [99, 98]


async def test_d17_a_snapshot_that_does_not_join_is_fetched_again_for_its_symbol() -> None:
    ids = iter((50, 60, 110))

    def answer(request: web.Request) -> web.StreamResponse:
        last_id = 7 if request.query["symbol"] == "ETHUSDT" else next(ids)
        return web.json_response({"lastUpdateId": last_id, "bids": [["1", "1"]], "asks": []})

    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC, "ETHUSDT"]) as reader,
    ):
        exchange.rest[DEPTH] = answer
        peer = await exchange.accepted()
        await peer.send(depth(100, 120, 99, ["1", "3"]))
        books = {}
        while len(books) < 2:
            change = await reader.until("book_change")
            books[change["symbol"]] = change
        assert books[BTC]["bids"] == [{"price": 1, "amount": 3}]
        assert exchange.waiting() == 0
        assert sum("ETHUSDT" in each for each in exchange.requests) == 1


async def test_d18_lost_update_requests_the_snapshot_again() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(
            exchange, "binance-futures", ["book_change", "book_snapshot_5_0ms"], [BTC]
        ) as reader,
    ):
        exchange.rest[DEPTH] = depth_snapshot(100, ["99", "1"])
        peer = await exchange.accepted()
        await peer.send({"result": None, "id": 1})
        await reader.until("book_snapshot")
        await peer.send(depth(100, 101, 99, ["100", "2"]))
        await reader.until("book_snapshot")
        exchange.rest[DEPTH] = depth_snapshot(110, ["98", "7"])
        await peer.send(depth(104, 105, 103, ["55", "5"]))  # 102 and 103 are lost
        await peer.send(depth(106, 111, 105, ["97", "4"]))
        assert "an update of BTCUSDT follows 103" in (await reader.next())["details"]
        change = await reader.next()
        assert change["isSnapshot"]
        assert change["bids"] == [{"price": 98, "amount": 7}, {"price": 97, "amount": 4}]
        snapshot = await reader.next()
        assert [level for level in snapshot["bids"] if level] == change["bids"]
        assert exchange.waiting() == 0


async def test_d18_books_without_rest_snapshots_are_subscribed_again() -> None:
    """An update that is no message may have been any: the connection starts anew."""
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "bitmex", ["book_change"], [XBT]) as reader,
    ):
        peer = await exchange.accepted()
        await peer.send(bitmex_book("partial", (1, 100, 5)))
        await reader.until("book_change")
        await peer.send('{"table":"orderBookL2","action":"update","data":17}')
        assert [(await reader.next())["type"] for _ in range(2)] == ["error", "disconnect"]
        peer = await exchange.accepted()
        await peer.send(bitmex_book("partial", (2, 200, 5)))
        assert (await reader.until("book_change"))["bids"] == [{"price": 200, "amount": 5}]


def deribit_book(change_id: int, previous: int | None = None) -> dict[str, Any]:
    data: dict[str, Any] = {
        "type": "snapshot" if previous is None else "change",
        "timestamp": 1709251200000,
        "instrument_name": "BTC-PERPETUAL",
        "change_id": change_id,
        "bids": [["new", change_id, 1]],
        "asks": [],
    }
    data |= {} if previous is None else {"prev_change_id": previous}
    params = {"channel": "book.BTC-PERPETUAL.raw", "data": data}
    return {"jsonrpc": "2.0", "method": "subscription", "params": params}


async def test_d18_lost_update_of_deribit_subscribes_the_book_again() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "deribit", ["book_change"], ["BTC-PERPETUAL"]) as reader,
    ):
        peer = await exchange.accepted()
        while (await peer.received())["method"] != "public/subscribe":
            pass
        for message in (deribit_book(10), deribit_book(11, 10), deribit_book(15, 13)):
            await peer.send(message)
        assert [(await reader.next())["type"] for _ in range(3)] == [
            *("book_change", "book_change", "error")
        ]
        assert (await peer.received())["method"] == "public/unsubscribe"
        assert (await peer.received())["method"] == "public/subscribe"
        await peer.send(deribit_book(16, 15))
        await peer.send(deribit_book(20))
        assert (await reader.until("book_change"))["bids"] == [{"price": 20, "amount": 1}]


async def test_d18_book_that_never_joins_is_subscribed_with_growing_pauses() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "deribit", ["book_change"], ["BTC-PERPETUAL"]) as reader,
    ):
        peer = await exchange.accepted()
        times: list[float] = []
        while len(times) < 4:
            method = (await peer.received()).get("method")
            if method == "public/subscribe":
                times.append(time.monotonic())
                await peer.send(deribit_book(10))
                await peer.send(deribit_book(11, 10))
                await peer.send(deribit_book(15, 13))  # another is lost each time
                await peer.send(deribit_book(16, 15))
        found = [await reader.next() for _ in range(6)]
        [feed] = reader.stream._hub._feeds.values()
        assert all(len(each._tasks) < 2 for each in feed._connections)
    assert [each["type"] for each in found] == ["book_change", "book_change", "error"] * 2
    waits = [later - earlier for earlier, later in pairwise(times)]
    assert all(wait >= 0.12 * 2**number for number, wait in enumerate(waits))


async def test_d19_removed_levels_are_not_part_of_a_snapshot() -> None:
    async with (
        ScriptedExchange() as exchange,
        streaming(exchange, "binance-futures", ["book_change"], [BTC]) as reader,
    ):
        exchange.rest[DEPTH] = depth_snapshot(100, ["99", "1"], ["98", "2"])
        peer = await exchange.accepted()
        await peer.send(depth(100, 101, 99, ["98", "0"]))
        assert (await reader.next())["bids"] == [{"price": 99, "amount": 1}]


async def test_d20_wait_for_the_rate_limit_is_shared_and_can_be_cancelled() -> None:
    async with ScriptedExchange() as exchange:
        exchange.rest["/a"] = lambda _: web.Response(text="{}")
        hub = Hub(QUICK)
        budget = Budget(per_minute=50)
        rest = Rest(hub.resources.http, lambda url: exchange.rest_url + url, budget, window_s=3600)
        await rest.get("/a", weight=30)  # a snapshot
        waiting = asyncio.create_task(rest.get("/a", weight=30))  # and a poller
        await asyncio.sleep(0.2)
        assert not waiting.done()
        assert len(exchange.requests) == 1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await hub.close()


async def test_d21_a_stream_that_fails_leaves_the_others_running() -> None:
    async with ScriptedExchange() as exchange:
        environ = environ_of(exchange, "bitmex") | {"WSS_URL_DERIBIT": "ws://127.0.0.1:1"}
        hub = Hub(QUICK, environ=environ)
        asked: list[dict[str, Any]] = [
            {"exchange": "deribit", "dataTypes": ["trade"], "symbols": ["A"]},
            {"exchange": "bitmex", "dataTypes": ["trade"], "withErrorMessages": True},
        ]
        async with NormalizedStream(options_of(*asked), hub=hub) as stream:
            reader = Reader(stream)
            peer = await exchange.accepted()
            assert (await reader.until("error"))["exchange"] == "deribit"
            await peer.send(bitmex_trade(1))
            assert (await reader.until("trade"))["exchange"] == "bitmex"
            await reader.close()
        await hub.close()


@pytest.mark.parametrize("name", [n for n in exchanges.names() if exchanges.get(n).live])
def test_d22_every_type_subscribes_something_and_nothing_empty(name: str) -> None:
    exchange = exchanges.get(name)
    assert exchange.live is not None
    secrets = exchange.live.secrets
    environ = {} if secrets is None else dict.fromkeys(secrets.names, "c2VjcmV0")
    asked = [case["symbols"] for case in FACTS[name]["subscribes"]]
    symbols = next(each for each in asked if each is not None)
    for data_type in exchange.data_types():
        planned = plan(replace(exchange, closed=""), [data_type], symbols, environ)
        assert planned.connections or planned.pollers
        for connecting in planned.connections:
            messages = list(exchange.live.subscribe(connecting.filters, planned.context()))
            assert all(messages), (data_type, messages)


def test_d23_every_url_has_an_override_of_its_own() -> None:
    dialect = exchanges.get("binance-futures").live
    assert dialect is not None
    public, market = dialect.endpoints
    name = "binance-futures"

    def both(environ: dict[str, str]) -> list[str]:
        return [websocket_url(name, e, dialect.endpoints, environ) for e in (public, market)]

    assert both({}) == [public.url, market.url]
    for base in ("ws://h:1", "ws://h:1/", "ws://h:1/stream", "ws://h:1/public/stream"):
        assert both({"WSS_URL_BINANCE_FUTURES": base}) == [
            "ws://h:1/public/stream",
            "ws://h:1/market/stream",
        ]
    assert both({"WSS_URL_BINANCE_FUTURES": "ws://h/proxy/public/stream"})[1] == (
        "ws://h/proxy/market/stream"
    )
    assert both({"WSS_URL_BINANCE_FUTURES_MARKET": "ws://m/x?y=1"}) == [public.url, "ws://m/x?y=1"]
    url = "https://fapi.binance.com/fapi/v1/depth?symbol=A"
    assert rest_url(name, url, {"REST_URL_BINANCE_FUTURES": "http://h:2/"}) == (
        "http://h:2/fapi/v1/depth?symbol=A"
    )
    assert rest_url(name, url, {}) == url


def test_d24_streams_are_split_over_connections() -> None:
    symbols = [f"S{number}USDT" for number in range(700)]
    types = ["trade", "book_change", "book_ticker"]
    planned = plan(exchanges.get("binance-futures"), types, symbols, {})
    assert len(planned.connections) == 3
    for each in planned.connections:
        assert sum(len(f.symbols or ()) for f in each.filters) <= 1024
        # A symbol's channels stay together, and so does its snapshot.
        assert len({f.symbols for f in each.filters}) == 1
        assert each.snapshots[0][1] == each.filters[0].symbols
    asked = sorted(s for each in planned.connections for s in each.filters[0].symbols or ())
    assert asked == sorted(each.lower() for each in symbols)


@pytest.mark.parametrize(
    ("name", "symbol", "limit"),
    [
        ("dydx-v4", "S{}-USD", 32),
        ("crypto-com", "S{}USD-PERP", 400),
        ("bitget-futures", "S{}USDT", 1000),
        ("aster-futures", "S{}USDT", 200),
    ],
)
def test_d24_connections_keep_to_the_exchange_s_limit_of_streams(
    name: str, symbol: str, limit: int
) -> None:
    symbols = [symbol.format(number) for number in range(400)]
    planned = plan(exchanges.get(name), ["trade", "book_change", "derivative_ticker"], symbols, {})
    by_channel: dict[str, list[str]] = {}
    for each in planned.connections:
        assert sum(len(its.symbols or "1") for its in each.filters) <= limit
        for its in each.filters:
            by_channel.setdefault(its.channel, []).extend(its.symbols or ())
    asked = {each.channel for each in planned.filters}
    assert by_channel.keys() == asked - planned.dialect.rest_channels()
    assert all(len(set(s)) == len(s) in {0, len(symbols)} for s in by_channel.values())


def test_d24_chain_of_options_is_subscribed_in_parts() -> None:
    """Deribit calls a request with too many channels too large."""
    deribit = exchanges.get("deribit")
    assert deribit.live is not None
    symbols = [f"BTC-27DEC24-{strike}-C" for strike in range(10_000, 99_000, 100)]
    planned = plan(deribit, ["trade", "book_change", "option_summary"], symbols, {})
    [connecting] = planned.connections
    found: list[str] = []
    for message in deribit.live.subscribe(connecting.filters, planned.context()):
        assert len(msgspec.json.encode(message)) < 32 * 1024
        assert isinstance(message, dict)
        found += message["params"]["channels"]
    assert len(found) == len(set(found)) == 3 * len(symbols)


async def test_d24_messages_keep_to_the_exchange_s_rate_limit() -> None:
    from tardis_machine.live.connection import _MessageLimiter

    limiter = _MessageLimiter(0.0, 3)
    began = time.monotonic()
    for _ in range(7):
        await limiter.wait()
    assert time.monotonic() - began >= 2.0
    throttled = _MessageLimiter(0.05, None)
    began = time.monotonic()
    for _ in range(4):
        await throttled.wait()
    assert time.monotonic() - began >= 0.15


async def test_d24_subscriptions_of_lighter_keep_to_its_rate_limit() -> None:
    """It takes 200 messages in a minute, and 50 before it has answered."""
    markets = [str(number) for number in range(8)]
    async with ScriptedExchange() as exchange, streaming(exchange, "lighter", ["trade"], markets):
        peer = await exchange.accepted()
        await peer.received()
        began = time.monotonic()
        for _ in markets[1:]:
            await peer.received()
        assert time.monotonic() - began >= 1.9


@pytest.mark.parametrize("header", ["inf", "1e300", "Fri, 31 Dec 9999 23:59:59 GMT"])
def test_retry_after_is_at_most_three_days(header: str) -> None:
    assert retry_after(header, 429) == 3 * 86_400
    assert retry_after("259000", 418) == 259_000
    assert retry_after("nan", 429) == retry_after(None, 429)
