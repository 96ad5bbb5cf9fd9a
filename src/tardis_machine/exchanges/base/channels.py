"""From a raw line to the handlers of its channel, without decoding lines that no type wants.

A `Dispatch` says how an exchange's lines tell their channel; `ChannelHandlers` say what a type
does with a channel. Both are joined once for each channel and remembered: from then on a line
costs a search for a few bytes and a look into a dict before it is decoded.

- `prefixed`: the name follows the same bytes in nearly every line;
- `keyed`: the name is the value of the first key of that name, near the start;
- `arrays`: names stand at the end of an array, or a number at its start stands for them;
- `decoded`: the last resort, where only the decoded message tells.
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
"""Takes one raw message; False: not of interest."""


class SharedDecoder(NamedTuple, Generic[T]):
    """What a type makes of a channel that others may read, too.

    Types that share a channel share its decoder: it is called once, whoever needs the message.
    """

    decode: Callable[[bytes], T]
    map: Callable[[T], bool]


class KernelHandler(NamedTuple):
    """What a type makes of a channel, and the shape of the messages that it mostly has.

    The emitter may take messages of that shape by itself, as far as a memory lets it.
    """

    part: Handler | SharedDecoder[Any]
    shape: AnyShape
    memory: Memory | None = None


ChannelHandlers = Callable[[str], Handler | SharedDecoder[Any] | KernelHandler | None]
"""Tells by a channel's name what a type makes of it; None: nothing."""

Parts = Callable[[str], Sequence[Handler | SharedDecoder[Any] | KernelHandler]]
"""Tells by a channel's name what all types make of it, in the order they were asked for."""


class Dispatch(Protocol):
    """Makes the function that takes every line of an exchange.

    The emitter, if it is given, is told which lines have a described shape.
    """

    def __call__(self, parts: Parts, emitter: Emitter | None = None, /) -> Handler: ...


_MAX_HEADS: Final = 100_000
_WINDOW: Final = 256
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[][{},:]', re.DOTALL)
_decode_any: Final = msgspec.json.Decoder().decode
_decode_text: Final = msgspec.json.Decoder(str).decode


def named(
    parts: Mapping[str, Handler | SharedDecoder[Any] | KernelHandler], separator: str = ""
) -> ChannelHandlers:
    """Route by a channel's name, or by what comes before the first separator in it."""
    if not separator:
        return parts.get
    return lambda name: parts.get(name.partition(separator)[0])


def parts_of(routes: Sequence[ChannelHandlers]) -> Parts:
    """Ask several types about a channel."""
    return lambda name: [part for route in routes if (part := route(name)) is not None]


def _ignore(_: bytes) -> bool:
    return False


def _handler(found: Sequence[Handler | SharedDecoder[Any] | KernelHandler]) -> Handler:
    """Make one function of what several types make of a channel."""
    if not found:
        return _ignore
    parts = _unshaped(found)
    if len(parts) == 1:
        (part,) = parts
        return _alone(part) if isinstance(part, SharedDecoder) else part
    decode, maps = _shared(parts)

    def handle(line: bytes) -> bool:
        message = decode(line)
        handled = False
        for each in maps:
            handled |= each(message)
        return handled

    return handle


def _unshaped(
    found: Sequence[Handler | SharedDecoder[Any] | KernelHandler],
) -> Sequence[Handler | SharedDecoder[Any]]:
    return [each.part if isinstance(each, KernelHandler) else each for each in found]


def _alone(part: SharedDecoder[Any]) -> Handler:
    decode, map_message = part
    return lambda line: map_message(decode(line))


def _shared(
    parts: Sequence[Handler | SharedDecoder[Any]],
) -> tuple[Callable[[bytes], Any], list[Callable[[Any], bool]]]:
    shared = [part for part in parts if isinstance(part, SharedDecoder)]
    if len(shared) != len(parts) or any(part.decode != shared[0].decode for part in shared):
        raise TypeError("types that are made from one channel have to share its decoder")
    return shared[0].decode, [part.map for part in shared]


class _MessagePrefixes(dict[bytes, Handler]):
    """Handlers by the bytes that told them; bounded, since a broken feed may make up channels."""

    __slots__ = ("_emitter", "_parts")

    def __init__(self, parts: Parts, emitter: Emitter | None = None) -> None:
        self._parts = parts
        self._emitter = emitter

    def learn(self, head: bytes, name: str) -> Handler:
        if len(self) >= _MAX_HEADS:
            self.clear()
        parts = self._parts(name)
        if self._emitter is not None and len(parts) == 1 and isinstance(parts[0], KernelHandler):
            self._emitter.describe(head, parts[0].shape, parts[0].memory)
        handler = self[head] = _handler(parts)
        return handler

    def by_name(self, name: str | None, line: bytes) -> bool:
        """Handle a line whose name was found out in another way than usual."""
        if name is None:
            _decode_any(line)  # what is not even JSON is malformed
            return False
        return _handler(self._parts(name))(line)


