"""A mapper of an exchange with its emitter, for raw messages of a test."""

from collections.abc import Sequence
from typing import Any

import msgspec

from tardis_machine import exchanges
from tardis_machine.engine import create, parse_all
from tests.support import shapes

LOCAL = "2024-03-01T00:00:00.000001Z"


class Feed:
    """One mapper with its emitter."""

    def __init__(
        self,
        exchange: str,
        types: Sequence[str],
        created: int | None = None,
        live: bool = False,
        checks_ids: bool = False,
    ) -> None:
        self.emitter = create(exchange, parse_all(types))
        self._mapper = exchanges.get(exchange).mapper(
            types, created, self.emitter, live=live, checks_ids=checks_ids
        )

    def ignores(self, raw: object) -> bool:
        """Return whether the mapper ignores a message and emits nothing."""
        return not self.handle(_line(raw)) and self.emitter.take().count == 0

    def handle(self, line: bytes, local: str = LOCAL) -> bool:
        """Map a message; return whether the mapper handled it."""
        return shapes.handle(self.emitter, self._mapper, line, local)

    def lines(self, raw: object, local: str = LOCAL) -> list[str]:
        """Return the emitted messages as text, without type, exchange and local time."""
        assert self.handle(_line(raw), local)
        return [
            line.split('"exchange":', 1)[1].split(",", 1)[1].rsplit(',"localTimestamp"', 1)[0]
            for line in self.emitter.take().data.decode().splitlines()
        ]

    def __call__(self, raw: object, local: str = LOCAL) -> list[dict[str, Any]]:
        """Return the emitted messages without exchange and local time, which are checked."""
        assert self.handle(_line(raw), local)
        messages = [msgspec.json.decode(m) for m in self.emitter.take().data.splitlines()]
        for message in messages:
            assert message.pop("exchange") == self.emitter.exchange
            assert message.pop("localTimestamp") == local
        return messages


def _line(raw: object) -> bytes:
    return raw if isinstance(raw, bytes) else msgspec.json.encode(raw)
