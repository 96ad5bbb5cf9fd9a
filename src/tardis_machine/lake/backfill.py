"""Days of history into the tables: what is done is written down, and only the rest is done."""

import hashlib
import json
import logging
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.pipeline import Commit, Landed, land
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.tables import MANIFEST, Tables
from tardis_machine.options import ReplayNormalizedOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

log = logging.getLogger(__name__)

_DAY_US: Final = 86_400_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_PYTHON_ERROR: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)$", re.MULTILINE)


class Unit(NamedTuple):
    """What is done or fails as a whole: (part of) a day of one exchange."""

    exchange: str
    start: int
    end: int
    data_types: tuple[str, ...]
    symbols: tuple[str, ...] | None

    @property
    def day(self) -> str:
        """The day, as one writes it."""
        return f"{_moment(self.start):%Y-%m-%d}"

    @property
    def id(self) -> str:
        """The same for the same data asked for again, whenever and by whomever."""
        asked = json.dumps([*self[:3], sorted(self.data_types), self.symbols])
        return hashlib.sha256(asked.encode()).hexdigest()[:32]


class Done(NamedTuple):
    """A line of the manifest."""

    exchange: str
    start: int
    end: int
    data_type: str
    symbols: tuple[str, ...] | None


class Failed(NamedTuple):
    """A unit that could not be done, and why."""

    unit: Unit
    error: str


class Report(NamedTuple):
    """How a backfill went."""

    finished: list[Unit]
    failed: list[Failed]
    events: int
    rejected: int
    seconds: float


class Progress(NamedTuple):
    """How far a backfill is."""

    unit: Unit
    done: int
    total: int
    events: int
    seconds: float

    @property
    def seconds_left(self) -> float:
        """What is left, if it goes on like this."""
        return self.seconds / self.done * (self.total - self.done)


def plan(replays: Iterable[ReplayNormalizedOptions], done: Sequence[Done] = ()) -> list[Unit]:
    """Cut replays into units, without what the manifest has."""
    return [
        missing for replay in replays for unit in _days(replay) for missing in _missing(unit, done)
    ]


def manifest(tables: Tables) -> list[Done]:
    """Read what earlier backfills have finished."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    if not tables.exists(MANIFEST):
        return []
    lines = tables.read(MANIFEST).select(
        "exchange", f.unix_micros("start"), f.unix_micros("end"), "data_type", "symbols"
    )
    return [
        Done(exchange, start, end, data_type, None if symbols is None else tuple(symbols))
        for exchange, start, end, data_type, symbols in lines.collect()
    ]


def run(
    tables: Tables,
    units: Sequence[Unit],
    source: Mapping[str, str],
    *,
    bronze_only: bool = False,
    attempts: int = 3,
    wait_s: float = 2.0,
    report: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Do each unit, several at once; one that fails is tried again, and does not stop the rest.

    `source` are further options of the tardis source, such as `cacheDir`.
    """
    began = time.monotonic()
    tasks = parallelism(tables.spark)
    options = {**source, "concurrentTasks": str(tasks)}
    finished: list[Unit] = []
    failed: list[Failed] = []
    events = rejected = 0
    # A day with books is one task, so as many days at once as there are cores.
    with ThreadPoolExecutor(min(tasks, max(len(units), 1))) as pool:
        running = {
            pool.submit(_attempt, tables, unit, options, bronze_only, attempts, wait_s): unit
            for unit in units
        }
        for future in as_completed(running):
            unit = running[future]
            outcome = future.result()
            if isinstance(outcome, Failed):
                failed.append(outcome)
            else:
                finished.append(unit)
                events += outcome.events
                rejected += outcome.rejected
            done = len(finished) + len(failed)
            report(Progress(unit, done, len(units), events, time.monotonic() - began))
    return Report(finished, failed, events, rejected, time.monotonic() - began)


