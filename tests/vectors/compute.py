"""Runs a compute file: one input stream, what each computed type makes of it, and their order."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tardis_machine.engine import Emitter, Objects, create, parse_all

_LEVELS = Objects("price", "amount")


class Mixed(msgspec.Struct):
    computables: list[str]
    order: list[str]


class ComputeFile(msgspec.Struct):
    input: list[msgspec.Raw]
    output: dict[str, list[msgspec.Raw]]
    order: list[str]
    mixed: Mixed | None = None


class Outcome(NamedTuple):
    """How one computed type, or one order of types, compares."""

    label: str
    passed: int
    total: int
    difference: str | None


def run(path: Path) -> Iterator[Outcome]:
    """Compare every message of every computed type byte by byte, then the orders."""
    file = msgspec.json.decode(path.read_bytes(), type=ComputeFile)
    for name, expected in file.output.items():
        computed = [line for line in _emitted(file.input, [name]) if _name(line) == name]
        yield _compare(name, [bytes(message) for message in expected], computed)
    computables = [name for name in dict.fromkeys(file.order) if name in file.output]
    yield _compare("order", file.order, _order(file.input, computables))
    if file.mixed is not None:
        yield _compare("mixed", file.mixed.order, _order(file.input, file.mixed.computables))


def _order(messages: Sequence[msgspec.Raw], computables: Sequence[str]) -> list[str]:
    normalized = ["trade", "book_change", "derivative_ticker"]
    return [_name(line) for line in _emitted(messages, [*normalized, *computables])]


def _compare(label: str, expected: Sequence[object], computed: Sequence[object]) -> Outcome:
    difference = None
    passed = 0
    for index, (right, ours) in enumerate(zip_longest(expected, computed)):
        if right == ours:
            passed += 1
        elif difference is None:
            difference = f"{label} [{index}]\n  expected {right!r}\n  got      {ours!r}"
    return Outcome(label, passed, max(len(expected), len(computed)), difference)


def _name(line: bytes) -> str:
    message = msgspec.json.decode(line)
    name: str = message.get("name", message["type"])
    return name


def _emitted(messages: Sequence[msgspec.Raw], data_types: Sequence[str]) -> Iterator[bytes]:
    emitters: dict[str, Emitter] = {}
    for raw in messages:
        message = msgspec.json.decode(raw)
        exchange = message["exchange"]
        if exchange not in emitters:
            emitters[exchange] = create(exchange, parse_all(data_types))
        emitter = emitters[exchange]
        _emit(emitter, message)
        yield from emitter.take().data.splitlines()


def _emit(emitter: Emitter, message: dict[str, Any]) -> None:
    emitter.begin(message["localTimestamp"])
    match message["type"]:
        case "trade":
            emitter.trade(
                message["symbol"],
                message.get("id"),
                message["price"],
                message["amount"],
                message["side"],
                message["timestamp"],
            )
        case "book_change":
            emitter.book_change(
                message["symbol"],
                message["isSnapshot"],
                message["bids"],
                message["asks"],
                message["timestamp"],
                _LEVELS,
            )
        case "derivative_ticker":
            emitter.forget()  # or else one that says nothing new would not be sent
            emitter.derivative_ticker(
                message["symbol"], message["timestamp"], last_price=message.get("lastPrice")
            )
        case "disconnect":
            emitter.disconnect()
            emitter.reset()
        case other:
            raise ValueError(f"a compute file with an unexpected input: {other}")
