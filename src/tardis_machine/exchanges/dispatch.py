"""From a raw line to the function that handles its channel, without decoding what nobody wants."""

from collections.abc import Callable

from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Handler

_MAX_HEADS = 100_000


def _ignore(_: bytes) -> bool:
    return False


def dispatcher(
    prefix: bytes,
    channel_of: Callable[[bytes], str | None],
    route: Callable[[str], Handler | None],
) -> Handler:
    """Make a handler that calls the one that `route` gives for a message's channel.

    Exchanges print the keys of a message in a fixed order: `prefix` is what comes before the
    channel's name in nearly all of them, so that the first bytes of a line, up to the name's end,
    tell its handler. Other lines go through `channel_of`, which decodes.
    """
    length = len(prefix)

    def learn(line: bytes) -> bool:
        end = line.find(b'"', length)
        if end < 0 or b"\\" in line[length:end] or not line.startswith(prefix):
            channel = channel_of(line)
            handler = _ignore if channel is None else route(channel) or _ignore
        else:
            if len(handlers) >= _MAX_HEADS:  # channels made up by a broken feed
                handlers.clear()
            handler = handlers[line[:end]] = route(line[length:end].decode()) or _ignore
        return handler(line)

    handlers: dict[bytes, Handler] = {}
    handler_of = handlers.get

    def handle(line: bytes) -> bool:
        try:
            return handler_of(line[: line.find(b'"', length)], learn)(line)
        except RecursionError:
            raise MapperError("message", "nested too deeply") from None

    return handle
