"""Runs a mapper file: raw messages of one exchange and the normalized messages they must give."""

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from tardis_machine import exchanges
from tardis_machine.engine import create, parse_all
from tardis_machine.exchanges import catalog
from tardis_machine.messages.numbers import of_float
from tests.support.shapes import handle
from tests.vectors.compute import Outcome

_MADE_FOR_LIVE = "2026-11"
_PYTHON_NUMBER = re.compile(rb"(?<=:)-?\d+(?:\.\d+)?e-0\d(?=[,}])")


class Step(msgspec.Struct, rename="camel"):
    raw: msgspec.Raw
    handled: bool
    out: list[msgspec.Raw]
    local_timestamp: str = ""
    error: str | None = None


class Question(msgspec.Struct):
    symbols: list[str] | None
    filters: Any


class Run(msgspec.Struct, rename="camel"):
    data_type: str
    created: str | None
    steps: list[Step]
    filters: list[Question] = []


def exchange_of(path: Path) -> str | None:
    """Tell a mapper file's exchange by its name, or else by the messages in it."""
    if path.stem in catalog.CHANNELS:
        return path.stem
    try:
        runs = _read(path)
    except msgspec.ValidationError:
        return None
    messages = (message for run in runs for step in run.steps for message in step.out)
    first = next(messages, None)
    return None if first is None else str(msgspec.json.decode(first)["exchange"])


def run(path: Path, exchange: str) -> Iterator[Outcome]:
    """Compare every step and every question about filters, per type."""
    by_type: dict[str, list[str | None]] = {}
    for number, each in enumerate(_read(path)):
        results = by_type.setdefault(each.data_type, [])
        for index, difference in enumerate(_differences(exchange, each)):
            results.append(difference and f"run {number}, {index}: {difference}")
    for data_type, results in by_type.items():
        differences = [result for result in results if result is not None]
        yield Outcome(
            f"{exchange} {data_type}",
            len(results) - len(differences),
            len(results),
            differences[0] if differences else None,
        )


def symbol_of(message: msgspec.Raw) -> str | None:
    """Tell a normalized message's symbol."""
    symbol: str | None = msgspec.json.decode(message).get("symbol")
    return symbol


def _read(path: Path) -> list[Run]:
    return msgspec.json.decode(path.read_bytes(), type=list[Run])


def _differences(name: str, each: Run) -> Iterator[str | None]:
    """Give None for every step and question that passes, and what differs for the others."""
    exchange = exchanges.get(name)
    created = each.created
    created_us = None if created is None else _microseconds(created)
    emitter = create(name, parse_all([each.data_type]))
    live = created is not None and created.startswith(_MADE_FOR_LIVE)
    mapper = exchange.mapper([each.data_type], created_us, emitter, live=live)
    for step in each.steps:
        error = None
        handled = True
        try:
            handled = handle(emitter, mapper, bytes(step.raw), step.local_timestamp)
        except ValueError as e:
            error = e
        given = emitter.take().data.splitlines()
        expected = [_as_javascript(bytes(message)) for message in step.out]
        right = (error is not None) == (step.error is not None) and handled == step.handled
        if right and given == expected:
            yield None
        else:
            yield _difference(step, handled, given, expected, error)
    moment = (1 << 62) if created_us is None or live else created_us
    for question in each.filters:
        answer = exchange.filters([each.data_type], question.symbols, moment, moment)
        given_filters = msgspec.json.decode(msgspec.json.encode(answer))
        if given_filters == question.filters:
            yield None
        else:
            yield f"filters of {question.symbols}: {given_filters}, not {question.filters}"


def _as_javascript(message: bytes) -> bytes:
    """Print the numbers anew that passed through a Python: 4e-05 is 0.00004."""
    return _PYTHON_NUMBER.sub(lambda match: of_float(float(match[0])).encode(), message)


def _difference(
    step: Step,
    handled: bool,
    given: Sequence[bytes],
    expected: Sequence[bytes],
    error: Exception | None,
) -> str:
    return "\n  ".join(
        [
            bytes(step.raw).decode()[:2000],
            f"expected {'an error' if step.error else 'handled' if step.handled else 'ignored'}",
            *(message.decode() for message in expected),
            f"got {f'{error!r}' if error else 'handled' if handled else 'ignored'}",
            *(message.decode() for message in given),
        ]
    )


def _microseconds(iso: str) -> int:
    return round(datetime.fromisoformat(iso).timestamp() * 1000) * 1000
