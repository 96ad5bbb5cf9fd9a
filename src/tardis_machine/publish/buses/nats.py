"""NATS: JetStream with a window of acknowledgements in flight, or core NATS without any.

Everything goes through one connection that never reconnects by itself: the server takes what
comes in order, so what is unacknowledged when the connection breaks is the end of what was sent,
and sending it again in order keeps the order. What the stream had stored already it recognises by
`Nats-Msg-Id`, and says so.
"""

import asyncio
import re
import ssl
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from tardis_machine.config import ConfigError, setting
from tardis_machine.extras import require, require_installed
from tardis_machine.messages import PAYLOAD_CASES
from tardis_machine.publish.buses.base import BrokerConfig, EventBus, Order
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    MissingError,
    NotSentError,
)
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.buses.loop import LoopOwner
from tardis_machine.publish.record import Headers, Record, Target
from tardis_machine.publish.routing import CONTENT_TYPE, Routing, static_headers

_EXTRA: Final = "nats"
_WINDOW: Final = 2_000
_PUBLISHES_PER_TURN: Final = 64
"""How many publishes go out before acknowledgements are looked at."""
_CONNECT_TIMEOUT_S: Final = 5
_CLOSE_TIMEOUT_S: Final = 0.1
_SETTLE_S: Final = 0.01
"""Time for the loop to read what came while it stood still, such as the connection's end."""
_LOOK_S: Final = 0.2
"""How often to look whether the connection is still there while nothing comes from it."""
_IDLE_S: Final = 30.0
"""How long a connection is trusted without asking: nobody answers its pings between batches."""
_SILENT: Final = "does not answer"
_LATE: Final = "not acknowledged in time"
_EVENT_ID_BYTES: Final = 32
_HEADER_LINES: Final = len("NATS/1.0\r\n\r\n")
_HEADER_LINE: Final = len(": \r\n")
_STREAM_HEADER_BYTES: Final = (1 << 16) - 1
"""What the headers of a message may weigh at most that a stream is to store."""
_REFUSES: Final = "new"
"""The policy of a stream that, when it is full, refuses what comes instead of dropping the old."""
_STORED_OVERHEAD: Final = 256
"""What a stream's bound counts of a message besides what it weighs, subject and all; a bound."""
_MESSAGE_ID: Final = "Nats-Msg-Id"
_UNACCEPTABLE: Final = frozenset({10054, 10097})
"""Codes of a stream that refuses a message for the size of it or of its headers."""
_FORBIDDEN: Final = 403
"""Our own code for what we have no permission to publish: the server has none."""
_NOBODY: Final = 503
"""The code of a message that no stream listens to."""
_DENIED: Final = re.compile(r'permissions violation for publish to "(.+)"')
_NOT_IN_VALUE: Final = re.compile(r"[.*>\s\x00-\x1f\x7f]")
_SUBJECT: Final = re.compile(r"[^.*>\s\x00-\x1f\x7f]+(\.[^.*>\s\x00-\x1f\x7f]+)*")
_HEADER: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_SERVER: Final = re.compile(
    r"((nats|tls|ws|wss)://)?(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?/?"
)


