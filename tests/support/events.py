"""Real Bronze events for the buses, made from normalized messages."""

import json
import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from tardis_machine.bronze import Context, Encoder, Event, Origin
from tardis_machine.bronze.varints import varint
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.fates import Failure
from tardis_machine.publish.record import Record

CONTEXT = Context(
    source="tests",
    producer_id="host-1",
    origin=Origin.REPLAY,
    ingest_us=1_709_251_200_000_000,
    request_id="r1",
    transport="http",
    route="/replay-normalized",
    meta={"desk": "delta one"},
)
_UNKNOWN_FIELD = varint(15_000 << 3 | 2)
_PATIENCE = 1_000
_START = datetime(2024, 3, 1, tzinfo=UTC)


def lines(count: int, *, start: int = 0, symbols: int = 5, padding: int = 0) -> bytes:
    """Give normalized trades, a different local time each; every fourth is a book change."""
    found = []
    for number in range(start, start + count):
        moment = (_START + timedelta(microseconds=number)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        shared = {
            "symbol": f"S{number % symbols}",
            "exchange": "bitmex",
            "timestamp": moment,
            "localTimestamp": moment,
        }
        if number % 4 == 3:
            level = {"price": 1 + number, "amount": 2}
            change = {"type": "book_change", "isSnapshot": False, "bids": [level], "asks": []}
            found.append(change | shared)
        else:
            trade = {"type": "trade", "id": str(number) + "x" * padding, "price": 1 + number}
            found.append(trade | {"amount": 1.5, "side": "buy"} | shared)
    return b"".join(json.dumps(message).encode() + b"\n" for message in found)


def events(count: int, *, start: int = 0, symbols: int = 5, padding: int = 0) -> list[Event]:
    """Encode such messages; their position is their number."""
    ndjson = lines(count, start=start, symbols=symbols, padding=padding)
    return Encoder(CONTEXT).encode_lines(ndjson, start).events()


def routed(bus: EventBus[Any], made: Sequence[Event]) -> list[Record]:
    """Route events as a bus's configuration says."""
    router = bus.router()
    router.context = CONTEXT
    return router.route(made)


def records(
    bus: EventBus[Any], count: int, *, start: int = 0, symbols: int = 5, padding: int = 0
) -> list[Record]:
    """Make events and route them."""
    return routed(bus, events(count, start=start, symbols=symbols, padding=padding))


def resized(bus: EventBus[Any], record: Record, size: int, *, noise: int | None = None) -> Record:
    """Blow a record up with a field nobody knows: of zeros, or of what no compression shrinks."""
    for digits in range(1, 5):
        count = size - len(record.value) - len(_UNKNOWN_FIELD) - digits
        length = varint(count)
        if len(length) == digits:
            break
    filling = bytes(count) if noise is None else random.Random(noise).randbytes(count)
    value = record.value + _UNKNOWN_FIELD + length + filling
    assert len(value) == size
    event = msgspec.structs.replace(record.event, value=value)
    return Record(event, record.target, bus.weigh(size) + record.target.weight)


def deliver(
    bus: EventBus[Any],
    pending: Sequence[Record],
    *,
    batch: int = 500,
    timeout_s: float = 5,
    pause_s: float = 0.0,
) -> list[Failure]:
    """Do as the publisher does: what failed is sent again, in order, before anything new.

    Gives what the bus will never accept.
    """
    rejected: list[Failure] = []
    left = list(pending)
    fruitless = 0
    while left:
        sent = left[:batch]
        result = bus.send(sent, timeout_s)
        fruitless = 0 if result.delivered or not sent else fruitless + 1
        assert fruitless < _PATIENCE, result.failures[0].error
        assert result.delivered + len(result.failures) == len(sent)
        again = [sent[place] for place, error in result.failures if error.retriable]
        rejected += [failure for failure in result.failures if not failure.error.retriable]
        left = again + left[batch:]
        if again:
            time.sleep(pause_s)
    return rejected
