"""One connection to an exchange: connect, subscribe, read, detect its end, connect again."""

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
from tardis_machine.live.plan import ConnectionPlan, Plan
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
_CHECKS: Final = 4
RENEW_BEFORE_S = 600.0
"""Time before the exchange's limit of a connection at which another replaces it, in seconds."""
_OVERLAP_S: Final = 60.0
_COMPARE_S: Final = 0.25
_MIN_MESSAGES: Final = 20
_MAX_DOUBLINGS: Final = 5
_LIMITED: Final = frozenset((418, 429))
_check_object: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode


class Host(Protocol):
    """The feed that a connection belongs to; it is called in the event loop's thread."""

    resources: Resources
    rest: Rest

    def process_frame(self, connection: "Connection", local: str, frame: bytes) -> None:
        """Normalize a frame; called by the inbox, in order of arrival."""

    def flush(self) -> None:
        """Send the normalized messages; called by the inbox after a step of frames."""

    def opened(self) -> None:
        """Count a socket; the connection calls it after each handshake."""

    def closed(self) -> None:
        """Count a closed socket; the connection calls it once for each `opened`."""

    def report(self, error: Exception) -> None:
        """Report a failure that does not end the connection."""

    def ended(self, connection: "Connection", error: LiveError) -> None:
        """Report the end of a connection; called after its last frame, before it connects again."""


class _Activity:
    """Count, last time and longest pause of one lane's messages on a connection."""

    __slots__ = ("last", "longest", "messages")

    def __init__(self, now: float) -> None:
        self.messages = 0
        self.last = now
        self.longest = 0.0

    def record(self, now: float) -> None:
        self.messages += 1
        self.longest = max(self.longest, now - self.last)
        self.last = now


