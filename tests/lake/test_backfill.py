"""Days of history into the tables."""

from datetime import UTC, datetime

from pyspark.sql import SparkSession

from tardis_machine.lake import backfill
from tardis_machine.lake.backfill import Done, Unit, plan
from tardis_machine.lake.rebuild import rebuild
from tardis_machine.lake.tables import EVENTS, SILVER, Tables
from tardis_machine.options import ReplayNormalizedOptions
from tardis_machine.replay import replay_normalized

DAY = 86_400_000_000
START = 1_709_251_200_000_000
MINUTE = 60_000_000
SAMPLE = {"sampleData": "true"}


def replay(
    *data_types: str,
    symbols: tuple[str, ...] | None = None,
    end: int = START + DAY,
    exchange: str = "bitmex",
) -> ReplayNormalizedOptions:
    return ReplayNormalizedOptions(
        exchange=exchange, from_=START, to=end, data_types=data_types, symbols=symbols
    )


def test_days_are_units() -> None:
    units = plan([replay("trade", end=START + DAY + MINUTE)])
    assert [(unit.day, unit.end - unit.start) for unit in units] == [
        ("2024-03-01", DAY),
        ("2024-03-02", MINUTE),
    ]


def test_the_same_request_has_the_same_id() -> None:
    [first] = plan([replay("trade", "quote", symbols=("A", "B"))])
    [second] = plan([replay("quote", "trade", symbols=("B", "A", "A"))])
    assert first.id == second.id
    [third] = plan([replay("trade", symbols=("A",))])
    assert third.id != first.id


def test_only_what_is_missing_is_planned() -> None:
    def left(*done: Done, symbols: tuple[str, ...] | None = ("A", "B")) -> list[Unit]:
        return plan([replay("trade", "quote", symbols=symbols)], done)

    def line(data_type: str, symbols: tuple[str, ...] | None, part: float = 1) -> Done:
        return Done("bitmex", START, START + int(DAY * part), data_type, symbols)

    assert left(line("trade", ("A", "B")), line("quote", ("B", "A", "C"))) == []
    assert left(line("trade", None), line("quote", None)) == []
    [unit] = left(line("trade", ("A", "B")))
    assert (unit.data_types, unit.symbols) == (("quote",), ("A", "B"))
    missing = {unit.data_types: unit.symbols for unit in left(line("trade", ("A",)))}
    assert missing == {("trade",): ("B",), ("quote",): ("A", "B")}
    # Half a day is not a day, two halves are.
    assert len(left(line("trade", None, 0.5), line("quote", None))) == 1
    second = Done("bitmex", START + DAY // 2, START + DAY, "trade", None)
    assert left(line("trade", None, 0.5), second, line("quote", None)) == []
    # Some symbols are not all.
    assert len(left(line("trade", ("A", "B")), line("quote", None), symbols=None)) == 1


def test_a_backfill_is_done_once_and_a_failing_day_stops_no_other(
    spark: SparkSession, tables: Tables
) -> None:
    end = START + 2 * MINUTE
    wanted = [
        replay("trade", "book_change", end=end),
        replay("trade", "book_change", end=end, exchange="deribit"),
        # The sample data does not have this one.
        ReplayNormalizedOptions(
            exchange="bitmex", from_=START + DAY, to=START + DAY + MINUTE, data_types=("trade",)
        ),
    ]
    seen: list[int] = []
    report = backfill.run(
        tables,
        plan(wanted),
        SAMPLE,
        attempts=2,
        wait_s=0,
        report=lambda progress: seen.append(progress.done),
    )
    assert {unit.exchange for unit in report.finished} == {"bitmex", "deribit"}
    [failed] = report.failed
    assert (failed.unit.day, "sample data has" in failed.error) == ("2024-03-02", True)
    assert seen == [1, 2, 3]

    expected = [
        message
        for exchange in ("bitmex", "deribit")
        for message in replay_normalized(
            exchange=exchange,
            from_=datetime.fromtimestamp(START // 10**6, UTC),
            to=datetime.fromtimestamp(end // 10**6, UTC),
            data_types=["trade", "book_change"],
            with_disconnect_messages=True,
            sample=True,
        )
    ]
    assert report.events == len(expected) == tables.read(EVENTS).count()
    sizes = {case: tables.read(SILVER[case]).count() for case in ("trade", "bookChange")}
    assert sum(sizes.values()) == len(
        [m for m in expected if m.__struct_config__.tag in {"trade", "book_change"}]
    )

    # Again: only the day that failed is left to do.
    left = plan(wanted, backfill.manifest(tables))
    assert [unit.day for unit in left] == ["2024-03-02"]
    # With another range, which overlaps: Silver stays as it is where it was complete.
    overlapping = plan([replay("trade", end=START + 3 * MINUTE)], backfill.manifest(tables))
    backfill.run(tables, overlapping, SAMPLE)
    trades = tables.read(SILVER["trade"])
    inside = trades.where((trades.exchange == "bitmex") & (trades.local_ts < "2024-03-01 00:02:00"))
    own = [m for m in expected if m.__struct_config__.tag == "trade" and m.exchange == "bitmex"]
    assert inside.count() == len(own)

    before = trades.count()
    rebuild(tables)
    assert tables.read(SILVER["trade"]).count() == before
