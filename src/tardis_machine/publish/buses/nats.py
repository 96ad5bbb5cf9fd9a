"""NATS: JetStream with a window of acknowledgements in flight, or core NATS without any.

Everything goes through one connection that never reconnects by itself: the server takes what
comes in order, so what is unacknowledged when the connection breaks is the end of what was sent,
and sending it again in order keeps the order. What the stream had stored already it recognises by
`Nats-Msg-Id`, and says so.
"""

import asyncio
import logging
import re
import ssl
import time
from collections.abc import Coroutine, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from tardis_machine.config import ConfigError, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.base import (
    BusConfig,
    BusError,
    BusUnavailableError,
    EventBus,
    Failure,
    Limits,
    NotSentError,
    RecordRejectedError,
    SendResult,
)
from tardis_machine.publish.record import Record
from tardis_machine.publish.routing import (
    Routing,
    Template,
    payload_cases,
    routes,
    static_headers,
)

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
_BATCH_BYTES: Final = 8 << 20
_HEADER_LINES: Final = len("NATS/1.0\r\n\r\n")
_HEADER_LINE: Final = len(": \r\n")
_MESSAGE_ID: Final = "Nats-Msg-Id"
_UNACCEPTABLE: Final = frozenset({10054, 10097})
"""Codes of a stream that refuses a message for the size of it or of its headers."""
_NOT_IN_VALUE: Final = re.compile(r"[.*>\s\x00-\x1f\x7f]")
_SUBJECT: Final = re.compile(r"[^.*>\s\x00-\x1f\x7f]+(\.[^.*>\s\x00-\x1f\x7f]+)*")
_SERVER: Final = re.compile(
    r"((nats|tls|ws|wss)://)?(\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+)(:\d{1,5})?/?"
)