def records(tables: Tables, unit: Unit, source: Mapping[str, str]) -> "DataFrame":
    """Read a unit's records."""
    reader = (
        tables.spark.read.format("tardis")
        .options(**source)
        .option("as", "records")
        .option("exchange", unit.exchange)
        .option("from", _moment(unit.start).isoformat())
        .option("to", _moment(unit.end).isoformat())
        .option("dataTypes", ",".join(unit.data_types))
        .option("withDisconnectMessages", "true")
        .option("requestId", unit.id)
    )
    if unit.symbols is not None:
        reader = reader.option("symbols", ",".join(unit.symbols))
    return reader.load()


def _attempt(
    tables: Tables,
    unit: Unit,
    source: Mapping[str, str],
    bronze_only: bool,
    attempts: int,
    wait_s: float,
) -> Landed | Failed:
    for attempt in range(1, attempts + 1):
        try:
            landed = land(
                tables,
                records(tables, unit, source),
                Commit(f"backfill/{unit.id}", 0),
                bronze_only=bronze_only,
            )
            _write_down(tables, unit, landed)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other days go on
            reason = _reason(error)
            extra = {"exchange": unit.exchange, "day": unit.day, "attempt": attempt}
            log.warning("day failed", extra={**extra, "error": reason})
            if attempt < attempts:
                time.sleep(wait_s * attempt)
        else:
            return landed
    return Failed(unit, reason)


def _write_down(tables: Tables, unit: Unit, landed: Landed) -> None:
    day = _moment(unit.start)
    lines = [
        (
            unit.exchange,
            day.date(),
            day,
            _moment(unit.end),
            data_type,
            None if unit.symbols is None else list(unit.symbols),
            landed.events,
            unit.id,
            datetime.now(UTC),
        )
        for data_type in unit.data_types
    ]
    rows = tables.spark.createDataFrame(lines, MANIFEST.schema)
    tables.insert_new(rows, MANIFEST, ["{}.unit", "{}.data_type"])


def _days(replay: ReplayNormalizedOptions) -> Iterator[Unit]:
    symbols = None if replay.symbols is None else tuple(sorted(set(replay.symbols)))
    start = replay.from_
    while start < replay.to:
        end = min((start // _DAY_US + 1) * _DAY_US, replay.to)
        yield Unit(replay.exchange, start, end, replay.data_types, symbols)
        start = end


def _missing(unit: Unit, done: Sequence[Done]) -> Iterator[Unit]:
    """Leave out the types and symbols that were done for all of the unit's time."""
    by_symbols: dict[tuple[str, ...] | None, list[str]] = {}
    for data_type in unit.data_types:
        lines = [
            line for line in done if line.exchange == unit.exchange and line.data_type == data_type
        ]
        left: tuple[str, ...] | None
        if unit.symbols is None:
            left = None if not _covered(unit, lines, None) else ()
        else:
            left = tuple(each for each in unit.symbols if not _covered(unit, lines, each))
        by_symbols.setdefault(left, []).append(data_type)
    for symbols, data_types in by_symbols.items():
        # No symbols left is nothing left, unless none were asked for in the first place.
        if symbols is None or symbols or unit.symbols == ():
            yield unit._replace(symbols=symbols, data_types=tuple(data_types))


def _covered(unit: Unit, lines: Iterable[Done], symbol: str | None) -> bool:
    """Tell whether lines cover the unit's time, of all symbols or of this one."""
    spans = sorted(
        (line.start, line.end)
        for line in lines
        if line.symbols is None or (symbol is not None and symbol in line.symbols)
    )
    reached = unit.start
    for start, end in spans:
        if start > reached:
            break
        reached = max(reached, end)
    return reached >= unit.end


def _reason(error: Exception) -> str:
    """Find what went wrong on an executor in what Spark makes of it."""
    named = _PYTHON_ERROR.findall(str(error))
    if not named:
        return str(error).strip().split("\n", 1)[0]
    return ": ".join(named[-1])


def _moment(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)
