"""Dispatch of raw lines to the handlers of their channels, without decoding unwanted lines.

A `Dispatch` finds the channel's name in an exchange's lines. `ChannelHandlers` return the handler
of one data type for a channel. The first line of a channel stores its handler under the bytes that
contain the name: every further line costs a search for these bytes and a dictionary lookup.

- `prefixed`: the name follows the same bytes in nearly every line.
- `keyed`: the name is the value of a key near the start.
- `arrays`: the name is at the end of an array, or a number at its start stands for it.
- `decoded`: the name is known only after decoding. This is the slowest.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from tardis_machine.engine import Emitter
from tardis_machine.engine.shapes import AnyShape, Memory
from tardis_machine.exchanges.base.errors import MapperError

T = TypeVar("T")

Handler = Callable[[bytes], bool]
"""A function that maps one raw message and returns whether the message had data for its type.

`Dispatch` handlers call it for each line, in the stream's thread. An exception of it is a malformed
message, which is counted or ends the replay.
"""


class SharedDecoder(NamedTuple, Generic[T]):
    """The handler of a channel that several data types read: one decoder, a `map` for each type.

    All types of the channel must have the same decoder. It is called once for each line.
    """

    decode: Callable[[bytes], T]
    map: Callable[[T], bool]


class KernelHandler(NamedTuple):
    """A handler with the shape of the channel's usual messages.

    The compiled emitter reads messages of that shape without the handler, if `memory` lets them
    pass.
    """

    handler: Handler | SharedDecoder[Any]
    shape: AnyShape
    memory: Memory | None = None


AnyHandler = Handler | SharedDecoder[Any] | KernelHandler

ChannelHandlers = Callable[[str], AnyHandler | None]
"""A function from a channel's name to the handler of one data type; None if it has none."""

AllHandlers = Callable[[str], Sequence[AnyHandler]]
"""A function from a channel's name to the handlers of all data types, in the requested order."""


class Dispatch(Protocol):
    """A function that returns the handler of every line of an exchange.

    `Exchange.mapper` calls it. With an emitter, it also describes the shapes of kernel handlers to
    the emitter.
    """

    def __call__(self, handlers: AllHandlers, emitter: Emitter | None = None, /) -> Handler: ...


_MAX_PREFIXES: Final = 100_000
_WINDOW: Final = 256
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{},:]', re.DOTALL)
_decode_any: Final = msgspec.json.Decoder().decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def named(handlers: Mapping[str, AnyHandler], separator: str = "") -> ChannelHandlers:
    """Return handlers by channel name, or by the part of it before the first separator."""
    if not separator:
        return handlers.get
    return lambda name: handlers.get(name.partition(separator)[0])


def all_handlers(types: Sequence[ChannelHandlers]) -> AllHandlers:
    """Return a function that collects the handlers of several data types for a channel."""
    return lambda name: [
        handler for handler_of in types if (handler := handler_of(name)) is not None
    ]


def _ignore(_: bytes) -> bool:
    return False


def _joined_handler(handlers: Sequence[AnyHandler]) -> Handler:
    """Return one handler that calls the handlers of several data types for a line."""
    if not handlers:
        return _ignore
    plain = _without_shapes(handlers)
    if len(plain) == 1:
        (handler,) = plain
        return _single_handler(handler) if isinstance(handler, SharedDecoder) else handler
    decode, maps = _shared(plain)

    def handle(line: bytes) -> bool:
        message = decode(line)
        handled = False
        for map_message in maps:
            handled |= map_message(message)
        return handled

    return handle


def _without_shapes(
    handlers: Sequence[AnyHandler],
) -> Sequence[Handler | SharedDecoder[Any]]:
    return [item.handler if isinstance(item, KernelHandler) else item for item in handlers]


def _single_handler(shared: SharedDecoder[Any]) -> Handler:
    decode, map_message = shared
    return lambda line: map_message(decode(line))


def _shared(
    handlers: Sequence[Handler | SharedDecoder[Any]],
) -> tuple[Callable[[bytes], Any], list[Callable[[Any], bool]]]:
    shared = [handler for handler in handlers if isinstance(handler, SharedDecoder)]
    decode = shared[0].decode if shared else None
    if len(shared) != len(handlers) or any(handler.decode != decode for handler in shared):
        raise TypeError("types that are made from one channel have to share its decoder")
    return shared[0].decode, [handler.map for handler in shared]


class _MessagePrefixes(dict[bytes, Handler]):
    """Handlers by the bytes of a line that contain the channel's name.

    They are the line's beginning or, in `arrays`, its end. The dictionary is bounded, since a
    broken feed may send any number of names.
    """

    __slots__ = ("_emitter", "_handlers")

    def __init__(self, handlers: AllHandlers, emitter: Emitter | None = None) -> None:
        self._handlers = handlers
        self._emitter = emitter

    def add(self, prefix: bytes, name: str) -> Handler:
        """Store and return the handler for lines with these bytes, which contain this name."""
        if len(self) >= _MAX_PREFIXES:
            self.clear()
        handlers = self._handlers(name)
        if self._emitter is not None and len(handlers) == 1:
            (kernel_handler,) = handlers
            if isinstance(kernel_handler, KernelHandler):
                self._emitter.describe(prefix, kernel_handler.shape, kernel_handler.memory)
        handler = self[prefix] = _joined_handler(handlers)
        return handler

    def by_name(self, name: str | None, line: bytes) -> bool:
        """Handle a line whose channel `find` looked up; raise if it has no name and is no JSON."""
        if name is None:
            _decode_any(line)
            return False
        return _joined_handler(self._handlers(name))(line)


