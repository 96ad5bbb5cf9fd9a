"""One connection to an exchange, again and again: connect, subscribe, read, notice its end."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol

import aiohttp
import msgspec
from aiohttp import WSMsgType
from yarl import URL

from tardis_machine.backoff import Backoff
from tardis_machine.exchanges.base.dialect import AnswerError, Outgoing, SnapshotRequest, spelled
from tardis_machine.history.filters import Filter
from tardis_machine.live.errors import (
    BookError,
    ClosedError,
    ConnectError,
    ExchangeError,
    GarbageError,
    HandshakeLimitError,
    LiveError,
    LoginError,
    RefusedError,
    SendError,
    StaleError,
)
from tardis_machine.live.lanes import BOOKS, Lane
from tardis_machine.live.overlap import SKEW_S, Overlap, OverlapError
from tardis_machine.live.plan import Connecting, Plan
from tardis_machine.live.resources import Resources
from tardis_machine.live.rest import Rest, proxy_of, retry_after

log = logging.getLogger(__name__)

_HANDSHAKE_S: Final = 10.0
_LOGIN_S: Final = 10.0
_CLOSE_S: Final = 1.0
_LEAST_PING_S: Final = 0.5
_FIRST_JITTER_S: Final = 0.1
_SNAPSHOT_RETRY_S: Final = 0.25
_SNAPSHOT_RETRY_MAX_S: Final = 32.0
_SNAPSHOTS_AFTER_S: Final = 1.0
_LOOKS: Final = 4
RENEW_BEFORE_S = 600.0
"""So long before its end a connection is followed by another."""
_OVERLAP_S: Final = 60.0
_LOOK_S: Final = 0.25
_RHYTHM: Final = 20
_WIDEST: Final = 5
_LIMITED: Final = frozenset((418, 429))
_check_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Host(Protocol):
    """The stream that a connection belongs to."""

    resources: Resources
    rest: Rest

    def take(self, connection: "Connection", local: str, frame: bytes) -> None: ...

    def flush(self) -> None: ...

    def opened(self) -> None: ...

    def closed(self) -> None: ...

    def report(self, error: Exception) -> None: ...

    def ended(self, connection: "Connection", error: LiveError) -> None: ...


class _Rhythm:
    """How often a lane gets something."""

    __slots__ = ("beats", "last", "longest")

    def __init__(self, now: float) -> None:
        self.beats = 0
        self.last = now
        self.longest = 0.0

    def beat(self, now: float) -> None:
        self.beats += 1
        self.longest = max(self.longest, now - self.last)
        self.last = now


class Connection:
    """Keeps one source of a stream connected until it is cancelled."""

    def __init__(
        self,
        plan: Plan,
        source: Connecting,
        lanes: Sequence[Lane],
        host: Host,
        *,
        timeout_s: float,
    ) -> None:
        self.source = source
        self.lanes = lanes
        self.had_data = False
        self._plan = plan
        self._dialect = plan.dialect
        self._host = host
        self._resources = host.resources
        self._timeout_s = timeout_s
        self._certain = any(each.channel not in plan.dialect.quiet for each in source.filters)
        self._loop = asyncio.get_running_loop()
        self._stale_ends = 0
        self._begin()

    def _begin(self) -> None:
        """Forget the last connection."""
        now = self._loop.time()
        self.had_data = False
        self._alive_at = self._data_at = self._first_data_at = now
        self._rhythms: dict[Lane, _Rhythm] = {}
        self._subscribed = self._heard = self._spoilt = False
        self._subscriptions: list[Outgoing] = []
        self._logged_in: asyncio.Future[None] | None = None
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self._overlap: Overlap | None = None
        self._expected: dict[bytes, int] = {}
        self._wanted: dict[str, tuple[SnapshotRequest, asyncio.Queue[str]]] = {}
        self._asking: set[str] = set()
        self._retries: dict[str, tuple[Backoff, float]] = {}

    async def run(self) -> None:
        """Connect, and connect again when it ends, until cancelled."""
        config = self._resources.config
        backoff = Backoff(config.live_reconnect_s, config.live_reconnect_max_s)
        while True:
            self._begin()
            error = await self._once()
            # What came before the end belongs before it.
            await self._resources.inbox.taken()
            now = self._loop.time()
            lived_s = now - self._first_data_at
            if isinstance(error, StaleError):
                # A stream that is quiet by nature is left alone for longer each time.
                self._stale_ends = min(self._stale_ends + 1, _WIDEST)
            elif lived_s > _LOOKS * self._data_limit_s():
                self._stale_ends = 0
            if self.had_data and lived_s >= config.live_stable_s:
                backoff.reset()
                pause_s = random.uniform(0, _FIRST_JITTER_S)  # noqa: S311 - spreads load
            else:
                pause_s = backoff.next_pause_s()
            self._host.ended(self, error)
            await asyncio.sleep(max(pause_s, error.retry_after_s))

    def beat(self, lane: Lane) -> None:
        """Note that a lane got something over this connection."""
        now = self._loop.time()
        rhythm = self._rhythms.get(lane)
        if rhythm is None:
            rhythm = self._rhythms[lane] = _Rhythm(now)
        rhythm.beat(now)

    def resync(self, symbol: str, error: BookError) -> None:
        """Get a book that lost an update its snapshot again."""
        symbol = symbol.casefold()
        wanted = self._wanted.get(symbol)
        if wanted is not None:
            self._ask_again(symbol, wanted[1])
        elif self._dialect.unsubscribe is not None and self._socket is not None:
            self._retry(symbol, partial(self._start_subscribing, symbol))
        else:
            self.fail(error)

    def fail(self, error: LiveError) -> None:
        """End this connection: what it goes on to send cannot be used."""
        self._spoilt = True
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _once(self) -> LiveError:
        try:
            self._socket = socket = await self._connect()
        except LiveError as refused:
            return refused
        self._host.opened()
        self._alive_at = self._data_at = self._loop.time()
        main = [
            asyncio.create_task(self._read(socket)),
            asyncio.create_task(self._talk(socket)),
            asyncio.create_task(self._watch()),
        ]
        if self._dialect.life_s is not None:
            self._tasks.append(asyncio.create_task(self._renew(self._dialect.life_s)))
        try:
            done, _ = await asyncio.wait(
                (self._failure, *main), return_when=asyncio.FIRST_COMPLETED
            )
            first, *_ = [each.exception() for each in done]  # all are asked, or asyncio complains
            if isinstance(first, SendError):
                # Why it cannot be sent to is still to be read.
                ended, _ = await asyncio.wait((main[0],), timeout=_CLOSE_S)
                first = next((each.exception() for each in ended), first)
        finally:
            tasks = (*main, *self._tasks)
            for timer in self._timers:
                timer.cancel()
            for task in tasks:
                task.cancel()
            self._failure.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # the stream may be stopped at this very moment
                await self._hang_up(self._socket or socket)
                self._socket = None
        if isinstance(first, LiveError):
            return first
        log.error(
            "live connection failed", extra={"exchange": self._plan.exchange.name}, exc_info=first
        )
        return LiveError(str(first) or type(first).__name__)

    async def _connect(self) -> aiohttp.ClientWebSocketResponse[bool]:
        url = self.source.url or await self._discover()
        host = URL(url).host or ""
        config = self._resources.config
        try:
            async with asyncio.timeout(_HANDSHAKE_S):
                return await self._resources.http.ws_connect(
                    url,
                    headers={"User-Agent": config.live_user_agent, **self._dialect.headers},
                    proxy=proxy_of(url),
                    autoping=False,
                    compress=0,
                    max_msg_size=config.live_max_frame_bytes,
                    decode_text=False,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S),
                )
        except aiohttp.WSServerHandshakeError as error:
            reason = f"status {error.status}"
            if error.status in _LIMITED:
                asked = None if error.headers is None else error.headers.get("Retry-After")
                wait_s = retry_after(asked, error.status)
                raise HandshakeLimitError(host, reason, wait_s) from None
            raise ConnectError(host, reason) from None
        except TimeoutError:
            raise ConnectError(host, f"no handshake in {_HANDSHAKE_S:.0f} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectError(host, str(error) or type(error).__name__) from None

    async def _discover(self) -> str:
        discovery = self._dialect.discovery
        assert discovery is not None
        answer = await self._host.rest.get(discovery.url, method=discovery.method)
        try:
            url = discovery.use(msgspec.json.decode(answer), self._plan.session())
            URL(url)  # which an exchange's answer may not be
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AnswerError):
            shown = answer[:200].decode(errors="replace")
            raise ConnectError(URL(discovery.url).host or "", f"no address in {shown}") from None
        return url

    async def _hang_up(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        """Say goodbye, but not for long."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            log.debug("exchange did not answer a close", extra={"url": self.source.url})
        finally:
            self._host.closed()

    # Talking

    async def _talk(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        dialect = self._dialect
        session = self._plan.session()
        pace = _Pace(dialect.throttle_s, dialect.max_messages_per_s)
        for message in () if dialect.greet is None else dialect.greet(session):
            await pace.wait()
            await self._send(socket, message)
        if dialect.login is not None and session.secrets:
            self._logged_in = self._loop.create_future()
            await pace.wait()
            await self._send(socket, dialect.login(session))
            try:
                async with asyncio.timeout(_LOGIN_S):
                    await self._logged_in
            except TimeoutError:
                raise LoginError(f"no answer to the login in {_LOGIN_S:.0f} s") from None
        for message in dialect.subscribe(self.source.filters, session):
            await pace.wait()
            self._subscriptions.append(message)
            await self._send(socket, message)
        self._subscribed = True
        # Books are asked for when the exchange has begun to send; some do not say that they have.
        starting = self._loop.call_later(
            0 if self._heard else _SNAPSHOTS_AFTER_S, self._start_snapshots
        )
        self._timers.append(starting)
        every_s = dialect.ping_s
        if self._timeout_s:
            # However impatient a client is, the exchange is not to be flooded.
            every_s = min(every_s, max(self._timeout_s / 2, _LEAST_PING_S))
        silence_s = self._resources.config.live_silence_s
        if silence_s:
            every_s = min(every_s, silence_s / 2)  # an answer has to come in time
        while True:
            await asyncio.sleep(every_s)
            socket = self._socket or socket
            await self._send(socket, None if dialect.ping is None else dialect.ping(session))

    async def _send(
        self, socket: aiohttp.ClientWebSocketResponse[bool], message: Outgoing | None
    ) -> None:
        """Send a message; None is a ping."""
        try:
            if message is None:
                await socket.ping()
            elif isinstance(message, str):
                await socket.send_str(message)
            else:
                await socket.send_str(msgspec.json.encode(message).decode())
        except (aiohttp.ClientError, OSError) as error:
            raise SendError(str(error) or type(error).__name__) from None

    # Reading

    async def _read(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        inbox = self._resources.inbox
        while True:
            if inbox.size > inbox.max_bytes:
                await inbox.room()
                # That was this process's slowness, not the exchange's silence.
                self._alive_at = self._data_at = self._loop.time()
            message = await socket.receive()
            if socket is not self._socket and self._socket is not None:
                socket = self._socket  # another one follows it
                continue
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    reply = self._frame(message.data)
                    if reply is not None:
                        with suppress(SendError):  # why not, and what came before it, is next
                            await self._send(socket, reply)
                case WSMsgType.PONG:
                    self._alive_at = self._loop.time()
                case WSMsgType.PING:
                    self._alive_at = self._loop.time()
                    with suppress(aiohttp.ClientError, OSError):
                        await socket.pong(message.data)
                case WSMsgType.CLOSE:
                    raise ClosedError(message.data or 1005, message.extra or "")
                case _:
                    reason = str(message.data or "") if message.type is WSMsgType.ERROR else ""
                    raise ClosedError(socket.close_code or 1006, reason)

    def _decoded(self, frame: bytes) -> tuple[bytes, bool, Any]:
        """Give a frame's text, whether it is data at first sight, and if not, what it says."""
        try:
            text = self._dialect.decode(frame)
            known = text.startswith(self._dialect.data)
            return text, known, None if known else msgspec.json.decode(text)
        except Exception as error:  # noqa: BLE001 - whatever decoders raise
            raise GarbageError(str(error) or type(error).__name__, frame) from None

    def _frame(self, frame: bytes) -> Outgoing | None:
        """Take one frame at its arrival; give what is to be answered."""
        host = self._host
        local = self._resources.clock.stamp()
        self._alive_at = self._loop.time()
        dialect = self._dialect
        text, known, message = self._decoded(frame)
        reply = None
        if not known:
            reply = dialect.reply(message)
            if dialect.heartbeats(message):
                return reply
            if dialect.errors(message):
                self._complain(message, text)
                return reply or self._salvaged(message)
            if self._logged_in is not None and not self._logged_in.done():
                if dialect.logged_in(message):
                    self._logged_in.set_result(None)
                return reply
        if known or not dialect.acks(message):
            self._data_at = self._alive_at
            if not self.had_data:
                self.had_data = True
                self._first_data_at = self._alive_at
            if self._expected and self._is_expected(text):
                return reply
            if self._overlap is not None:
                self._overlap.old(text, self._alive_at)
        self._resources.inbox.put(self._take, host.flush, local, text)
        self._heard = True
        if self._subscribed and not self._wanted:
            self._start_snapshots()
        return reply

    # Changing over

    async def _renew(self, life_s: float) -> None:
        """Have this connection followed by another, again and again, before the exchange ends it.

        Where that cannot be done without losing or repeating anything, it ends when it ends.
        """
        said = {"exchange": self._plan.exchange.name}
        while True:
            await asyncio.sleep(life_s - RENEW_BEFORE_S)
            try:
                await self._change_over()
            except (LiveError, OverlapError, aiohttp.ClientError, OSError) as error:
                # Of a timeout: too little came to compare.
                reason = str(error) or type(error).__name__
                log.info("live connection is not renewed", extra={**said, "reason": reason})
                return
            finally:
                self._overlap = None
            log.info("live connection renewed", extra=said)

    async def _change_over(self) -> None:
        old, new = self._socket, await self._connect()
        assert old is not None
        self._host.opened()
        self._overlap = overlap = Overlap()
        leaving = new
        try:
            session = self._plan.session()
            pace = _Pace(self._dialect.throttle_s, self._dialect.max_messages_per_s)
            for message in self._dialect.subscribe(self.source.filters, session):
                await pace.wait()
                await self._send(new, message)
            async with asyncio.timeout(_OVERLAP_S):
                while not overlap.is_ready(self._loop.time()):
                    await self._listen(new, overlap)
            # From here to there nothing else runs: the one is read no more, the other is.
            now = self._loop.time()
            self._socket, leaving = new, old
            self._overlap = None
            self._expected = overlap.expected(now)
            self._timers.append(self._loop.call_later(2 * SKEW_S, self._expected.clear))
            for text in overlap.upcoming(now):
                local = self._resources.clock.stamp()
                self._resources.inbox.put(self._take, self._host.flush, local, text)
        finally:
            await self._hang_up(leaving)

    async def _listen(
        self, socket: aiohttp.ClientWebSocketResponse[bool], overlap: Overlap
    ) -> None:
        """Note what the connection brings that is to follow, for a moment."""
        until = self._loop.time() + _LOOK_S
        try:
            async with asyncio.timeout_at(until):
                while self._loop.time() < until:
                    message = await socket.receive()
                    if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                        self._compare(message.data, overlap)
                    elif message.type is WSMsgType.PING:
                        await socket.pong(message.data)
                    elif message.type is not WSMsgType.PONG:
                        raise ClosedError(socket.close_code or 1006, "before it was needed")
        except TimeoutError:
            return

    def _compare(self, frame: bytes, overlap: Overlap) -> None:
        text, known, message = self._decoded(frame)
        dialect = self._dialect
        if not known and dialect.errors(message):
            raise ExchangeError(text.decode(errors="replace"))
        if known or not (dialect.acks(message) or dialect.heartbeats(message)):
            overlap.new(text, self._loop.time())

    def _is_expected(self, text: bytes) -> bool:
        """Tell whether the connection that this one follows has brought a frame before."""
        count = self._expected.pop(text, 0)
        if count > 1:
            self._expected[text] = count - 1
        return count > 0

    def _take(self, local: str, frame: bytes) -> None:
        if not self._spoilt:
            self._host.take(self, local, frame)

    def _complain(self, message: Any, text: bytes) -> None:
        shown = text.decode(errors="replace")
        if self._logged_in is not None and not self._logged_in.done():
            raise LoginError(f"the exchange says: {shown[:1000]}")
        if not self._dialect.refusals(message):
            raise ExchangeError(shown)
        self._host.report(RefusedError(shown))

    def _salvaged(self, refusal: Any) -> Outgoing | None:
        """Return the subscriptions to send again, without those that were refused."""
        if self._dialect.salvage is None:
            return None
        rest = self._dialect.salvage(refusal, self._subscriptions)
        if rest is not None:
            self._subscriptions.append(rest)
        return rest

    # Noticing silence

    def _data_limit_s(self) -> float:
        return self._timeout_s * 2.0**self._stale_ends

    async def _watch(self) -> None:
        """Raise when nothing has come for too long."""
        silence_s = self._resources.config.live_silence_s
        limit_s = self._data_limit_s() if self._certain else 0.0
        limits = [each for each in (silence_s, limit_s) if each]
        if not limits:
            await self._loop.create_future()  # for ever
        while True:
            await asyncio.sleep(min(limits) / _LOOKS)
            now = self._loop.time()
            if silence_s and now - self._alive_at > silence_s:
                raise StaleError("sign of life", now - self._alive_at)
            if limit_s and now - self._data_at > limit_s:
                raise StaleError("data", now - self._data_at)
            if limit_s:
                self._look_for_dead_lanes(now, limit_s)

    def _look_for_dead_lanes(self, now: float, limit_s: float) -> None:
        """Find a type that was busy and has stopped, while others go on."""
        quiet = self._dialect.quiet
        for lane, rhythm in self._rhythms.items():
            patience_s = max(3 * limit_s, 10 * rhythm.longest)
            if rhythm.beats < _RHYTHM or now - rhythm.last <= patience_s:
                continue
            if not quiet.issuperset(lane.channels & set(self.source.channels)):
                raise StaleError(f"{lane.type} messages, beside others,", now - rhythm.last)

    # Books

    def _start_snapshots(self) -> None:
        if self._wanted:
            return
        for snapshot, symbols in self.source.snapshots:
            queue: asyncio.Queue[str] = asyncio.Queue()
            for symbol in symbols:
                self._wanted[symbol.casefold()] = (snapshot, queue)
                self._asking.add(symbol.casefold())
                queue.put_nowait(symbol)
            for _ in range(min(snapshot.at_once, len(symbols))):
                self._tasks.append(asyncio.create_task(self._fetch(snapshot, queue)))

    async def _fetch(self, snapshot: SnapshotRequest, queue: "asyncio.Queue[str]") -> None:
        while True:
            symbol = await queue.get()
            self._asking.discard(symbol.casefold())
            try:
                await self._ask(snapshot, symbol)
            except (LiveError, AnswerError) as error:
                self._host.report(error)
                self._ask_again(symbol, queue)

    async def _ask(self, snapshot: SnapshotRequest, symbol: str) -> None:
        host = self._host
        if snapshot.request is not None:
            assert self._socket is not None
            await self._send(self._socket, snapshot.request(symbol))
            return
        assert snapshot.render is not None
        answer = await host.rest.get(spelled(snapshot.url, symbol), weight=snapshot.weight)
        local = self._resources.clock.stamp()
        try:
            _check_object(answer)  # a book's lane would give up the whole connection
            messages = list(snapshot.render(symbol, [answer]))
        except (msgspec.MsgspecError, ValueError) as error:
            raise AnswerError(f"{symbol}: {error}") from None
        for message in messages:
            self._resources.inbox.put(self._take, host.flush, local, message)
            local = self._resources.clock.stamp()

    def _ask_again(self, symbol: str, queue: "asyncio.Queue[str]") -> None:
        key = symbol.casefold()
        spelling = next(
            each
            for _, symbols in self.source.snapshots
            for each in symbols
            if each.casefold() == key
        )
        self._retry(key, partial(queue.put_nowait, spelling))

    def _retry(self, key: str, start: Callable[[], None]) -> None:
        """Start a book anew in a while: a longer one each time, unless the last is long ago."""
        if key in self._asking:
            return
        self._asking.add(key)
        now = self._loop.time()
        backoff, last = self._retries.get(key) or (
            Backoff(_SNAPSHOT_RETRY_S, _SNAPSHOT_RETRY_MAX_S),
            now,
        )
        if now - last > 2 * _SNAPSHOT_RETRY_MAX_S:
            backoff.reset()
        pause_s = backoff.next_pause_s()
        self._retries[key] = backoff, now + pause_s
        self._timers = [each for each in self._timers if each.when() > now]
        self._timers.append(self._loop.call_later(pause_s, start))

    def _start_subscribing(self, symbol: str) -> None:
        self._asking.discard(symbol)
        task = asyncio.create_task(self._subscribe_again(symbol))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _subscribe_again(self, symbol: str) -> None:
        """Have the exchange send a book from its start, and nothing else."""
        socket, unsubscribe = self._socket, self._dialect.unsubscribe
        assert socket is not None
        assert unsubscribe is not None
        channels = self._book_channels()
        filters = [
            Filter(each.channel, found)
            for each in self.source.filters
            if each.channel in channels
            and (found := tuple(s for s in each.symbols or () if s.casefold() == symbol))
        ]
        if not filters:  # subscribed for all symbols at once
            self.fail(BookError(f"a book of {symbol} lost an update"))
            return
        session = self._plan.session()
        try:
            for message in (
                *unsubscribe(filters, session),
                *self._dialect.subscribe(filters, session),
            ):
                await self._send(socket, message)
        except LiveError as error:
            self.fail(error)

    def _book_channels(self) -> frozenset[str]:
        return frozenset(
            channel for lane in self.lanes if lane.type == BOOKS for channel in lane.channels
        )


class _Pace:
    """Keeps messages apart as the exchange wants them."""

    def __init__(self, throttle_s: float, per_second: int | None) -> None:
        self._throttle_s = throttle_s
        self._per_second = per_second
        self._sent: list[float] = []

    async def wait(self) -> None:
        """Wait for the next message's turn."""
        loop = asyncio.get_running_loop()
        if self._throttle_s and self._sent:
            await asyncio.sleep(self._throttle_s)
        limit = self._per_second
        if limit and len(self._sent) >= limit:
            await asyncio.sleep(max(0.0, self._sent[-limit] + 1.0 - loop.time()))
        self._sent.append(loop.time())
        del self._sent[: -(limit or 1)]