@dataclass(frozen=True, kw_only=True)
class NatsConfig(BrokerConfig, section="nats", title="NATS"):
    """Servers, subjects, and how sure delivery is to be."""

    needs = ("servers", "subject")
    service = ("stream",)
    client = ("nats", _EXTRA)
    files = ("creds", "tls_ca", "tls_cert", "tls_key")
    secret_files = ("creds", "tls_key")

    servers: tuple[str, ...] = setting((), help="servers", metavar="nats://HOST:PORT,…")
    user: str | None = setting(None, help="user")
    pass_: str | None = setting(None, secret=True, help="password")
    token: str | None = setting(None, secret=True, help="token")
    creds: Path | None = setting(None, help="file with JWT and seed, as nsc writes it")
    tls_ca: Path | None = setting(None, help="PEM file of the authority that signed the servers")
    tls_cert: Path | None = setting(None, help="PEM file of the client's certificate")
    tls_key: Path | None = setting(None, help="PEM file of the client's key")
    subject: str | None = setting(
        None, help="subject of every event that has neither route nor template"
    )
    subject_routing: dict[str, str] = setting(
        {}, help="subjects by payload case", metavar="CASE:SUBJECT,…"
    )
    subject_template: str | None = setting(
        None, help="subject of events without a route; order is kept per subject"
    )
    static_headers: dict[str, str] = setting(
        {}, help="headers that every message carries", metavar="KEY:VALUE,…"
    )
    mode: str = setting(
        "jetstream",
        choices=("jetstream", "core"),
        help="jetstream: stored by a stream and acknowledged; core: neither",
    )
    stream: str | None = setting(None, help="stream that must take the subjects")
    create: bool = setting(False, help="create the stream if it is not there")

    @property
    def may_create(self) -> bool:
        return self.create

    @property
    def encrypted(self) -> bool:
        """Tell whether every connection must be encrypted before anything secret is said."""
        return self.tls_ca is not None or self.tls_cert is not None

    def routing(self) -> Routing:
        """Subjects by route, template or the one subject; the subject is the key."""
        flag = self.flag("static_headers")
        headers = static_headers(self.static_headers, flag)
        for name in self.static_headers:
            if not _HEADER.fullmatch(name):  # no message could be sent with it
                raise ConfigError(flag, name, "expected letters, digits and !#$%&'*+-.^_`|~ alone")
        longest = max(PAYLOAD_CASES, key=len)
        size = _header_bytes((("payload-case", longest), ("content-type", CONTENT_TYPE), *headers))
        if self.mode == "jetstream" and size > _STREAM_HEADER_BYTES:
            allowed = f"makes headers of {size} bytes, and a stream takes {_STREAM_HEADER_BYTES}"
            raise ConfigError(flag, None, allowed)
        return self.rules(
            "subject",
            check=_check_subject,
            template="subject_template",
            headers=headers,
            clean=_clean,
        )

    def subjects(self) -> tuple[str, ...]:
        """Name the subjects events may go to; what a template fills in is a wildcard."""
        routing = self.routing()
        if routing.destination is None:
            return routing.destinations
        tokens = routing.destination.render(lambda _: "*").split(".")
        pattern = ".".join("*" if "*" in token else token for token in tokens)
        return tuple(dict.fromkeys([pattern, *routing.routes.values()]))

    def expect_client(self) -> None:
        """Credentials need a library more, which the client alone does not bring."""
        super().expect_client()
        if self.creds is not None:
            require_installed("nkeys", extra=_EXTRA)

    def login(self) -> dict[str, Any]:
        """Give what any client of these servers needs to be let in, as nats.connect names it."""
        options: dict[str, Any] = {
            "user": self.user,
            "password": self.pass_,
            "token": self.token,
            "user_credentials": None if self.creds is None else str(self.creds),
        }
        if self.tls_ca is not None or self.tls_cert is not None:
            context = ssl.create_default_context(cafile=self.tls_ca)
            if self.tls_cert is not None:
                context.load_cert_chain(self.tls_cert, self.tls_key)
            options["tls"] = context
        return {name: value for name, value in options.items() if value is not None}

    def validate(self) -> None:
        """Refuse credentials that are half there or contradict each other."""
        super().validate()
        for server in self.servers:
            if not _SERVER.fullmatch(server):
                raise ConfigError(
                    self.flag("servers"),
                    server,
                    "expected nats://host:port,…, a password in a flag of its own",
                )
            if self.encrypted and server.startswith("ws://"):
                raise ConfigError(self.flag("servers"), server, "expected wss://, to be encrypted")
        self.both_or_neither("user", "pass_")
        self.both_or_neither("tls_cert", "tls_key")
        ways = [name for name in ("user", "token", "creds") if getattr(self, name) is not None]
        if len(ways) > 1:
            first, second = ways[:2]
            raise ConfigError(
                self.flag(second), None, f"expected one way to log in, {self.flag(first)} is set"
            )
        if self.create and (self.stream is None or self.mode != "jetstream"):
            raise ConfigError(
                self.flag("create"), None, f"expected {self.flag('stream')} too, in jetstream mode"
            )

    def warnings(self) -> list[str]:
        """Say that core NATS promises nothing, and what others can read."""
        found = super().warnings()
        if self.enabled and self.mode == "core":
            found.append(
                f"{self.flag('mode')} core has no acknowledgements: events that no subscriber "
                "takes at that moment are lost, and delivered means handed to the server"
            )
        secret = "pass_" if self.pass_ is not None else "token"
        plain = [server for server in self.servers if not self.demands_tls(server)]
        if plain and getattr(self, secret) is not None:
            found.append(
                f"{self.flag(secret)} goes to {plain[0]} in clear: use tls://, or "
                f"{self.flag('tls_ca')}"
            )
        return found

    def demands_tls(self, server: str) -> bool:
        """Tell whether nothing may be said to a server before the connection is encrypted."""
        return self.encrypted or server.startswith(("tls://", "wss://"))


