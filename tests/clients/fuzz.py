"""Requests that nobody would send, and what every one of them must get."""

import json
import socket
import struct
from typing import Any, Final
from urllib.parse import quote

from hypothesis import strategies as st

from tardis_machine.exchanges import catalog

_WAIT_S: Final = 60.0
_ENOUGH_BYTES: Final = 200_000
_KEY: Final = "dGhlIHNhbXBsZSBub25jZQ=="

ANSWERS: Final = frozenset({200, 400, 403, 404, 426, 431, 503})
"""Whatever is asked for, the server knows what to say to it."""

_BASE: Final[dict[str, Any]] = {
    "exchange": "bitmex",
    "from": "2024-03-01",
    "to": "2024-03-01T00:01",
    "dataTypes": ["trade"],
}

GOOD: Final = f"/ws-replay-normalized?options={quote(json.dumps(_BASE))}"

_texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(["", "\x00", "\ud800", "x" * 5000, "9" * 5000, "ünï", "null", "../..", "%"]),
)
_numbers = st.one_of(st.integers(), st.floats(), st.sampled_from([10**400, -0.0, 1e308]))
_values = st.recursive(
    st.one_of(st.none(), st.booleans(), _numbers, _texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)
_amounts = st.one_of(
    st.integers(-5, 10**7).map(str),
    st.floats().map(str),
    st.sampled_from(["", "0", "1e5", "9" * 400, "0x10", "١", "1_0", "+1", " 1", "1e-400", "0.1"]),
)
_types = st.one_of(
    st.sampled_from(["trade", "book_change", "derivative_ticker", "quote", "liquidation"]),
    st.builds("trade_bar_{}{}".format, _amounts, st.sampled_from(["ms", "s", "m", "ticks", "vol"])),
    st.builds(
        "book_snapshot_{}_{}{}".format, _amounts, _amounts, st.sampled_from(["ms", "s", "m"])
    ),
    st.builds("book_snapshot_{}_grouped{}_{}s".format, _amounts, _amounts, _amounts),
    st.builds("quote_{}{}".format, _amounts, st.sampled_from(["ms", "s", "m", ""])),
    _texts,
)
_times = st.one_of(
    st.datetimes().map(lambda moment: moment.isoformat()),
    st.sampled_from(
        [
            *("2024-03-01", "2024-03-01T00:02", "2024-03-01T00:00:30.123456789Z"),
            *("2024-03-01T00:01+00:00", "2024-02-30", "2024-03-01T24:00", "0001-01-01"),
            *("1969-12-31T23:59", "9999-12-31T23:59:59Z", "2024-03-01T00:00+99:99", "2024"),
            *("9999-12-31T23:59:59-23:59", "٢٠٢٤-03-01", "2024-03-01T00:00:60"),
        ]
    ),
    _values,
)
_changes = st.fixed_dictionaries(
    {},
    optional={
        "exchange": st.one_of(st.sampled_from(sorted(catalog.CHANNELS)), _values),
        "from": _times,
        "to": _times,
        "dataTypes": st.one_of(st.lists(_types, max_size=6), _values),
        "symbols": st.one_of(st.lists(_texts, max_size=4), _values),
        "filters": st.one_of(
            st.lists(
                st.fixed_dictionaries(
                    {"channel": st.one_of(st.sampled_from(["trade", "quote"]), _values)},
                    optional={"symbols": st.one_of(st.lists(_texts, max_size=3), _values)},
                ),
                max_size=4,
            ),
            _values,
        ),
        "withDisconnectMessages": _values,
        "withDisconnects": _values,
        "publish": _values,
        "speed": st.one_of(st.floats(0.001, 1e6), _values),
        "timeoutIntervalMS": _values,
    },
)
_asked = _changes.map(lambda changes: _BASE | changes)
_objects = st.one_of(_asked, st.lists(_asked, max_size=5), _values)


@st.composite
def _mangled(draw: st.DrawFn) -> str:
    """Options as text, some of it cut out or put in."""
    text = json.dumps(draw(_objects))
    at, length = draw(st.integers(0, len(text))), draw(st.integers(0, 5))
    return text[:at] + draw(st.text(max_size=5)) + text[at + length :]


options = st.one_of(
    _objects.map(json.dumps),
    _mangled(),
    _texts,
    st.sampled_from(["[" * 3000, '{"a":' * 2000, "[{}" + ",{}" * 3000 + "]", "{}", "[]"]),
)
queries = options.map(
    lambda text: f"?options={quote(text.encode(errors='surrogatepass'))}"[:25_000]
)
paths = st.one_of(
    st.sampled_from(["/replay", "/replay-normalized", "/ws-replay-normalized"]),
    st.sampled_from(["/replay", "/replay-normalized", "/ws-replay-normalized"]),
    st.sampled_from(
        [
            *("/ws-replay", "/ws-stream-normalized", "/health-check", "/metrics", "/", "//"),
            *("/replay/", "*", "/REPLAY", "/ws-Replay-Normalized/"),
        ]
    ),
    st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=20).map(
        lambda text: f"/{text}"
    ),
)
# Anything but what ends a header line: what follows would be another request.
_raw = st.binary(max_size=60).map(lambda data: data.translate(None, b"\r\n"))
_token = st.from_regex(rb"[A-Za-z-]{1,20}", fullmatch=True)
_printable = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=60).map(
    str.encode
)
_names = st.sampled_from(
    [
        *(b"Host", b"Origin", b"Connection", b"Upgrade", b"Authorization", b"Accept", b"Range"),
        *(b"Sec-WebSocket-Key", b"Sec-WebSocket-Version", b"Sec-Fetch-Site", b"Expect", b"Cookie"),
        *(b"Sec-WebSocket-Extensions", b"Sec-WebSocket-Protocol", b"Content-Length"),
        *(b"Transfer-Encoding", b"Access-Control-Request-Method"),
    ]
)
_known_values = st.sampled_from(
    [
        *(b"localhost", b"http://[::1", b"null", b"websocket", b"Upgrade", b"chunked", b"13", b"0"),
        *(b"-1", b"100-continue", b"x" * 21_000, b"permessage-deflate", b"cross-site"),
    ]
)
_addresses = st.sampled_from(
    [
        *(b"http://[::1", b"[::1", b"http://localhost:many", b"localhost:999999", b"http://", b""),
        *(
            b"http://localhost",
            b"//",
            b"null",
            b"\xff",
            b"http://a\xffb",
            b"[v1.x]",
            b"localhost:-1",
        ),
    ]
)
_polite = st.one_of(
    st.tuples(st.sampled_from([b"Host", b"Origin"]), _addresses),
    st.tuples(_names | _token, _printable | _known_values),
)
_rude = st.tuples(_names | _raw, _raw | _known_values)
_fields = st.lists(_polite, max_size=4) | st.lists(_polite | _rude, max_size=4)
headers = _fields.map(
    lambda fields: (
        fields if any(name == b"Host" for name, _ in fields) else [(b"Host", b"localhost"), *fields]
    )
)
methods = st.one_of(
    st.just(b"GET"),
    st.just(b"GET"),
    st.sampled_from([b"POST", b"HEAD", b"OPTIONS", b"CONNECT", b"get"]),
    st.binary(min_size=1, max_size=8).map(lambda data: data.translate(None, b"\r\n ") or b"X"),
)
versions = st.sampled_from([b"HTTP/1.1"] * 9 + [b"HTTP/1.0", b"HTTP/2.0", b"HTTP/9", b"FTP/1.1"])


