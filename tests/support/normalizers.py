"""Normalizers of blocks that need no waiting."""

from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import Any

from tardis_machine import exchanges
from tardis_machine.engine import parse_all
from tardis_machine.engine.datatypes import sent
from tardis_machine.replays.normalizer import Normalizer, normalizer_type

START = 1_709_251_200_000_000
"""2024-03-01T00:00Z, in microseconds."""


class ReadyBlocks:
    """Blocks of recorded lines, each of which can be read at once."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks: Iterator[bytes] = iter(blocks)

    def __next__(self) -> bytes:
        return next(self._blocks)

    def pending(self) -> Future[object] | None:
        return None

    def close(self) -> None:
        self._blocks = iter(())


def normalizer(*blocks: bytes, **options: Any) -> Normalizer:
    """Return a normalizer of these blocks, of BitMEX's trades unless the options say otherwise."""
    data_types = parse_all(options.pop("data_types", ["trade"]))
    settings: dict[str, Any] = {
        "data_types": data_types,
        "symbols": None,
        "start": START,
        "sent": sent(data_types),
        "sends_disconnects": True,
        "strict": False,
    }
    exchange = options.pop("exchange", None) or exchanges.get("bitmex")
    given = options.pop("of", None) or ReadyBlocks(blocks)
    return normalizer_type()(exchange, given, **(settings | options))