def prefixed(prefix: bytes, *path: str) -> Dispatch:
    """Find the name behind a constant prefix; other lines are searched for the key at `path`."""
    length = len(prefix)

    def dispatch(parts: Parts, emitter: Emitter | None = None) -> Handler:
        heads = _MessagePrefixes(parts, emitter)
        if emitter is not None:
            emitter.find_prefixed(prefix)
        handler_of = heads.get

        def learn(line: bytes) -> bool:
            end = line.find(b'"', length)
            if end < 0 or b"\\" in line[length:end] or not line.startswith(prefix):
                return heads.by_name(find(line, path), line)
            return heads.learn(line[:end], line[length:end].decode())(line)

        def handle(line: bytes) -> bool:
            try:
                return handler_of(line[: line.find(b'"', length)], learn)(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None

        return handle

    return dispatch


def keyed(*path: str, within: int = _WINDOW) -> Dispatch:
    """Find the name behind the first key that is called as the last of `path` is.

    Lines that do not have it within their first bytes are searched for the key at `path`. Such a
    key cannot be part of a text, in which quotes follow a backslash.
    """
    key = b'"%b":"' % path[-1].encode()
    length = len(key)

    def dispatch(parts: Parts, emitter: Emitter | None = None) -> Handler:
        heads = _MessagePrefixes(parts, emitter)
        if emitter is not None:
            emitter.find_keyed(key, within)
        handler_of = heads.get

        def learn(line: bytes) -> bool:
            start = line.find(key, 0, within) + length
            end = line.find(b'"', start)
            if start < length or end < 0 or b"\\" in line[start - length - 1 : end]:
                return heads.by_name(find(line, path), line)
            return heads.learn(line[start:end], line[start:end].decode())(line)

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
    """Find the `names` texts at the end of an array, joined by spaces, or what its number means.

    `announced` reads lines that are no arrays: which number will stand for which names.
    """
    ending = re.compile(rb'(?:,\s*"(?:[^"\\]|\\.)*"){%d}\s*\]\s*$' % names)

    def dispatch(parts: Parts, emitter: Emitter | None = None) -> Handler:
        heads = _MessagePrefixes(parts, emitter)
        if emitter is not None:
            emitter.find_ending(names)
        handler_of = heads.get
        numbers = _MessagePrefixes(parts)
        number_of = numbers.get

        def announce(line: bytes) -> bool:
            found = None if announced is None else announced(line)
            if found is None:
                return heads.by_name(None, line)
            number, name = found
            numbers.learn(b"[%d" % number, name)
            return False

        def learn(line: bytes) -> bool:
            if line[:1] != b"[":
                return announce(line)
            found = ending.search(line)
            if found is not None:
                return heads.learn(found[0], " ".join(_decode_any(b"[" + found[0][1:])))(line)
            handler = numbers.get(line[: line.find(b",")])
            return heads.by_name(None, line) if handler is None else handler(line)

        def handle(line: bytes) -> bool:
            handler: Handler = learn
            end = line[-2:]
            if end == b'"]':
                start = len(line.rsplit(b',"', names)[0])
                handler = handler_of(line[start:], learn)
            elif end[:1].isdigit():  # no name ends so
                handler = number_of(line[: line.find(b",")], learn)
            try:
                return handler(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None

        return handle

    return dispatch


def decoded(decode: Callable[[bytes], T], name_of: Callable[[T], str | None]) -> Dispatch:
    """Decode each line first, since only the message tells; types give Parts of this decoder."""

    def dispatch(parts: Parts, _: Emitter | None = None) -> Handler:
        maps: dict[str, list[Callable[[T], bool]]] = {}

        def learn(name: str) -> list[Callable[[T], bool]]:
            found = parts(name)
            if len(maps) >= _MAX_HEADS:
                maps.clear()
            its_maps = maps[name] = _shared(_unshaped(found))[1] if found else []
            return its_maps

        def handle(line: bytes) -> bool:
            try:
                message = decode(line)
            except RecursionError:
                raise MapperError("message", "nested too deeply") from None
            name = name_of(message)
            handled = False
            if name is not None:
                its_maps = maps.get(name)
                for each in learn(name) if its_maps is None else its_maps:
                    handled |= each(message)
            return handled

        return handle

    return dispatch


def find(line: bytes, path: Sequence[str]) -> str | None:
    """Give the text at a path of keys without decoding the line; None if there is none.

    What is no JSON may be found to have one all the same: who decodes the line will tell.
    """
    keys = [key.encode() for key in path]
    depth = 0
    inside = 0  # how many keys of the path lead to where we are
    key: bytes | None = None
    after_colon = False
    for found in _TOKEN.finditer(line):
        token = found[0]
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
