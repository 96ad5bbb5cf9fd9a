"""Event ids: the same message has the same id, whoever encodes it."""

from xxhash import xxh3_128_hexdigest


def identity(exchange: str, symbol: str, payload_case: str, name: str) -> bytes:
    """Write what the ids of one series have in common, each with its length before it.

    Without the lengths, names that contain the separator could be taken for others.
    """
    parts = (part.encode() for part in (exchange, symbol, payload_case, name))
    return b"".join(b"%d:%b," % (len(part), part) for part in parts)


class EventIds:
    """The ids of one batch: 128-bit XXH3 in 32 lower-case hex characters.

    What goes in: exchange, symbol, payload case and name (of computed types), the local time in
    microseconds, for computed messages (bars, snapshots, quotes) their content, and the ordinal
    among the response's messages that are equal in all of these.

    Why: all of it belongs to the message itself, so that any replay that contains the message,
    whatever else it asked for, gives it the same id, and writing twice can be found out and undone.
    Two equal messages of the same microsecond are two events, hence the ordinal. The content of a
    computed message depends on where the replay began (a bar begun in its middle is another bar),
    hence the content. Source, producer, origin, request, session and ingest time say how a message
    came here, not which it is: they are never part of it. Nor is the position, which changes with
    what else was asked for.

    Ordinals count within a batch. That is enough, since a batch never ends inside one local time.
    """

    __slots__ = ("_ordinals", "_seen")

    def __init__(self) -> None:
        self._seen: set[bytes] = set()
        self._ordinals: dict[bytes, int] = {}

    def next(self, key: bytes) -> str:
        """Give the id of the next message whose identity, local time and content are `key`."""
        seen = self._seen
        if key not in seen:
            seen.add(key)
            return xxh3_128_hexdigest(key)
        ordinal = self._ordinals[key] = self._ordinals.get(key, 0) + 1
        return xxh3_128_hexdigest(b"%b#%d" % (key, ordinal))
