"""What is left to do of a backfill."""

import itertools
import random

from tardis_machine.lake import verify
from tardis_machine.lake.gold.report import Span, missing
from tardis_machine.lake.units import BRONZE, DISCONNECT, LAYERS, SILVER, Done, Unit, plan
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.lake.days import DAY_US, MINUTE_US, START_US


def replay(
    *data_types: str,
    symbols: tuple[str, ...] | None = None,
    start: int = START_US,
    end: int = START_US + DAY_US,
) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange="bitmex", from_=start, to=end, data_types=data_types, symbols=symbols
    )


def lines(
    data_type: str,
    symbols: tuple[str, ...] | None = None,
    part: float = 1,
    layers: tuple[str, ...] = LAYERS,
) -> list[Done]:
    end = START_US + int(DAY_US * part)
    return [Done("bitmex", START_US, end, layer, data_type, symbols) for layer in layers]


def test_days_are_units() -> None:
    units = plan([replay("trade", end=START_US + DAY_US + MINUTE_US)])
    assert [(unit.day_text, unit.end - unit.start) for unit in units] == [
        ("2024-03-01", DAY_US),
        ("2024-03-02", MINUTE_US),
    ]


def test_the_same_request_has_the_same_id() -> None:
    [first] = plan([replay("trade", "quote", symbols=("A", "B"))])
    [second] = plan([replay("quote", "trade", symbols=("B", "A", "A"))])
    assert first.id == second.id
    [third] = plan([replay("trade", symbols=("A",))])
    assert third.id != first.id


def test_only_types_and_symbols_that_are_missing_are_planned() -> None:
    def left(*done: Done, symbols: tuple[str, ...] | None = ("A", "B")) -> list[Unit]:
        return plan([replay("trade", "quote", symbols=symbols)], done)

    assert left(*lines("trade", ("A", "B")), *lines("quote", ("B", "A", "C"))) == []
    assert left(*lines("trade"), *lines("quote")) == []
    [unit] = left(*lines("trade", ("A", "B")))
    assert (unit.data_types, unit.symbols) == (("quote",), ("A", "B"))
    missing = {unit.data_types: unit.symbols for unit in left(*lines("trade", ("A",)))}
    assert missing == {("trade",): ("B",), ("quote",): ("A", "B")}
    # Some symbols are not all.
    assert len(left(*lines("trade", ("A", "B")), *lines("quote"), symbols=None)) == 1


def test_only_times_that_are_missing_are_planned() -> None:
    [unit] = plan([replay("trade")], lines("trade", part=0.5))
    assert (unit.start, unit.end) == (START_US + DAY_US // 2, START_US + DAY_US)
    middle = [
        Done("bitmex", START_US + MINUTE_US, START_US + 2 * MINUTE_US, layer, "trade", None)
        for layer in LAYERS
    ]
    units = plan([replay("trade", end=START_US + 3 * MINUTE_US)], middle)
    assert [(unit.start, unit.end) for unit in units] == [
        (START_US, START_US + MINUTE_US),
        (START_US + 2 * MINUTE_US, START_US + 3 * MINUTE_US),
    ]


def test_a_range_done_in_random_pieces_leaves_nothing() -> None:
    chance = random.Random(3)
    done: list[Done] = []
    borders = [0, *sorted(chance.sample(range(1, 1440), 20)), 1440]
    pieces = list(itertools.pairwise(borders))
    chance.shuffle(pieces)
    for first, last in pieces:
        asked = replay("trade", start=START_US + first * MINUTE_US, end=START_US + last * MINUTE_US)
        for unit in plan([asked], done):
            assert (unit.start, unit.end) == (asked.from_, asked.to)
            done += [Done(*unit[:3], layer, "trade", unit.symbols) for layer in unit.layers]
    assert plan([replay("trade")], done) == []


def test_silver_is_missing_where_only_bronze_was_written() -> None:
    done = lines("trade", layers=(BRONZE,))
    [unit] = plan([replay("trade")], done)
    assert unit.layers == (SILVER,)
    assert plan([replay("trade")], done, layers=(BRONZE,)) == []


def test_forced_units_are_whole_and_of_the_next_generation() -> None:
    done = [line._replace(generation=4) for line in lines("trade")]
    [unit] = plan([replay("trade", "quote")], done, force=True)
    assert (unit.generation, unit.layers, unit.data_types) == (5, LAYERS, ("trade", "quote"))
    [elsewhere] = plan(
        [replay("trade", start=START_US + DAY_US, end=START_US + 2 * DAY_US)], done, force=True
    )
    assert elsewhere.generation == 1


def test_disconnects_are_told_once_for_a_time() -> None:
    first, second = plan([replay("trade", symbols=("A",)), replay("quote", symbols=("B",))])
    whole = (START_US, START_US + DAY_US)
    assert (first.disconnects, second.disconnects) == ((whole,), ())
    told = lines(DISCONNECT)
    [unit] = plan([replay("trade")], told)
    assert not unit.disconnects
    [forced] = plan([replay("trade")], told, force=True)
    assert forced.disconnects == (whole,)
    half = START_US + DAY_US // 2
    [rest] = plan([replay("trade")], lines(DISCONNECT, part=0.5))
    assert rest.disconnects == ((half, whole[1]),)
    # Each layer has its own: what only Bronze was told Silver takes from there.
    only = lines(DISCONNECT, layers=(BRONZE,))
    [unit] = plan([replay("trade")], only)
    assert (unit.disconnects, unit.taken) == ((), (whole,))
    [unit] = plan([replay("trade")], lines(DISCONNECT, part=0.5, layers=(BRONZE,)))
    assert (unit.disconnects, unit.taken) == (((half, whole[1]),), (whole,))
    [unit] = plan([replay("trade")], [*only, *lines("trade", layers=(BRONZE,))])
    assert (unit.layers, unit.disconnects, unit.taken) == ((SILVER,), (), (whole,))
    assert plan([replay("trade")], only, layers=(BRONZE,))[0].disconnects == ()


def test_lines_that_two_backfills_wrote_at_once_count_once() -> None:
    done = [*lines("trade", part=0.5), *lines("quote", ("A",)), *lines(DISCONNECT, part=0.5)]
    forced = [line._replace(generation=1) for line in done]
    twice = [*done, *forced, *done, *forced]
    wanted = [replay("trade", "quote", symbols=("A", "B"))]
    assert plan(wanted, twice) == plan(wanted, [*done, *forced])
    assert plan(wanted, twice, force=True) == plan(wanted, forced, force=True)
    assert verify.units(twice) == verify.units(done)
    assert missing(twice, Span()) == missing(done, Span())
