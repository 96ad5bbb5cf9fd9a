"""Redis Streams: a batch is one transaction of XADDs, sent at once, each reply looked at.

A transaction is taken whole or not at all, so that when Redis refuses some of it (it is out of
memory, or became a replica) nothing that comes later gets in first. Everything goes through one
connection; what was not answered when it broke is sent again in order.
"""

import logging
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from tardis_machine.config import ConfigError, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.base import BrokerConfig, EventBus
from tardis_machine.publish.buses.errors import BusError, NotSentError
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record, Target
from tardis_machine.publish.routing import Routing, static_headers

_EXTRA: Final = "redis"
_SOCKET_TIMEOUT_S: Final = 5.0
_SHORTEST_WAIT_S: Final = 0.05
_PIECE_BYTES: Final = 64 << 10
"""What is written at once: the socket's time-out is for that, so that slow does not mean dead."""
_PORT: Final = 6379
_HOST: Final = re.compile(r"[^\s/@?]+")
_URL: Final = re.compile(r"(rediss?://[^\s/@?]+(/\d{1,5})?/?|unix:///[^\s?@]+)")
_BULK_BYTES: Final = 512 << 20
"""The largest text Redis takes, unless configured otherwise."""
_FINAL: Final = ("WRONGTYPE",)
_OF_STREAM: Final = ("NOPERM", "ERR")
_OF_KEYS: Final = "permissions to access"
"""What a user is told who has the right to a command, and not to a key."""
_EVENT_ID: Final = len("event-id") + 32
_VALUE: Final = "value"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RedisConfig(BrokerConfig, section="redis", title="Redis"):
    """The server, streams, and how long they may grow."""

    needs = ("stream",)
    service = ("host", "port", "url")
    client = ("redis", _EXTRA)
    files = ("tls_ca", "tls_cert", "tls_key")
    secret_files = ("tls_key",)

    host: str = setting("localhost", help="server")
    port: int = setting(_PORT, minimum=1, maximum=65_535, help="its port")
    url: str | None = setting(
        None,
        help="instead of host and port: redis://, rediss:// with TLS, unix:// for a socket",
        metavar="redis://HOST:PORT/DB",
    )
    username: str | None = setting(None, help="user")
    password: str | None = setting(None, secret=True, help="password")
    tls: bool = setting(False, help="encrypt the connection")
    tls_ca: Path | None = setting(None, help="PEM file of the authority that signed the server")
    tls_cert: Path | None = setting(None, help="PEM file of the client's certificate")
    tls_key: Path | None = setting(None, help="PEM file of the client's key")
    stream: str | None = setting(
        None, help="stream of every event that has neither route nor template"
    )
    stream_routing: dict[str, str] = setting(
        {}, help="streams by payload case", metavar="CASE:STREAM,…"
    )
    key_template: str | None = setting(
        None, help="stream of events without a route; order is kept per stream"
    )
    static_headers: dict[str, str] = setting(
        {}, help="fields that every entry carries", metavar="KEY:VALUE,…"
    )
    max_len: int = setting(
        0,
        minimum=0,
        help="trim streams to about so many entries, read or not; 0 for never",
    )
    max_batch_size: int = setting(
        1_000, minimum=1, maximum=10_000, help="entries in one transaction"
    )

    @property
    def encrypted(self) -> bool:
        return self.tls or (self.url or "").startswith("rediss://")

    @property
    def address(self) -> str:
        scheme = "rediss" if self.encrypted else "redis"
        return self.url or f"{scheme}://{self.host}:{self.port}"

    def routing(self) -> Routing:
        """Streams by route, template or the one stream; the stream is the key."""
        flag = self.flag("static_headers")
        headers = static_headers(self.static_headers, flag)
        if _VALUE in self.static_headers:
            raise ConfigError(flag, _VALUE, "is the field of the envelope itself")
        return self.rules("stream", check=_check_stream, template="key_template", headers=headers)

    def validate(self) -> None:
        """Refuse two addresses, what is no URL, and half of a pair."""
        for name in self.files:
            if getattr(self, name) is not None and not self.encrypted:
                path = str(getattr(self, name))
                raise ConfigError(self.flag(name), path, f"expected {self.flag('tls')} too")
        super().validate()
        # More than one colon make an address of IPv6.
        if not _HOST.fullmatch(self.host) or self.host.count(":") == 1:
            allowed = "expected a host, port and password in flags of their own"
            raise ConfigError(self.flag("host"), self.host, allowed)
        if self.url is not None:
            allowed = "expected redis://host:port/db, the password in a flag of its own"
            if not _URL.fullmatch(self.url):
                raise ConfigError(self.flag("url"), self.url, allowed)
            self.check_port("url", allowed)
            for name, default in (("host", "localhost"), ("port", _PORT)):
                if getattr(self, name) != default:
                    raise ConfigError(
                        self.flag(name), getattr(self, name), f"expected it in {self.flag('url')}"
                    )
            if self.tls and not self.url.startswith("rediss://"):
                raise ConfigError(self.flag("url"), self.url, "expected rediss://, to be encrypted")
        self.both_or_neither("tls_cert", "tls_key")
        self.together("username", "password")

    def warnings(self) -> list[str]:
        """Say that a password goes in clear, and that trimming takes what nobody has read."""
        found = super().warnings()
        if self.password is not None and not self.encrypted and not self.address.startswith("unix"):
            found.append(
                f"{self.flag('password')} goes to {self.address} in clear: use {self.flag('tls')}"
            )
        return found

    def connection(self) -> tuple[str, dict[str, Any]]:
        """Give the kind of connection and its settings, as redis-py names them."""
        settings: dict[str, Any] = {"username": self.username, "password": self.password}
        if self.url is not None and self.url.startswith("unix://"):
            return "UnixDomainSocketConnection", {**settings, "path": urlsplit(self.url).path}
        settings |= {"host": self.host, "port": self.port}
        if self.url is not None:
            parts = urlsplit(self.url)
            settings |= {"host": parts.hostname, "port": parts.port or _PORT}
            settings["db"] = int(parts.path.strip("/") or 0)
        if not self.encrypted:
            return "Connection", settings
        paths = {"ssl_ca_certs": self.tls_ca, "ssl_certfile": self.tls_cert}
        paths["ssl_keyfile"] = self.tls_key
        settings |= {name: str(path) for name, path in paths.items() if path is not None}
        return "SSLConnection", settings