@st.composite
def _frame(draw: st.DrawFn) -> bytes:
    """A frame of any kind, its length perhaps a lie, its mask perhaps missing."""
    payload = draw(st.one_of(st.binary(max_size=200), st.just(b"x" * 70_000)))
    first = draw(st.one_of(st.sampled_from([0x81, 0x82, 0x89, 0x8A, 0x88, 0x01, 0x80]), _byte))
    length = draw(st.one_of(st.just(len(payload)), st.integers(0, 2**64 - 1), st.just(600 * 1024)))
    masked = draw(st.sampled_from([0x80, 0x80, 0x80, 0]))
    if length < 126:
        header = bytes((first, masked | length))
    elif length < 1 << 16:
        header = struct.pack("!BBH", first, masked | 126, length)
    else:
        header = struct.pack("!BBQ", first, masked | 127, length)
    return header + (b"\0\0\0\0" if masked else b"") + payload


_byte = st.integers(0, 255)
frames = st.lists(_frame(), max_size=6).map(b"".join)


def http(port: int, method: bytes, target: str, version: bytes, fields: Any) -> int | None:
    """Send a request as it is; give the status of its answer, None if it was only hung up on."""
    lines = [b"%b %b %b" % (method, target.encode(errors="surrogatepass"), version)]
    lines += [b"%b: %b" % field for field in fields]
    with _connection(port) as connection:
        return status(_exchange(connection, b"\r\n".join(lines) + b"\r\n\r\n"))


def websocket(port: int, target: str, sent: bytes) -> bytes:
    """Shake hands, send frames and a close; give everything that comes back, at most some KB."""
    request = (
        f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {_KEY}\r\n\r\n"
    ).encode(errors="surrogatepass")
    close = b"\x88\x82\0\0\0\0\x03\xe8"
    with _connection(port) as connection:
        return _exchange(connection, request + sent + close)


def _connection(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=_WAIT_S)


def _exchange(connection: socket.socket, sent: bytes) -> bytes:
    received = b""
    try:
        connection.sendall(sent)
        while len(received) < _ENOUGH_BYTES and not _is_whole(received):
            piece = connection.recv(1 << 16)
            if not piece:
                break
            received += piece
    except ConnectionError:  # it has hung up on the rest of what was sent
        pass
    return received


def _is_whole(received: bytes) -> bool:
    """Whether an answer has its head, whose body does not matter here, or its close frame."""
    head, end, rest = received.partition(b"\r\n\r\n")
    return bool(end) and (not head.startswith(b"HTTP/1.1 101 ") or closes(rest))


def closes(received: bytes) -> bool:
    """Walk from frame to frame of a server: the last one says goodbye."""
    while len(received) >= 2:
        if received[0] == 0x88:
            return True
        length, header = received[1], 2
        if length == 126:
            length, header = int.from_bytes(received[2:4], "big"), 4
        elif length == 127:
            length, header = int.from_bytes(received[2:10], "big"), 10
        received = received[header + length :]
    return False


def status(received: bytes) -> int | None:
    return int(received.split(b" ", 2)[1]) if received.startswith(b"HTTP/") else None