def prefixed(prefix: bytes, *path: str) -> Dispatch:
    """Return a dispatch by the name after a constant prefix, or at `path` in other lines."""
    length = len(prefix)

    def dispatch(handlers: AllHandlers, emitter: Emitter | None = None) -> Handler:
        prefixes = _MessagePrefixes(handlers, emitter)
        if emitter is not None:
            emitter.find_prefixed(prefix)
        handler_of = prefixes.get

        def learn(line: bytes) -> bool:
            end = line.find(b'"', length)
            if end < 0 or b"\\" in line[length:end] or not line.startswith(prefix):
                return prefixes.by_name(find(line, path), line)
            return prefixes.add(line[:end], line[length:end].decode())(line)

        def handle(line: bytes) -> bool:
            try:
                return handler_of(line[: line.find(b'"', length)], learn)(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None

        return handle

    return dispatch


def keyed(*path: str, within: int = _WINDOW) -> Dispatch:
    """Return a dispatch by the value of the first key named like the last of `path`.

    The key is searched for in the first `within` bytes; lines without it there are parsed for the
    key at `path`. A match cannot be inside of a JSON text, where quotes are escaped.
    """
    key = b'"%b":"' % path[-1].encode()
    length = len(key)

    def dispatch(handlers: AllHandlers, emitter: Emitter | None = None) -> Handler:
        prefixes = _MessagePrefixes(handlers, emitter)
        if emitter is not None:
            emitter.find_keyed(key, within)
        handler_of = prefixes.get

        def learn(line: bytes) -> bool:
            start = line.find(key, 0, within) + length
            end = line.find(b'"', start)
            if start < length or end < 0 or b"\\" in line[start - length - 1 : end]:
                return prefixes.by_name(find(line, path), line)
            return prefixes.add(line[start:end], line[start:end].decode())(line)

        def handle(line: bytes) -> bool:
            start = line.find(key, 0, within) + length
            try:
                return handler_of(line[start : line.find(b'"', start)], learn)(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None

        return handle

    return dispatch


def arrays(
    names: int, announced: Callable[[bytes], tuple[int, str] | None] | None = None
) -> Dispatch:
    """Return a dispatch by the last `names` texts of an array, or by its first number.

    The channel's name is these texts joined by spaces. `announced` is called with lines that are
    no arrays: it returns a number and the name that the number stands for, or None.
    """
    ending = re.compile(rb'(?:,\s*"(?:[^"\\]|\\.)*"){%d}\s*\]\s*$' % names)

    def dispatch(handlers: AllHandlers, emitter: Emitter | None = None) -> Handler:
        prefixes = _MessagePrefixes(handlers, emitter)
        if emitter is not None:
            emitter.find_ending(names)
        handler_of = prefixes.get
        numbers = _MessagePrefixes(handlers)
        number_of = numbers.get

        def announce(line: bytes) -> bool:
            announcement = None if announced is None else announced(line)
            if announcement is None:
                return prefixes.by_name(None, line)
            number, name = announcement
            numbers.add(b"[%d" % number, name)
            return False

        def learn(line: bytes) -> bool:
            if line[:1] != b"[":
                return announce(line)
            match = ending.search(line)
            if match is not None:
                return prefixes.add(match[0], " ".join(_decode_any(b"[" + match[0][1:])))(line)
            handler = numbers.get(line[: line.find(b",")])
            return prefixes.by_name(None, line) if handler is None else handler(line)

        def handle(line: bytes) -> bool:
            handler: Handler = learn
            end = line[-2:]
            if end == b'"]':
                start = len(line.rsplit(b',"', names)[0])
                handler = handler_of(line[start:], learn)
            elif end[:1].isdigit():  # the array ends with a number, so it has no names
                handler = number_of(line[: line.find(b",")], learn)
            try:
                return handler(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None

        return handle

    return dispatch


def decoded(decode: Callable[[bytes], T], name_of: Callable[[T], str | None]) -> Dispatch:
    """Return a dispatch that decodes each line and calls `name_of` for its channel.

    All handlers must be `SharedDecoder`s of this decoder.
    """

    def dispatch(handlers: AllHandlers, _: Emitter | None = None) -> Handler:
        maps: dict[str, list[Callable[[T], bool]]] = {}

        def learn(name: str) -> list[Callable[[T], bool]]:
            of_name = handlers(name)
            if len(maps) >= _MAX_PREFIXES:
                maps.clear()
            maps_of_name = maps[name] = _shared(_without_shapes(of_name))[1] if of_name else []
            return maps_of_name

        def handle(line: bytes) -> bool:
            try:
                message = decode(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None
            name = name_of(message)
            handled = False
            if name is not None:
                maps_of_name = maps.get(name)
                for map_message in learn(name) if maps_of_name is None else maps_of_name:
                    handled |= map_message(message)
            return handled

        return handle

    return dispatch


def find(line: bytes, path: Sequence[str]) -> str | None:
    """Return the text at a path of keys without decoding the line; None if there is none.

    It may return a text for a line that is no valid JSON: the decoder of the handler raises then.
    """
    keys = [key.encode() for key in path]
    depth = 0
    inside = 0  # number of the path's keys that contain the current token
    key: bytes | None = None
    after_colon = False
    for match in _TOKEN.finditer(line):
        token = match[0]
        if token in b"{[":
            depth += 1
            if token == b"{" and after_colon and depth == inside + 2 and key == keys[inside]:
                inside += 1
                if inside == len(keys):
                    return None
            after_colon = False
        elif token in b"}]":
            depth -= 1
            if depth < inside + 1:
                return None
            after_colon = False
        elif token == b":":
            after_colon = True
        elif token == b",":
            after_colon = False
        elif not after_colon:
            key = token[1:-1] if depth == inside + 1 else None
        else:
            if depth == inside + 1 == len(keys) and key == keys[inside]:
                return _decode_text(token)
            after_colon = False
    return None