class RedisEventBus(EventBus[RedisConfig]):
    """Adds entries to streams: the envelope as `value`, the headers as fields beside it."""

    name = "redis"
    config_type = RedisConfig
    noun = "stream"

    def __init__(self, config: RedisConfig) -> None:
        super().__init__(config)
        self._connection: Any = None
        self._refusal: type[Exception] = Exception
        self._bulk_bytes = _BULK_BYTES
        self._persistent: bool | None = None
        self._warned = False

    def overhead(self, target: Target) -> int:
        """Count the stream's name and the fields."""
        fields = sum(len(name.encode()) + len(value.encode()) for name, value in target.headers)
        return len(target.destination.encode()) + len(_VALUE) + _EVENT_ID + fields

    @property
    def _is_open(self) -> bool:
        return self._connection is not None

    def _open(self, timeout_s: float) -> None:
        """Connect, and look what kind of server this is."""
        redis = require("redis", extra=_EXTRA)
        connections = require("redis.connection", extra=_EXTRA)
        self._refusal = redis.ResponseError
        kind, settings = self.config.connection()
        self._connection = getattr(connections, kind)(
            **settings,
            protocol=2,
            client_name="tardis-machine",
            socket_connect_timeout=min(timeout_s, _SOCKET_TIMEOUT_S),
            socket_timeout=_SOCKET_TIMEOUT_S,
            retry=require("redis.retry", extra=_EXTRA).Retry(
                require("redis.backoff", extra=_EXTRA).NoBackoff(), 0
            ),
        )
        try:
            self._connection.connect()
            self._look_at_server()
        except (redis.RedisError, OSError) as error:
            raise self._unavailable(_words(error)) from None

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()

    def _address(self) -> str:
        return self.config.address

    def _remarks(self, missing: Iterable[str]) -> Sequence[str]:
        self._try_out()
        return ("no persistence: a restart loses everything",) if self._persistent is False else ()

    def _prepare(self, destinations: Sequence[str]) -> None:
        if self._persistent is False and not self._warned:
            self._warned = True
            _log.warning(
                "redis has no persistence: a restart loses what was delivered",
                extra={"bus": self.name, "server": self.config.address},
            )

    def _heaviest(self, destination: str) -> int:
        return self._bulk_bytes

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        redis = require("redis", extra=_EXTRA)
        places = fates.open()
        if not places:
            return
        try:
            queued, answer = self._transact([records[place] for place in places], deadline)
        except redis.TimeoutError:
            self._close()
            raise self._unavailable("not acknowledged in time") from None
        except (redis.RedisError, OSError) as error:
            self._close()
            raise self._unavailable(_words(error)) from None
        if isinstance(answer, Exception):
            self._settle_refused(records, places, queued, answer, fates)
            return
        for place, reply in zip(places, answer, strict=True):
            if isinstance(reply, Exception):
                fates.fail([place], self._said(reply, records[place]))
            else:
                fates.deliver([place])

    def _settle_refused(
        self,
        records: Sequence[Record],
        places: Sequence[int],
        queued: Sequence[Exception | None],
        answer: Exception,
        fates: Fates,
    ) -> None:
        """Tell of a transaction that was not taken: some records are to blame, or none."""
        blamed = [refusal for refusal in queued if refusal is not None]
        for place, refusal in zip(places, queued, strict=True):
            record = records[place]
            if refusal is not None:
                fates.fail([place], self._said(refusal, record))
            elif blamed:
                reason = "held back: Redis refused others of its transaction"
                fates.fail([place], NotSentError(self.name, reason, destination=record.destination))
            else:
                fates.fail([place], self._said(answer, record))
        # It may have become a replica: the next attempt finds out who is the primary now.
        self._close()

    def _transact(
        self, records: Sequence[Record], deadline: float
    ) -> tuple[list[Exception | None], Any]:
        """Send one transaction; give what was said of each command, and of the whole."""
        connection = self._connection
        pack = connection.pack_command
        bound: tuple[Any, ...] = ()
        if self.config.max_len:
            bound = ("MAXLEN", "~", self.config.max_len)
        packed = [*pack("MULTI")]
        for record in records:
            fields = [part for header in record.headers for part in header]
            packed += pack("XADD", record.destination, *bound, "*", _VALUE, record.value, *fields)
        packed += pack("EXEC")
        self._write(b"".join(packed), deadline)
        begun = self._reply(deadline)
        queued = [self._reply(deadline) for _ in records]
        answer = self._reply(deadline)
        if isinstance(begun, Exception):
            # Without a transaction each command stood for itself, and what got an id is stored.
            self._close()
            return [None] * len(records), queued
        return [reply if isinstance(reply, Exception) else None for reply in queued], answer

    def _write(self, data: bytes, deadline: float) -> None:
        """Send all of it, as long as it moves and there is time."""
        for start in range(0, len(data), _PIECE_BYTES):
            if start and time.monotonic() > deadline:
                raise require("redis", extra=_EXTRA).TimeoutError
            self._connection.send_packed_command([data[start : start + _PIECE_BYTES]])

    def _reply(self, deadline: float) -> Any:
        """Read a reply; a refusal is one like any other."""
        left = max(_SHORTEST_WAIT_S, deadline - time.monotonic())
        try:
            return self._connection.read_response(disable_decoding=True, timeout=left)
        except self._refusal as error:
            return error

    def _look_at_server(self) -> None:
        """Refuse a cluster, wait for a primary, ask for limits and persistence where allowed."""
        about = self._info()
        if about.get("cluster_enabled") == "1":
            raise BusError(self.name, f"{self.config.address} is a cluster: expected one primary")
        if about.get("loading") == "1":
            raise self._unavailable("LOADING: Redis is loading its data")
        if about.get("role") == "slave":
            raise self._unavailable(f"READONLY: {self.config.address} is a replica")
        for command in ("MULTI", "EXEC"):  # a user may have no right to them
            answer = self._say(command)
            if isinstance(answer, Exception):
                raise self._unavailable(_words(answer))
        bulk = self._setting("proto-max-bulk-len")
        self._bulk_bytes = int(bulk) if bulk else _BULK_BYTES
        kept = self._setting("appendonly"), self._setting("save")
        self._persistent = None if None in kept else kept != ("no", "")

    def _try_out(self) -> None:
        """Begin to add an entry to each stream, as far as Redis says what it would refuse.

        What is queued and not executed is forgotten with the connection.
        """
        redis = require("redis", extra=_EXTRA)
        routing = self.config.routing()
        streams = self.destinations()
        try:
            kinds = [self._ask("TYPE", stream) for stream in streams]
            self._say("MULTI")
            answers = [self._say("XADD", stream, "*", _VALUE, "") for stream in streams]
        except (redis.RedisError, OSError) as error:
            raise self._unavailable(_words(error)) from None
        for stream, kind, answer in zip(streams, kinds, answers, strict=True):
            # Nothing goes to the base where there is a template: the command counts, not the key.
            unused = routing.destination is not None and stream not in routing.routes.values()
            if isinstance(answer, Exception) and not (unused and _OF_KEYS in str(answer)):
                raise self._unavailable(_words(answer), stream)
            if kind not in {None, b"none", b"stream"} and not unused:
                raise self._unavailable(f"WRONGTYPE: it is a {kind.decode()}", stream)

    def _info(self) -> dict[str, str]:
        answer = self._ask("INFO")
        lines = b"" if answer is None else answer
        pairs = [line.partition(b":") for line in lines.splitlines()]
        return {name.decode(): value.decode().strip() for name, _, value in pairs if value}

    def _setting(self, name: str) -> str | None:
        answer = self._ask("CONFIG", "GET", name)
        return answer[1].decode() if answer else None

    def _ask(self, *command: str) -> Any:
        """Ask the server about itself; None if this user may not, as on many hosted ones."""
        answer = self._say(*command)
        if isinstance(answer, self._refusal):
            details = {"bus": self.name, "command": " ".join(command), "reason": _words(answer)}
            _log.debug("redis does not say", extra=details)
            return None
        return answer

    def _say(self, *command: str) -> Any:
        """Give the reply to one command; a refusal is one like any other."""
        self._connection.send_command(*command)
        return self._reply(time.monotonic() + _SOCKET_TIMEOUT_S)

    def _said(self, error: Exception, record: Record) -> BusError:
        """Tell whether a refusal passes, and whether it is about one stream or the server."""
        reason = _words(error)
        if reason.startswith(_FINAL):
            return self._rejected(record, reason)
        destination = record.destination if reason.startswith(_OF_STREAM) else None
        return self._unavailable(reason, destination)


def _words(error: Exception) -> str:
    """Give an error as the server said it: the client takes some codes off."""
    code = getattr(error, "status_code", None)
    text = str(error) or type(error).__name__
    return f"{code} {text}" if code and not text.startswith(code) else text


def _check_stream(stream: str, flag: str) -> None:
    if not stream or re.search(r"[\s\x00-\x1f\x7f]", stream):
        raise ConfigError(flag, stream, "expected a name without white space")
