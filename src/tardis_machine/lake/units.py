"""Units of a backfill: a day of an exchange each, less what earlier backfills have finished."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from tardis_machine.engine import datatypes
from tardis_machine.lake.spans import DAY_US, moment
from tardis_machine.messages import CASES, snapshot_case
from tardis_machine.replays.requests import ReplayNormalizedOptions

BRONZE: Final = "bronze"
SILVER: Final = "silver"
LAYERS: Final = (BRONZE, SILVER)
DISCONNECT: Final = "disconnect"
"""The data type under which disconnects are written down: they concern an exchange as a whole."""


class Unit(NamedTuple):
    """What is done or fails as a whole: a day of one exchange, or the part that was asked for.

    Whatever the part, it is replayed from the day's beginning, as books and bars depend on it.
    """

    exchange: str
    start: int
    end: int
    data_types: tuple[str, ...]
    symbols: tuple[str, ...] | None
    layers: tuple[str, ...] = LAYERS
    disconnects: tuple[tuple[int, int], ...] = ()
    """The times whose disconnects it tells: those that nobody else does."""
    taken: tuple[tuple[int, int], ...] = ()
    """The times whose disconnects Silver takes from Bronze, where others told some of them: what
    they were known by there, they have to be known by here."""
    generation: int = 0

    @property
    def day(self) -> int:
        """The day, counted from 1970."""
        return self.start // DAY_US

    @property
    def day_text(self) -> str:
        """The day, as one writes it."""
        return f"{moment(self.start):%Y-%m-%d}"

    @property
    def start_text(self) -> str:
        """The first minute, as the flags take it."""
        return f"{moment(self.start):%Y-%m-%dT%H:%M}"

    @property
    def end_text(self) -> str:
        """The end, as the flags take it."""
        return f"{moment(self.end):%Y-%m-%dT%H:%M}"

    @property
    def is_whole_day(self) -> bool:
        return self.end - self.start == DAY_US

    @property
    def is_forced(self) -> bool:
        """Whether it takes the place of what is there."""
        return self.generation > 0

    @property
    def id(self) -> str:
        """The same for the same data asked for again, whenever and by whomever."""
        asked = json.dumps([*self[:3], sorted(self.data_types), self.symbols, self.layers])
        return hashlib.sha256(asked.encode()).hexdigest()[:32]

    @property
    def cases(self) -> dict[str, tuple[str, ...]]:
        """The payload cases it has, each with its data types."""
        found: dict[str, tuple[str, ...]] = {}
        for data_type in self.data_types:
            case = case_of(data_type)
            found[case] = (*found.get(case, ()), data_type)
        return found


class Done(NamedTuple):
    """A line of the manifest."""

    exchange: str
    start: int
    end: int
    layer: str
    data_type: str
    symbols: tuple[str, ...] | None
    generation: int = 0


def case_of(data_type: str) -> str:
    """Name the payload case of a data type."""
    parsed = datatypes.parse(data_type)
    if isinstance(parsed, datatypes.BookSnapshots):
        return snapshot_case(parsed.name, grouped=parsed.grouping is not None)
    return CASES[parsed.message_type]


def plan(
    replays: Iterable[ReplayNormalizedOptions],
    done: Sequence[Done] = (),
    *,
    layers: Sequence[str] = LAYERS,
    force: bool = False,
) -> list[Unit]:
    """Cut replays into units, without what the manifest has; with `force`, with all of it."""
    planned: list[Unit] = []
    for replay in replays:
        for unit in _days(replay, tuple(layers)):
            own = [line for line in done if line.exchange == unit.exchange]
            if force:
                past = [line.generation for line in own if line.start // DAY_US == unit.day]
                planned.append(unit._replace(generation=max(past, default=0) + 1))
            else:
                planned += _missing(unit, own)
    return [_telling(unit, planned[:number], done) for number, unit in enumerate(planned)]


def _days(replay: ReplayNormalizedOptions, layers: tuple[str, ...]) -> Iterator[Unit]:
    symbols = None if replay.symbols is None else tuple(sorted(set(replay.symbols)))
    start = replay.from_
    while start < replay.to:
        end = min((start // DAY_US + 1) * DAY_US, replay.to)
        yield Unit(replay.exchange, start, end, replay.data_types, symbols, layers)
        start = end


def _missing(unit: Unit, done: Sequence[Done]) -> Iterator[Unit]:
    """Leave out the times, layers, types and symbols that are there."""
    layers: dict[tuple[int, int, str, str | None], list[str]] = {}
    for layer in unit.layers:
        for data_type in unit.data_types:
            lines = [line for line in done if line.layer == layer and line.data_type == data_type]
            for symbol in (None,) if unit.symbols is None else unit.symbols:
                for start, end in _gaps(unit, lines, symbol):
                    layers.setdefault((start, end, data_type, symbol), []).append(layer)
    symbols: dict[tuple[int, int, tuple[str, ...], str], list[str | None]] = {}
    for (start, end, data_type, symbol), wanted in layers.items():
        symbols.setdefault((start, end, tuple(wanted), data_type), []).append(symbol)
    types: dict[tuple[int, int, tuple[str, ...], tuple[str | None, ...]], list[str]] = {}
    for (start, end, wanted_layers, data_type), several in symbols.items():
        types.setdefault((start, end, wanted_layers, tuple(several)), []).append(data_type)
    for (start, end, wanted_layers, names), data_types in types.items():
        listed = tuple(name for name in names if name is not None)
        yield unit._replace(
            start=start,
            end=end,
            layers=wanted_layers,
            data_types=tuple(data_types),
            symbols=None if None in names else listed,
        )


def _gaps(unit: Unit, lines: Iterable[Done], symbol: str | None) -> Iterator[tuple[int, int]]:
    """Give the times that no line covers, of all symbols or of this one."""
    reached = unit.start
    for start, end in sorted(
        (line.start, line.end)
        for line in lines
        if line.symbols is None or (symbol is not None and symbol in line.symbols)
    ):
        if end <= reached or start >= unit.end:
            continue
        if start > reached:
            yield reached, start
        reached = max(reached, end)
    if reached < unit.end:
        yield reached, unit.end


def _telling(unit: Unit, before: Sequence[Unit], done: Sequence[Done]) -> Unit:
    """Say of which times a unit tells an exchange's disconnects: each is seen by all."""
    untold = [_untold(unit, layer, before, done) for layer in unit.layers]
    if unit.layers == LAYERS and untold[0] != untold[1]:
        return unit._replace(disconnects=untold[0], taken=untold[1])
    if unit.layers == (SILVER,):
        return unit._replace(taken=untold[0])
    return unit._replace(disconnects=untold[0])


def _untold(
    unit: Unit, layer: str, before: Sequence[Unit], done: Sequence[Done]
) -> tuple[tuple[int, int], ...]:
    """Give the times of which nobody else tells a layer."""
    same = [each for each in before if each.exchange == unit.exchange and layer in each.layers]
    told = [Done(*each[:3], layer, DISCONNECT, None) for each in same]
    if not unit.is_forced:
        told += [
            line
            for line in done
            if line.exchange == unit.exchange
            and line.data_type == DISCONNECT
            and line.layer == layer
        ]
    return tuple(_gaps(unit, told, None))