class Connection:
    """A connection to one source of a stream, kept open until `run` is cancelled."""

    def __init__(
        self,
        plan: Plan,
        source: ConnectionPlan,
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
        self._expects_data = any(f.channel not in plan.dialect.quiet for f in source.filters)
        self._loop = asyncio.get_running_loop()
        self._stale_ends = 0
        self._begin()

    def _begin(self) -> None:
        """Reset the state of the previous socket."""
        now = self._loop.time()
        self.had_data = False
        self._alive_at = self._data_at = self._first_data_at = now
        self._activities: dict[Lane, _Activity] = {}
        self._subscribed = self._received = self._drops_frames = False
        self._subscriptions: list[Outgoing] = []
        self._logged_in: asyncio.Future[None] | None = None
        self._failure: asyncio.Future[None] = self._loop.create_future()
        self._tasks: list[asyncio.Task[Any]] = []
        self._timers: list[asyncio.TimerHandle] = []
        self._socket: aiohttp.ClientWebSocketResponse[bool] | None = None
        self._overlap: Overlap | None = None
        self._expected: dict[bytes, int] = {}
        self._snapshots: dict[str, tuple[SnapshotRequest, asyncio.Queue[str]]] = {}
        self._queued: set[str] = set()
        self._retries: dict[str, tuple[Backoff, float]] = {}

    async def run(self) -> None:
        """Connect, and connect again after each end, until cancelled."""
        config = self._resources.config
        backoff = Backoff(config.live_reconnect_s, config.live_reconnect_max_s)
        while True:
            self._begin()
            error = await self._run_once()
            # Messages that arrived before the end are sent before the disconnect.
            await self._resources.inbox.drain()
            now = self._loop.time()
            lived_s = now - self._first_data_at
            if isinstance(error, StaleError):
                # The limit doubles each time, so that a stream with rare data stays connected.
                self._stale_ends = min(self._stale_ends + 1, _MAX_DOUBLINGS)
            elif lived_s > _CHECKS * self._data_limit_s():
                self._stale_ends = 0
            if self.had_data and lived_s >= config.live_stable_s:
                backoff.reset()
                pause_s = random.uniform(0, _FIRST_JITTER_S)  # noqa: S311 - spreads load
            else:
                pause_s = backoff.next_pause_s()
            self._host.ended(self, error)
            await asyncio.sleep(max(pause_s, error.retry_after_s))

    def record_message(self, lane: Lane) -> None:
        """Record that this connection brought a message for a lane."""
        now = self._loop.time()
        activity = self._activities.get(lane)
        if activity is None:
            activity = self._activities[lane] = _Activity(now)
        activity.record(now)

    def resync(self, symbol: str, error: BookError) -> None:
        """Request the snapshot of a book that lost an update.

        The connection ends if the exchange offers neither a request nor an unsubscription for it.
        """
        symbol = symbol.casefold()
        request = self._snapshots.get(symbol)
        if request is not None:
            self._request_again(symbol, request[1])
        elif self._dialect.unsubscribe is not None and self._socket is not None:
            self._retry(symbol, partial(self._start_subscribing, symbol))
        else:
            self.fail(error)

    def fail(self, error: LiveError) -> None:
        """End this connection, and drop its frames that are still in the inbox."""
        self._drops_frames = True
        if not self._failure.done():
            self._failure.set_exception(error)

    async def _run_once(self) -> LiveError:
        """Connect and read until the connection ends; return the reason."""
        try:
            self._socket = socket = await self._connect()
        except LiveError as error:
            return error
        self._host.opened()
        self._alive_at = self._data_at = self._loop.time()
        main = [
            asyncio.create_task(self._read(socket)),
            asyncio.create_task(self._subscribe_and_ping(socket)),
            asyncio.create_task(self._watch_for_silence()),
        ]
        if self._dialect.life_s is not None:
            self._tasks.append(asyncio.create_task(self._renew(self._dialect.life_s)))
        try:
            done, _ = await asyncio.wait(
                (self._failure, *main), return_when=asyncio.FIRST_COMPLETED
            )
            # asyncio logs an exception that is never retrieved, so all are.
            first, *_ = [task.exception() for task in done]
            if isinstance(first, SendError):
                # The reader may still receive the close frame, which has the reason.
                ended, _ = await asyncio.wait((main[0],), timeout=_CLOSE_S)
                first = next((task.exception() for task in ended), first)
        finally:
            tasks = (*main, *self._tasks)
            for timer in self._timers:
                timer.cancel()
            for task in tasks:
                task.cancel()
            self._failure.cancel()
            try:
                await asyncio.gather(*tasks, return_exceptions=True)
            finally:  # `stop` may cancel the gather
                await self._close(self._socket or socket)
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
            url = discovery.use(msgspec.json.decode(answer), self._plan.context())
            URL(url)  # raises ValueError for an answer without a URL
        except (msgspec.MsgspecError, ValueError, LookupError, TypeError, AnswerError):
            shown = answer[:200].decode(errors="replace")
            raise ConnectError(URL(discovery.url).host or "", f"no address in {shown}") from None
        return url

    async def _close(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        """Send a close frame and wait for the answer, at most `_CLOSE_S` seconds."""
        try:
            async with asyncio.timeout(_CLOSE_S):
                await socket.close()
        except (TimeoutError, aiohttp.ClientError, OSError):
            log.debug("exchange did not answer a close", extra={"url": self.source.url})
        finally:
            self._host.closed()

    # Sending

    async def _subscribe_and_ping(self, socket: aiohttp.ClientWebSocketResponse[bool]) -> None:
        dialect = self._dialect
        context = self._plan.context()
        limiter = _MessageLimiter(dialect.throttle_s, dialect.max_messages_per_s)
        for message in () if dialect.greet is None else dialect.greet(context):
            await limiter.wait()
            await self._send(socket, message)
        if dialect.login is not None and context.secrets:
            self._logged_in = self._loop.create_future()
            await limiter.wait()
            await self._send(socket, dialect.login(context))
            try:
                async with asyncio.timeout(_LOGIN_S):
                    await self._logged_in
            except TimeoutError:
                raise LoginError(f"no answer to the login in {_LOGIN_S:.0f} s") from None
        for message in dialect.subscribe(self.source.filters, context):
            await limiter.wait()
            self._subscriptions.append(message)
            await self._send(socket, message)
        self._subscribed = True
        # Snapshots are requested at the first frame. Some exchanges do not confirm a subscription,
        # so they are requested after a while in any case.
        starting = self._loop.call_later(
            0 if self._received else _SNAPSHOTS_AFTER_S, self._start_snapshots
        )
        self._timers.append(starting)
        every_s = dialect.ping_s
        if self._timeout_s:
            # A client may set any timeout: the least interval keeps it from flooding the exchange.
            every_s = min(every_s, max(self._timeout_s / 2, _LEAST_PING_S))
        silence_s = self._resources.config.live_silence_s
        if silence_s:
            every_s = min(every_s, silence_s / 2)  # the answer must arrive within the limit
        while True:
            await asyncio.sleep(every_s)
            socket = self._socket or socket
            await self._send(socket, None if dialect.ping is None else dialect.ping(context))

    async def _send(
        self, socket: aiohttp.ClientWebSocketResponse[bool], message: Outgoing | None
    ) -> None:
        """Send a message, or a ping frame (None)."""
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
                await inbox.wait_for_space()
                # The wait is backpressure of this process and must not count as silence.
                self._alive_at = self._data_at = self._loop.time()
            message = await socket.receive()
            if socket is not self._socket and self._socket is not None:
                socket = self._socket  # _replace_socket has put another in its place
                continue
            match message.type:
                case WSMsgType.TEXT | WSMsgType.BINARY:
                    reply = self._receive_frame(message.data)
                    if reply is not None:
                        # The frames before a close, and its reason, are still to be read.
                        with suppress(SendError):
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

    def _decode(self, frame: bytes) -> tuple[bytes, bool, Any]:
        """Return a frame's text, whether it starts as data does, and its JSON value if not."""
        try:
            text = self._dialect.decode(frame)
            is_data = text.startswith(self._dialect.data)
            return text, is_data, None if is_data else msgspec.json.decode(text)
        except Exception as error:  # noqa: BLE001 - decoders raise errors of many libraries
            raise GarbageError(str(error) or type(error).__name__, frame) from None

    def _receive_frame(self, frame: bytes) -> Outgoing | None:
        """Stamp and queue a frame at its arrival; return the reply that the exchange expects."""
        host = self._host
        local = self._resources.clock.stamp()
        self._alive_at = self._loop.time()
        dialect = self._dialect
        text, is_data, message = self._decode(frame)
        reply = None
        if not is_data:
            reply = dialect.reply(message)
            if dialect.heartbeats(message):
                return reply
            if dialect.errors(message):
                self._report_refusal(message, text)
                return reply or self._reduced_subscriptions(message)
            if self._logged_in is not None and not self._logged_in.done():
                if dialect.logged_in(message):
                    self._logged_in.set_result(None)
                return reply
        if is_data or not dialect.acks(message):
            self._data_at = self._alive_at
            if not self.had_data:
                self.had_data = True
                self._first_data_at = self._alive_at
            if self._expected and self._is_repeated(text):
                return reply
            if self._overlap is not None:
                self._overlap.add_old(text, self._alive_at)
        self._resources.inbox.put(self._process_frame, host.flush, local, text)
        self._received = True
        if self._subscribed and not self._snapshots:
            self._start_snapshots()
        return reply

    # Replacing the socket before the exchange closes it

    async def _renew(self, life_s: float) -> None:
        """Replace the socket shortly before each end of its life, until cancelled.

        Return after the first failure: the exchange then closes the connection as any other.
        """
        extra = {"exchange": self._plan.exchange.name}
        while True:
            await asyncio.sleep(life_s - RENEW_BEFORE_S)
            try:
                await self._replace_socket()
            except (LiveError, OverlapError, aiohttp.ClientError, OSError) as error:
                # A TimeoutError is an OSError: too few frames came to compare the connections.
                reason = str(error) or type(error).__name__
                log.info("live connection is not renewed", extra={**extra, "reason": reason})
                return
            finally:
                self._overlap = None
            log.info("live connection renewed", extra=extra)

    async def _replace_socket(self) -> None:
        """Subscribe on a second socket, and switch to it once both bring the same frames."""
        old, new = self._socket, await self._connect()
        assert old is not None
        self._host.opened()
        self._overlap = overlap = Overlap()
        leaving = new
        try:
            dialect = self._dialect
            limiter = _MessageLimiter(dialect.throttle_s, dialect.max_messages_per_s)
            for message in dialect.subscribe(self.source.filters, self._plan.context()):
                await limiter.wait()
                await self._send(new, message)
            async with asyncio.timeout(_OVERLAP_S):
                while not overlap.is_ready(self._loop.time()):
                    await self._compare_frames(new, overlap)
            # Nothing is awaited up to `finally`, so no frame of either socket comes in between.
            now = self._loop.time()
            self._socket, leaving = new, old
            self._overlap = None
            self._expected = overlap.expected(now)
            self._timers.append(self._loop.call_later(2 * SKEW_S, self._expected.clear))
            for text in overlap.upcoming(now):
                local = self._resources.clock.stamp()
                self._resources.inbox.put(self._process_frame, self._host.flush, local, text)
        finally:
            await self._close(leaving)

    async def _compare_frames(
        self, socket: aiohttp.ClientWebSocketResponse[bool], overlap: Overlap
    ) -> None:
        """Add the frames of the new socket to the overlap for `_COMPARE_S` seconds."""
        until = self._loop.time() + _COMPARE_S
        try:
            async with asyncio.timeout_at(until):
                while self._loop.time() < until:
                    message = await socket.receive()
                    if message.type in {WSMsgType.TEXT, WSMsgType.BINARY}:
                        self._add_to_overlap(message.data, overlap)
                    elif message.type is WSMsgType.PING:
                        await socket.pong(message.data)
                    elif message.type is not WSMsgType.PONG:
                        raise ClosedError(socket.close_code or 1006, "before it was needed")
        except TimeoutError:
            return

    def _add_to_overlap(self, frame: bytes, overlap: Overlap) -> None:
        text, is_data, message = self._decode(frame)
        dialect = self._dialect
        if not is_data and dialect.errors(message):
            raise ExchangeError(text.decode(errors="replace"))
        if is_data or not (dialect.acks(message) or dialect.heartbeats(message)):
            overlap.add_new(text, self._loop.time())

    def _is_repeated(self, text: bytes) -> bool:
        """Return whether the replaced socket has brought this frame already."""
        count = self._expected.pop(text, 0)
        if count > 1:
            self._expected[text] = count - 1
        return count > 0

    def _process_frame(self, local: str, frame: bytes) -> None:
        if not self._drops_frames:
            self._host.process_frame(self, local, frame)

    def _report_refusal(self, message: Any, text: bytes) -> None:
        """Report a refused subscription; raise any other error, which ends the connection."""
        shown = text.decode(errors="replace")
        if self._logged_in is not None and not self._logged_in.done():
            raise LoginError(f"the exchange says: {shown[:1000]}")
        if not self._dialect.refusals(message):
            raise ExchangeError(shown)
        self._host.report(RefusedError(shown))

    def _reduced_subscriptions(self, refusal: Any) -> Outgoing | None:
        """Return a message with the subscriptions of a refused one that may be sent again."""
        if self._dialect.salvage is None:
            return None
        reduced = self._dialect.salvage(refusal, self._subscriptions)
        if reduced is not None:
            self._subscriptions.append(reduced)
        return reduced

    # Detecting silence

    def _data_limit_s(self) -> float:
        return self._timeout_s * 2.0**self._stale_ends

    async def _watch_for_silence(self) -> None:
        """Raise StaleError when no frame, no data or no message of a busy lane came in time."""
        silence_s = self._resources.config.live_silence_s
        limit_s = self._data_limit_s() if self._expects_data else 0.0
        limits = [limit for limit in (silence_s, limit_s) if limit]
        if not limits:
            await self._loop.create_future()  # never done: without limits there is nothing to check
        while True:
            await asyncio.sleep(min(limits) / _CHECKS)
            now = self._loop.time()
            if silence_s and now - self._alive_at > silence_s:
                raise StaleError("sign of life", now - self._alive_at)
            if limit_s and now - self._data_at > limit_s:
                raise StaleError("data", now - self._data_at)
            if limit_s:
                self._check_lanes(now, limit_s)

    def _check_lanes(self, now: float, limit_s: float) -> None:
        """Raise StaleError if a lane that was busy has stopped while others go on."""
        quiet = self._dialect.quiet
        for lane, activity in self._activities.items():
            patience_s = max(3 * limit_s, 10 * activity.longest)
            if activity.messages < _MIN_MESSAGES or now - activity.last <= patience_s:
                continue
            if not quiet.issuperset(lane.channels & set(self.source.channels)):
                raise StaleError(f"{lane.type} messages, beside others,", now - activity.last)

    # Books

    def _start_snapshots(self) -> None:
        """Start the tasks that request snapshots, once per socket."""
        if self._snapshots:
            return
        for snapshot, symbols in self.source.snapshots:
            queue: asyncio.Queue[str] = asyncio.Queue()
            for symbol in symbols:
                self._snapshots[symbol.casefold()] = (snapshot, queue)
                self._queued.add(symbol.casefold())
                queue.put_nowait(symbol)
            for _ in range(min(snapshot.at_once, len(symbols))):
                self._tasks.append(asyncio.create_task(self._request_queued(snapshot, queue)))

    async def _request_queued(self, snapshot: SnapshotRequest, queue: "asyncio.Queue[str]") -> None:
        """Request the snapshot of each queued symbol until cancelled; retry those that fail."""
        while True:
            symbol = await queue.get()
            self._queued.discard(symbol.casefold())
            try:
                await self._request_snapshot(snapshot, symbol)
            except (LiveError, AnswerError) as error:
                self._host.report(error)
                self._request_again(symbol, queue)

    async def _request_snapshot(self, snapshot: SnapshotRequest, symbol: str) -> None:
        """Request one snapshot, over the socket or by REST, and queue the rendered answer."""
        host = self._host
        if snapshot.request is not None:
            assert self._socket is not None
            await self._send(self._socket, snapshot.request(symbol))
            return
        assert snapshot.render is not None
        answer = await host.rest.get(spelled(snapshot.url, symbol), weight=snapshot.weight)
        local = self._resources.clock.stamp()
        try:
            _check_object(answer)  # a malformed book message would end the connection
            messages = list(snapshot.render(symbol, [answer]))
        except (msgspec.MsgspecError, ValueError) as error:
            raise AnswerError(f"{symbol}: {error}") from None
        for message in messages:
            self._resources.inbox.put(self._process_frame, host.flush, local, message)
            local = self._resources.clock.stamp()

    def _request_again(self, symbol: str, queue: "asyncio.Queue[str]") -> None:
        key = symbol.casefold()
        spelling = next(
            spelling
            for _, symbols in self.source.snapshots
            for spelling in symbols
            if spelling.casefold() == key
        )
        self._retry(key, partial(queue.put_nowait, spelling))

    def _retry(self, key: str, start: Callable[[], None]) -> None:
        """Call `start` after a pause that doubles with each retry of a symbol in a row."""
        if key in self._queued:
            return
        self._queued.add(key)
        now = self._loop.time()
        backoff, last = self._retries.get(key) or (
            Backoff(_SNAPSHOT_RETRY_S, _SNAPSHOT_RETRY_MAX_S),
            now,
        )
        if now - last > 2 * _SNAPSHOT_RETRY_MAX_S:
            backoff.reset()
        pause_s = backoff.next_pause_s()
        self._retries[key] = backoff, now + pause_s
        self._timers = [timer for timer in self._timers if timer.when() > now]
        self._timers.append(self._loop.call_later(pause_s, start))

    def _start_subscribing(self, symbol: str) -> None:
        self._queued.discard(symbol)
        task = asyncio.create_task(self._subscribe_again(symbol))
        self._tasks.append(task)
        task.add_done_callback(self._tasks.remove)

    async def _subscribe_again(self, symbol: str) -> None:
        """Unsubscribe and subscribe the book of one symbol: the exchange then sends a snapshot."""
        socket, unsubscribe = self._socket, self._dialect.unsubscribe
        assert socket is not None
        assert unsubscribe is not None
        channels = self._book_channels()
        filters = [
            Filter(subscription.channel, spellings)
            for subscription in self.source.filters
            if subscription.channel in channels
            and (
                spellings := tuple(s for s in subscription.symbols or () if s.casefold() == symbol)
            )
        ]
        if not filters:  # subscribed for all symbols at once
            self.fail(BookError(f"a book of {symbol} lost an update"))
            return
        context = self._plan.context()
        try:
            for message in (
                *unsubscribe(filters, context),
                *self._dialect.subscribe(filters, context),
            ):
                await self._send(socket, message)
        except LiveError as error:
            self.fail(error)

    def _book_channels(self) -> frozenset[str]:
        return frozenset(
            channel for lane in self.lanes if lane.type == BOOKS for channel in lane.channels
        )


class _MessageLimiter:
    """Rate limit of the messages to an exchange."""

    def __init__(self, throttle_s: float, per_second: int | None) -> None:
        self._throttle_s = throttle_s
        self._per_second = per_second
        self._sent: list[float] = []

    async def wait(self) -> None:
        """Wait until the next message may be sent, and count it."""
        loop = asyncio.get_running_loop()
        if self._throttle_s and self._sent:
            await asyncio.sleep(self._throttle_s)
        limit = self._per_second
        if limit and len(self._sent) >= limit:
            await asyncio.sleep(max(0.0, self._sent[-limit] + 1.0 - loop.time()))
        self._sent.append(loop.time())
        del self._sent[: -(limit or 1)]
