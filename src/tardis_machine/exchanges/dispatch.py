"""From a raw line to the function that handles its channel, without decoding what nobody wants."""

from collections.abc import Callable

from tardis_machine.exchanges.errors import MapperError
from tardis_machine.exchanges.exchange import Handler

_MAX_CHANNELS = 100_000


def _unseen(_: bytes) -> bool:
    """Stand for a channel met for the first time."""
    return False


def dispatcher(
    prefix: bytes,
    channel_of: Callable[[bytes], str | None],
    route: Callable[[str], Handler | None],
) -> Handler:
    """Make a handler that calls the one that `route` gives for a message's channel.

    Exchanges print the keys of a message in a fixed order: `prefix` is what comes before the
    channel's name in nearly all of them, and cutting it out costs a tenth of decoding. Other
    lines go through `channel_of`, which decodes.
    """
    length = len(prefix)
    handlers: dict[bytes, Handler | None] = {}

    def read(line: bytes) -> Handler | None:
        channel = channel_of(line)
        return None if channel is None else route(channel)

    def learn(name: bytes) -> Handler | None:
        if len(handlers) >= _MAX_CHANNELS:  # names made up by a broken feed
            handlers.clear()
        handler = handlers[name] = route(name.decode())
        return handler

    def handle(line: bytes) -> bool:
        try:
            end = line.find(b'"', length)
            name = line[length:end]
            if end < 0 or b"\\" in name or not line.startswith(prefix):
                handler = read(line)
            else:
                handler = handlers.get(name, _unseen)
                if handler is _unseen:
                    handler = learn(name)
            return handler is not None and handler(line)
        except RecursionError:
            raise MapperError("message", "nested too deeply") from None

    return handle