class NatsEventBus(EventBus[NatsConfig]):
    """Publishes with headers, through a client in a loop of its own."""

    name = "nats"
    config_type = NatsConfig
    noun = "subject"

    def __init__(self, config: NatsConfig) -> None:
        super().__init__(config)
        self._loop = LoopOwner()
        self._client: Any = None
        self._inbox = ""
        self._window = _Window()
        self._used_at = 0.0
        self._next_server = 0
        self._streams: list[str] = []
        self._bounded: list[str] = []
        self._trouble: str | None = None
        # Where a stream may refuse something, one message per subject at a time: what is refused
        # then cannot be overtaken by what was sent behind it.
        self._careful = False

    @property
    def order(self) -> Order:
        return Order.PER_KEY if self.config.mode == "jetstream" else Order.NONE

    def destinations(self) -> tuple[str, ...]:
        return self.config.subjects()

    def overhead(self, target: Target) -> int:
        """Count the headers as the server does: it hangs up on what is too large."""
        return _header_bytes(target.headers)

    @property
    def _is_open(self) -> bool:
        return self._client is not None and self._loop.run(self._still_there())

    def _open(self, timeout_s: float) -> None:
        self._loop.run(self._reach(timeout_s))

    def _close(self) -> None:
        """Leave the server."""
        if self._loop.used:
            self._loop.run(self._disconnect())
            self._loop.close()

    def _address(self) -> str:
        return ",".join(self.config.servers)

    def _remarks(self, missing: Collection[str]) -> Sequence[str]:
        if self.config.mode == "core":
            return ("core",)
        if missing:
            return (f"stream {self.config.stream}",)
        return (f"streams {', '.join(dict.fromkeys(self._streams))}",)

    def _missing(self, destinations: Sequence[str]) -> Mapping[str, BusError | None]:
        if self.config.mode == "core":
            return {}
        return self._loop.run(self._without_stream(destinations))

    def _lacking(self, destination: str) -> BusUnavailableError:
        flags = f"{self.config.flag('stream')} and {self.config.flag('create')}"
        reason = f"no stream takes this subject: create one, or set {flags}"
        return self._unavailable(reason, destination)

    def _create(self, destination: str) -> None:
        self._loop.run(self._create_stream(destination))

    def _prepare(self, destinations: Sequence[str]) -> None:
        if self.config.mode == "jetstream":
            self._loop.run(self._subscribe())

    def _heaviest(self, destination: str) -> int:
        limit: int = self._client.max_payload
        return limit

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        """Publish with up to 2,000 acknowledgements outstanding, and wait for them all."""
        self._loop.run(self._publish_all(records, fates, deadline))

    async def _subscribe(self) -> None:
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._window.on_reply)

    async def _reach(self, timeout_s: float) -> None:
        """Try each server once, beginning with the one that answered last."""
        errors = _errors()
        self._trouble = None
        self._window = _Window()
        for _ in self.config.servers:
            server = self.config.servers[self._next_server % len(self.config.servers)]
            # What speaks wss is encrypted before anything is said.
            encrypted = self.config.demands_tls(server) and not server.startswith("wss://")
            client = _client(encrypted=encrypted)
            try:
                async with asyncio.timeout(timeout_s):  # the client has none for a WebSocket
                    await client.connect(server, **self._options(timeout_s))
            except errors as error:
                self._trouble = self._trouble or _words(error)
                if self._trouble == _SILENT:
                    self._trouble = f"{server} {_SILENT}"
                self._next_server += 1
                await _drop(client)
            else:
                self._client = client
                self._used_at = time.monotonic()
                return
        raise self._unavailable(self._trouble or "no server answers")

    async def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await _drop(client)

    def _options(self, timeout_s: float) -> dict[str, Any]:
        return {
            "name": "tardis-machine",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": min(timeout_s, _CONNECT_TIMEOUT_S),
            "error_cb": self._on_error,
            "closed_cb": self._on_closed,
            **self.config.login(),
        }

    async def _on_error(self, error: Exception) -> None:
        denied = _DENIED.search(str(error))
        if denied is not None:  # all the answer there is to such a message
            self._window.deny(denied[1])
        else:
            self._trouble = _words(error)

    async def _on_closed(self) -> None:
        self._window.wake()

    async def _without_stream(self, subjects: Sequence[str]) -> dict[str, BusError | None]:
        """Name the subjects that no stream takes, or a wrong one."""
        js, errors = self._jetstream()
        missing: dict[str, BusError | None] = {}
        self._streams = []
        self._bounded = []
        for subject in subjects:
            try:
                stream = await js.find_stream_name_by_subject(subject)
                config = (await js.stream_info(stream)).config
            except errors.NotFoundError:
                missing[subject] = None
                continue
            except _errors() as error:
                raise self._unavailable(f"JetStream: {error}") from None
            self._streams.append(stream)
            self._look_at_bounds(stream, config)
            reason = self._unfit(stream, config)
            if reason is not None and "*" in subject:  # no record is known by its pattern
                raise self._unavailable(f"{subject}: {reason}")
            if reason is not None:
                missing[subject] = self._unavailable(reason, subject)
        return missing

    def _unfit(self, stream: str, config: Any) -> str | None:
        """Tell why a stream that takes a subject is not the one for us."""
        if self.config.stream not in {None, stream}:
            return f"taken by stream {stream}, not by {self.config.stream}"
        if config.no_ack:  # everything would be sent again for ever
            mode = self.config.flag("mode")
            return f"stream {stream} acknowledges nothing (no_ack): change that, or use {mode} core"
        return None

    def _look_at_bounds(self, stream: str, config: Any) -> None:
        """Remember a stream that refuses what is new when it is full."""
        bounds = (config.max_msgs, config.max_bytes, config.max_msgs_per_subject)
        bounded = any(bound is not None and bound > 0 for bound in bounds)
        if config.discard == _REFUSES and bounded and stream not in self._bounded:
            self._bounded.append(stream)

    async def _has_room(self, records: Sequence[Record], places: Sequence[int]) -> bool:
        """Tell whether the streams can take a batch without refusing any of it."""
        js, _ = self._jetstream()
        count = len(places)
        weight = sum(records[place].weight + _STORED_OVERHEAD for place in places)
        try:
            for stream in self._bounded:
                info = await js.stream_info(stream)
                config, state = info.config, info.state
                if (config.max_msgs_per_subject or 0) > 0:
                    return False
                if 0 < (config.max_msgs or 0) < state.messages + count:
                    return False
                if 0 < (config.max_bytes or 0) < state.bytes + weight:
                    return False
        except _errors():
            return False
        return True

    async def _create_stream(self, subject: str) -> None:
        """Create the stream for all our subjects; one that is there already is left as it is."""
        js, errors = self._jetstream()
        stream = self.config.stream
        try:
            try:
                taken = (await js.stream_info(stream)).config.subjects or ()
            except errors.NotFoundError:
                wanted = self.destinations()
                # A stream refuses subjects that overlap, as a route inside the template's does.
                taken = [s for s in wanted if not any(s != p and _takes(p, s) for p in wanted)]
                await js.add_stream(name=stream, subjects=taken)
        except _errors() as error:
            raise self._unavailable(f"stream {stream}: {error}", subject) from None
        if not any(_takes(pattern, subject) for pattern in taken):
            raise self._unavailable(f"stream {stream} is there, and does not take it", subject)

    def _jetstream(self) -> tuple[Any, Any]:
        errors = require("nats.js.errors", extra=_EXTRA)
        return self._client.jetstream(timeout=_CONNECT_TIMEOUT_S), errors

    async def _still_there(self) -> bool:
        """Ask a connection that was idle whether it still lives."""
        if time.monotonic() - self._used_at > _IDLE_S:
            errors = require("nats.errors", extra=_EXTRA)
            await asyncio.sleep(_SETTLE_S)
            try:
                await self._client.flush(_CONNECT_TIMEOUT_S)
            except (errors.Error, OSError):
                return False
        return bool(self._client.is_connected)

    async def _publish_all(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        if self.config.mode == "jetstream":
            await self._publish_acknowledged(records, fates, deadline)
        else:
            await self._publish_core(records, fates, deadline)
        self._used_at = time.monotonic()

    async def _publish_acknowledged(
        self, records: Sequence[Record], fates: Fates, deadline: float
    ) -> None:
        window = self._window
        window.begin()
        places = fates.open()
        if self._bounded and not await self._has_room(records, places):
            self._careful = True
        sent = await self._publish(records, places, deadline, window)
        while window.waiting and self._client.is_connected:
            if not await window.changed(deadline):
                break
        codes = self._fail_refused(records, fates, window)
        if window.waiting:
            fates.fail(window.waiting, self._unavailable(self._trouble or _LATE))
        if window.waiting or _FORBIDDEN in codes:
            # Late answers must not be taken for those of the next attempt.
            await self._disconnect()
        fates.deliver(
            [place for place in sent if fates.is_open(place)], duplicates=window.duplicates
        )
        self._hold_back(records, fates)
        self._careful = bool(codes - _UNACCEPTABLE - {_FORBIDDEN})

    def _fail_refused(
        self, records: Sequence[Record], fates: Fates, window: "_Window"
    ) -> frozenset[int]:
        """Tell what became of what was refused; gives the codes it was refused with."""
        for place, (code, reason) in window.refused.items():
            record = records[place]
            if code in _UNACCEPTABLE:
                fates.fail([place], self._rejected(record, reason))
            elif code == _NOBODY:
                error = MissingError(self.name, reason, destination=record.destination)
                fates.fail([place], error)
            else:
                fates.fail([place], self._unavailable(reason, record.destination))
        return frozenset(code for code, _ in window.refused.values())

    async def _publish(
        self, records: Sequence[Record], places: Sequence[int], deadline: float, window: "_Window"
    ) -> list[int]:
        """Publish until something fails or time is up; give the places of what went out."""
        sent: list[int] = []
        with suppress(TimeoutError):
            async with asyncio.timeout(deadline - time.monotonic()) as limit:
                await self._publish_each(records, places, deadline, window, sent, limit.expired)
        return sent

    async def _publish_each(
        self,
        records: Sequence[Record],
        places: Sequence[int],
        deadline: float,
        window: "_Window",
        sent: list[int],
        late: Callable[[], bool],
    ) -> None:
        errors = require("nats.errors", extra=_EXTRA)
        publish = self._client.publish
        reply = f"{self._inbox}."
        for number, place in enumerate(places):
            record = records[place]
            destination = record.destination
            while self._client.is_connected and window.full(destination, self._careful):
                if not await window.changed(deadline):
                    return
            if window.stopped:
                return
            headers = dict(record.headers)
            headers[_MESSAGE_ID] = record.event.event_id
            window.add(place, destination)
            sent.append(place)
            try:
                await publish(destination, record.value, f"{reply}{place}", headers)
            except (errors.Error, OSError) as error:
                self._trouble = str(error) or type(error).__name__
                return
            if late():  # it may have waited for a server that reads nothing, and keeps that quiet
                return
            if number % _PUBLISHES_PER_TURN == 0:
                await asyncio.sleep(0)

    async def _publish_core(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        errors = require("nats.errors", extra=_EXTRA)
        window = self._window
        window.begin()
        try:
            async with asyncio.timeout(deadline - time.monotonic()) as limit:
                for place in fates.open():
                    record = records[place]
                    window.add(place, record.destination)
                    headers = dict(record.headers)
                    headers[_MESSAGE_ID] = record.event.event_id
                    await self._client.publish(record.destination, record.value, headers=headers)
                    if limit.expired():
                        raise TimeoutError(_LATE)
            # A ping is written ahead of what is still pending; the second one is behind that.
            for _ in range(2):
                await self._client.flush(max(0.1, deadline - time.monotonic()))
        except (errors.Error, OSError) as error:
            reason = self._trouble or str(error) or type(error).__name__
            await self._disconnect()
            raise self._unavailable(reason) from None
        self._fail_refused(records, fates, window)  # there is no other answer, and no later one
        fates.deliver(fates.open())

    def _hold_back(self, records: Sequence[Record], fates: Fates) -> None:
        reason = self._trouble or "held back behind a message that was not stored"
        for place in fates.open():
            destination = records[place].destination
            fates.fail([place], NotSentError(self.name, reason, destination=destination))


def _errors() -> tuple[type[Exception], ...]:
    """Give what a call to a server may raise that is the server's or the way's fault."""
    nats = require("nats", extra=_EXTRA)
    return (nats.errors.Error, OSError, asyncio.TimeoutError)


def _words(error: Exception) -> str:
    """Say what is wrong; a time that was up says nothing itself."""
    return str(error) or (_SILENT if isinstance(error, TimeoutError) else type(error).__name__)


def _client(*, encrypted: bool) -> Any:
    """Make a client; `encrypted` is one that says nothing to a server without TLS."""
    nats = require("nats", extra=_EXTRA)
    if not encrypted:
        return nats.NATS()

    class EncryptedClient(nats.NATS):  # type: ignore[misc, name-defined]  # an untyped library
        async def _process_info(self, info: dict[str, Any], *given: Any, **named: Any) -> None:
            # Between the server's first word and our credentials. The client itself encrypts only
            # if the server insists, so that anybody in between could talk it out of it.
            info["tls_required"] = info.get("tls_required") or info.get("tls_available")
            if not info["tls_required"]:
                raise nats.errors.SecureConnWantedError
            await super()._process_info(info, *given, **named)

    return EncryptedClient()


async def _drop(client: Any) -> None:
    """Close a connection for good.

    A client that could not connect, or lost its connection, leaves tasks and its transport behind.
    The loop is this bus's alone, so what runs in it besides is such a task.
    """
    transport = client._transport  # noqa: SLF001 - nobody else can close it any more
    writer = getattr(transport, "_io_writer", None)  # a WebSocket has none
    unsent = client.pending_data_size
    if writer is not None and (unsent or writer.transport.get_write_buffer_size()):
        writer.transport.abort()  # else it writes that first, to a server that may read nothing
    if client.is_connected:
        with suppress(OSError):
            await client.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=_CLOSE_TIMEOUT_S)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    if transport is not None:
        transport.close()
        with suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                await transport.wait_closed()


class _PublishError(msgspec.Struct):
    err_code: int = 0
    description: str = "refused"


class _Acknowledgement(msgspec.Struct):
    error: _PublishError | None = None
    duplicate: bool = False


class _Window:
    """Messages of a batch that are on their way, and what became of the others."""

    def __init__(self) -> None:
        self._reply = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Start over, for a new batch."""
        self.waiting: dict[int, str] = {}
        self.refused: dict[int, tuple[int, str]] = {}
        self.duplicates = 0
        # Set by the first refusal that is not the message's own fault: nothing may overtake it.
        self.stopped = False

    def full(self, subject: str, careful: bool) -> bool:
        """Tell whether a message to this subject must wait; with care, for the last one of it."""
        if self.stopped:
            return False
        return len(self.waiting) >= _WINDOW or (careful and subject in self.waiting.values())

    def add(self, index: int, subject: str) -> None:
        """Note that a message is on its way."""
        self.waiting[index] = subject

    async def changed(self, deadline: float) -> bool:
        """Wait for the next reply, or until it is time to look around; False: out of time."""
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        self._reply.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(min(left, _LOOK_S)):
                await self._reply.wait()
        return True

    def wake(self) -> None:
        """Let whoever waits look at the connection."""
        self._reply.set()

    async def on_reply(self, message: Any) -> None:
        """Take an acknowledgement, a refusal, or the news that nobody listens."""
        index = int(message.subject.rpartition(".")[2])
        if self.waiting.pop(index, None) is None:
            return
        data = message.data
        # Most acknowledgements say neither, and are not worth decoding.
        if not data:
            self._refuse(index, _NOBODY, "no stream takes this subject")
        elif b'"error"' in data or b'"duplicate"' in data:
            answer = msgspec.json.decode(data, type=_Acknowledgement)
            if answer.error is not None:
                self._refuse(index, answer.error.err_code, answer.error.description)
            elif answer.duplicate:
                self.duplicates += 1
        self._reply.set()

    def deny(self, subject: str) -> None:
        """Take the news that nothing may be published to a subject, told in lower case."""
        for index in [i for i, waits in self.waiting.items() if waits.lower() == subject]:
            del self.waiting[index]
            self._refuse(index, _FORBIDDEN, "no permission to publish")
        self._reply.set()

    def _refuse(self, index: int, code: int, reason: str) -> None:
        self.refused[index] = (code, reason)
        self.stopped = self.stopped or code not in _UNACCEPTABLE


def _takes(pattern: str, subject: str) -> bool:
    """Tell whether all that a subject stands for is among what a pattern takes."""
    wanted, tokens = pattern.split("."), subject.split(".")
    if wanted[-1] == ">" and len(tokens) >= len(wanted):
        wanted, tokens = wanted[:-1], tokens[: len(wanted) - 1]
    return len(wanted) == len(tokens) and all(
        word in {"*", token} for word, token in zip(wanted, tokens, strict=True)
    )


def _header_bytes(headers: Headers) -> int:
    """Count what all headers of a message weigh, with those that carry its id."""
    event_id = 2 * (_EVENT_ID_BYTES + _HEADER_LINE) + len("event-id") + len(_MESSAGE_ID)
    own = sum(len(name) + len(value.encode()) + _HEADER_LINE for name, value in headers)
    return _HEADER_LINES + event_id + own


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)


def _check_subject(subject: str, flag: str) -> None:
    if not _SUBJECT.fullmatch(subject):
        raise ConfigError(
            flag, subject, "expected words joined by dots, without * > and white space"
        )
