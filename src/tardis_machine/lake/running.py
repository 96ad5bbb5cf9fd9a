"""Units done several at once: each tried again when it fails, reported, and the rest goes on."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.manifest import Counts
from tardis_machine.lake.session import died
from tardis_machine.lake.units import BRONZE, Unit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

_CANCEL_AGAIN_S: Final = 0.5

TRACEBACK: Final = "Traceback (most recent call last):\n"
_CALLED: Final = "An error occurred while calling"


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


Writer = Callable[[Unit], Callable[[], Counts]]
"""Gives what brings a unit where it belongs; asked once, called as often as it is tried."""


def run_lanes(
    spark: "SparkSession",
    lanes: Sequence[Sequence[Unit]],
    writer: Writer,
    *,
    threads: int,
    attempts: int,
    wait_s: float,
    in_order: bool = False,
    report: Callable[[Progress], None] = lambda _: None,
) -> Report:
    """Do the units of each lane one after the other, and so many lanes at once.

    With `in_order` a unit that fails holds back those behind it in its lane. Interrupted, it takes
    back what is queued and ends what is under way.
    """
    began = time.monotonic()
    total = sum(len(lane) for lane in lanes)
    finished: list[Unit] = []
    failed: list[Failed] = []
    events = rejected = 0
    stopping = threading.Event()
    outcomes: SimpleQueue[tuple[Unit, Counts | Failed]] = SimpleQueue()

    def do(lane: Sequence[Unit]) -> None:
        before: Failed | None = None
        for unit in lane:
            outcome: Counts | Failed
            if before is not None and in_order:
                outcome = Failed(unit, f"held back behind {before.unit.day_text}, which failed")
            else:
                outcome = _attempt(writer(unit), attempts, wait_s, stopping, unit)
            if before is None and isinstance(outcome, Failed):
                before = outcome
            outcomes.put((unit, outcome))

    with ThreadPoolExecutor(threads) as pool:
        running = [pool.submit(do, lane) for lane in lanes]
        try:
            for _ in range(total):
                unit, outcome = outcomes.get()
                if isinstance(outcome, Failed):
                    failed.append(outcome)
                else:
                    finished.append(unit)
                    events += _events(outcome)
                    rejected += sum(count.rejected for count in outcome.values())
                done = len(finished) + len(failed)
                report(Progress(unit, done, total, events, time.monotonic() - began))
        except BaseException:
            stopping.set()
            _cancel(spark, running)
            raise
    return Report(finished, failed, events, rejected, time.monotonic() - began)


def _events(counts: Counts) -> int:
    """Count what the first of the unit's layers has, so that none is counted twice."""
    layers = {layer for layer, _ in counts}
    first = BRONZE if BRONZE in layers else min(layers, default=BRONZE)
    return sum(count.events for (layer, _), count in counts.items() if layer == first)


def _attempt(
    write: Callable[[], Counts],
    attempts: int,
    wait_s: float,
    stopping: threading.Event,
    unit: Unit,
) -> Counts | Failed:
    reason = "interrupted"
    for attempt in range(1, attempts + 1):
        if stopping.is_set():
            break
        try:
            return write()
        except Exception as error:  # noqa: BLE001 - whatever it is, the other days go on
            reason = died(error) or reason_of(error)
            if stopping.is_set():
                break
            extra = {"exchange": unit.exchange, "day": unit.day_text, "attempt": attempt}
            log.warning("day failed", extra={**extra, "error": reason})
            if died(error):
                break
            if attempt < attempts:
                stopping.wait(wait_s * attempt)
    return Failed(unit, reason)


def _cancel(spark: "SparkSession", running: Iterable[Future[None]]) -> None:
    """Leave nothing behind when interrupted: neither queued days nor jobs under way."""
    waiting = {future for future in running if not future.cancel()}
    while waiting:
        # Again and again, since a day may be between two of its jobs.
        spark.interruptAll()
        _, waiting = wait(waiting, timeout=_CANCEL_AGAIN_S)


def reason_of(error: Exception) -> str:
    """Find what went wrong on an executor in what Spark makes of it."""
    text = str(error)
    _, traceback, told = text.rpartition(TRACEBACK)
    lines = [line for line in (told if traceback else text).splitlines() if line.strip()]
    raised = [line for line in lines if not line[0].isspace()]
    if traceback and len(raised) > 1 and _CALLED in raised[0]:
        return raised[1].lstrip(": ")
    if traceback and raised:
        name, colon, reason = raised[0].partition(":")
        return f"{name.rpartition('.')[2]}{colon}{reason}"
    said = [line for line in lines if not line.startswith(_CALLED)]
    # One of want of memory says nothing at all.
    return (said or lines or [type(error).__name__])[0].lstrip(": ")