T = TypeVar("T")

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NatsConfig(BusConfig, section="nats", title="NATS"):
    """Servers, subjects, and how sure delivery is to be."""

    needs = ("servers", "subject")
    client = ("nats", _EXTRA)

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
    include_payloads: tuple[str, ...] = setting(
        (), help="payload cases to publish; all if empty", metavar="CASE,…"
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
    max_batch_size: int = setting(
        5_000, minimum=1, maximum=100_000, help="messages handed over at once"
    )
    max_batch_delay_ms: int = setting(
        20, minimum=0, maximum=60_000, help="longest wait for a batch to fill"
    )

    def routing(self) -> Routing:
        """Subjects by route, template or the one subject; the subject is the key."""
        assert self.subject is not None
        _check_subject(self.subject, self.flag("subject"))
        template = None
        if self.subject_template is not None:
            flag = self.flag("subject_template")
            template = Template(self.subject_template, flag)
            _check_subject(template.render(lambda _: "x"), flag, shown=self.subject_template)
        return Routing(
            base=self.subject,
            routes=routes(self.subject_routing, self.flag("subject_routing"), _check_subject),
            include=payload_cases(self.include_payloads, self.flag("include_payloads")),
            destination=template,
            headers=static_headers(self.static_headers, self.flag("static_headers")),
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

    @property
    def limits(self) -> Limits:
        """Batches as configured; what they weigh is bounded too."""
        return Limits(self.max_batch_size, _BATCH_BYTES, self.max_batch_delay_ms / 1000)

    def validate(self) -> None:
        """Refuse credentials that are half there or contradict each other."""
        super().validate()
        for server in self.servers:
            if not _SERVER.fullmatch(server):
                raise ConfigError(
                    self.flag("servers"),
                    re.sub(r"//.*@", "//***@", server),
                    "expected nats://host:port,…, a password in a flag of its own",
                )
        for name in ("creds", "tls_ca", "tls_cert", "tls_key"):
            path = getattr(self, name)
            if path is not None and not path.is_file():
                raise ConfigError(self.flag(name), str(path), "expected a file that is there")
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
        """Say that core NATS promises nothing."""
        found = super().warnings()
        if self.enabled and self.mode == "core":
            found.append(
                f"{self.flag('mode')} core has no acknowledgements: events that no subscriber "
                "takes at that moment are lost, and delivered means handed to the server"
            )
        return found


class NatsEventBus(EventBus[NatsConfig]):
    """Publishes with headers; the connection lives in an event loop that runs while it is used."""

    name = "nats"
    config_type = NatsConfig

    def __init__(self, config: NatsConfig) -> None:
        super().__init__(config)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._client: Any = None
        self._inbox = ""
        self._window = _Window()
        self._used_at = 0.0
        self._next_server = 0
        self._trouble: str | None = None
        # After a stream has refused something, one message per subject at a time: what is refused
        # then cannot be overtaken by what was sent behind it.
        self._careful = False

    def connect(self) -> None:
        """Connect to a server and find the stream of each subject."""
        self._run(self._connect())

    def send(self, records: Sequence[Record], timeout_s: float) -> SendResult:
        """Publish with up to 2,000 acknowledgements outstanding, and wait for them all."""
        return self._run(self._send(records, time.monotonic() + timeout_s))

    def check(self) -> str:
        """Connect, look for the streams, leave again."""
        try:
            return self._run(self._check())
        finally:
            self.close()

    def close(self) -> None:
        """Leave the server."""
        if self._loop is not None:
            self._run(self._disconnect())
            self._loop.close()
            self._loop = None

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)

    async def _connect(self) -> None:
        await self._open()
        if self.config.mode == "jetstream":
            if self.config.create:
                await self._create_stream()
            await self._find_streams()
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(f"{self._inbox}.*", cb=self._window.on_reply)

    async def _open(self) -> None:
        """Try each server once, beginning with the one that answered last."""
        await self._disconnect()
        nats = require("nats", extra=_EXTRA)
        errors: tuple[type[Exception], ...] = (nats.errors.Error, OSError, asyncio.TimeoutError)
        self._trouble = None
        for _ in self.config.servers:
            server = self.config.servers[self._next_server % len(self.config.servers)]
            client = nats.NATS()
            try:
                await client.connect(server, **self._options())
            except errors as error:
                self._trouble = self._trouble or str(error) or type(error).__name__
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

    def _options(self) -> dict[str, Any]:
        return {
            "name": "tardis-machine",
            "allow_reconnect": False,
            "max_reconnect_attempts": 1,
            "reconnect_time_wait": 0,
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "error_cb": self._on_error,
            "closed_cb": self._on_closed,
            **self.config.login(),
        }

    async def _on_error(self, error: Exception) -> None:
        self._trouble = str(error) or type(error).__name__

    async def _on_closed(self) -> None:
        self._window.wake()

    async def _check(self) -> str:
        await self._open()
        said = f"{','.join(self.config.servers)}, subjects {', '.join(self.config.subjects())}"
        if self.config.mode == "core":
            return f"{said}, core"
        if self.config.create and not await self._stream_exists():
            return f"{said}, stream {self.config.stream} (will be created)"
        return f"{said}, streams {', '.join(await self._find_streams())}"

    async def _find_streams(self) -> list[str]:
        """Give the streams that take the subjects, or complain about the first without one."""
        js, errors = self._jetstream()
        found = []
        for subject in self.config.subjects():
            try:
                stream = await js.find_stream_name_by_subject(subject)
            except errors.NotFoundError:
                hint = f"create one, or set {self.config.flag('stream')} and "
                reason = f"no stream takes this subject: {hint}{self.config.flag('create')}"
                raise self._unavailable(reason, subject) from None
            except errors.Error as error:
                raise self._unavailable(f"JetStream: {error}", subject) from None
            if self.config.stream not in {None, stream}:
                reason = f"taken by stream {stream}, not by {self.config.stream}"
                raise self._unavailable(reason, subject)
            found.append(stream)
        return list(dict.fromkeys(found))

    async def _stream_exists(self) -> bool:
        js, errors = self._jetstream()
        try:
            await js.stream_info(self.config.stream)
        except errors.NotFoundError:
            return False
        except errors.Error as error:
            raise self._unavailable(f"JetStream: {error}") from None
        return True

    async def _create_stream(self) -> None:
        if await self._stream_exists():
            return
        js, errors = self._jetstream()
        try:
            await js.add_stream(name=self.config.stream, subjects=list(self.config.subjects()))
        except errors.Error as error:
            raise self._unavailable(f"stream {self.config.stream}: {error}") from None
        log.info("stream created", extra={"bus": self.name, "stream": self.config.stream})

    def _jetstream(self) -> tuple[Any, Any]:
        errors = require("nats.js.errors", extra=_EXTRA)
        return self._client.jetstream(timeout=_CONNECT_TIMEOUT_S), errors

    async def _send(self, records: Sequence[Record], deadline: float) -> SendResult:
        failures: dict[int, BusError] = {}
        duplicates = 0
        try:
            await self._ready()
        except BusError as error:
            failures = dict.fromkeys(range(len(records)), error)
        else:
            if self.config.mode == "jetstream":
                await self._publish_acknowledged(records, deadline, failures)
                duplicates = self._window.duplicates
            else:
                await self._publish_core(records, deadline, failures)
            self._used_at = time.monotonic()
        return SendResult(
            delivered=len(records) - len(failures),
            duplicates=duplicates,
            failures=[Failure(index, failures[index]) for index in sorted(failures)],
        )

    async def _ready(self) -> None:
        """Connect if need be; a connection that was idle is asked whether it still lives."""
        if self._client is not None and time.monotonic() - self._used_at > _IDLE_S:
            errors = require("nats.errors", extra=_EXTRA)
            await asyncio.sleep(_SETTLE_S)
            try:
                await self._client.flush(_CONNECT_TIMEOUT_S)
            except (errors.Error, OSError):
                await self._disconnect()
        if self._client is None or not self._client.is_connected:
            await self._connect()

    async def _publish_acknowledged(
        self, records: Sequence[Record], deadline: float, failures: dict[int, BusError]
    ) -> None:
        window = self._window
        window.begin()
        sent = await self._publish(records, deadline, failures, window, f"{self._inbox}.")
        while window.waiting and self._client.is_connected:
            if not await window.changed(deadline):
                break
        refused = False
        for index, (code, reason) in window.refused.items():
            destination = records[index].destination
            if code in _UNACCEPTABLE:
                failures[index] = RecordRejectedError(self.name, reason, destination=destination)
            else:
                refused = True
                failures[index] = self._unavailable(reason, destination)
        for index in window.waiting:
            reason = self._trouble or "not acknowledged in time"
            failures[index] = self._unavailable(reason, records[index].destination)
        self._hold_back(records, range(sent, len(records)), failures)
        if window.waiting:
            # Late acknowledgements must not be taken for those of the next attempt.
            await self._disconnect()
        self._careful = refused

    async def _publish(
        self,
        records: Sequence[Record],
        deadline: float,
        failures: dict[int, BusError],
        window: "_Window",
        reply: str,
    ) -> int:
        """Publish until something fails; give the number of records looked at."""
        errors = require("nats.errors", extra=_EXTRA)
        publish = self._client.publish
        for index, record in enumerate(records):
            excess = self._too_large(record)
            if excess is not None:
                failures[index] = excess
                continue
            while self._client.is_connected and window.full(record.destination, self._careful):
                if not await window.changed(deadline):
                    return index
            if window.stopped:
                return index
            headers = dict(record.headers)
            headers[_MESSAGE_ID] = record.event.event_id
            window.add(index, record.destination)
            try:
                await publish(record.destination, record.value, f"{reply}{index}", headers)
            except (errors.Error, OSError) as error:
                self._trouble = str(error) or type(error).__name__
                return index + 1
            if index % _PUBLISHES_PER_TURN == 0:
                await asyncio.sleep(0)
                if time.monotonic() > deadline:
                    return index + 1
        return len(records)

    async def _publish_core(
        self, records: Sequence[Record], deadline: float, failures: dict[int, BusError]
    ) -> None:
        errors = require("nats.errors", extra=_EXTRA)
        try:
            for index, record in enumerate(records):
                excess = self._too_large(record)
                if excess is not None:
                    failures[index] = excess
                    continue
                headers = dict(record.headers)
                headers[_MESSAGE_ID] = record.event.event_id
                await self._client.publish(record.destination, record.value, headers=headers)
            await self._client.flush(max(0.1, deadline - time.monotonic()))
        except (errors.Error, OSError) as error:
            reason = self._trouble or str(error) or type(error).__name__
            for index, record in enumerate(records):
                failures.setdefault(index, self._unavailable(reason, record.destination))
            await self._disconnect()

    def _too_large(self, record: Record) -> RecordRejectedError | None:
        """Measure headers and value as the server does: it hangs up on what is too large."""
        limit: int = self._client.max_payload
        if len(record.value) < limit >> 1:
            return None
        headers = _HEADER_LINES + _HEADER_LINE + len(_MESSAGE_ID) + len(record.event.event_id)
        for name, value in record.headers:
            headers += len(name) + len(value.encode()) + _HEADER_LINE
        size = len(record.value) + headers
        if size <= limit:
            return None
        reason = f"{size} bytes, and the server takes {limit} at most"
        return RecordRejectedError(self.name, reason, destination=record.destination)

    def _hold_back(
        self, records: Sequence[Record], indices: Iterable[int], failures: dict[int, BusError]
    ) -> None:
        for index in indices:
            reason = self._trouble or "held back behind a message that was not stored"
            destination = records[index].destination
            failures[index] = NotSentError(self.name, reason, destination=destination)

    def _unavailable(self, reason: str, destination: str | None = None) -> BusUnavailableError:
        return BusUnavailableError(self.name, reason, destination=destination)


async def _drop(client: Any) -> None:
    """Close a connection for good.

    A client that could not connect, or lost its connection, leaves tasks and its transport behind.
    The loop is this bus's alone, so what runs in it besides is such a task.
    """
    if client.is_connected:
        with suppress(OSError):
            await client.close()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        await asyncio.wait(left, timeout=_CLOSE_TIMEOUT_S)
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)
    transport = client._transport  # noqa: SLF001 - nobody else can close it any more
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
            self._refuse(index, 503, "no stream takes this subject")
        elif b'"error"' in data or b'"duplicate"' in data:
            answer = msgspec.json.decode(data, type=_Acknowledgement)
            if answer.error is not None:
                self._refuse(index, answer.error.err_code, answer.error.description)
            elif answer.duplicate:
                self.duplicates += 1
        self._reply.set()

    def _refuse(self, index: int, code: int, reason: str) -> None:
        self.refused[index] = (code, reason)
        self.stopped = self.stopped or code not in _UNACCEPTABLE


def _clean(value: str) -> str:
    return _NOT_IN_VALUE.sub("_", value)


def _check_subject(subject: str, flag: str, shown: str | None = None) -> None:
    if not _SUBJECT.fullmatch(subject):
        raise ConfigError(
            flag, shown or subject, "expected words joined by dots, without * > and white space"
        )
