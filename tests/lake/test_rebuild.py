"""Silver rebuilt from Bronze: nothing that Bronze lacks is lost, and no reader sees less."""

import os
import signal
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.lake import manifest
from tardis_machine.lake.batches import write_batch
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted, refresh
from tardis_machine.lake.manifest import Count
from tardis_machine.lake.rebuild import Part, compare, rebuild
from tardis_machine.lake.retention import drop_days
from tardis_machine.lake.tables import EVENTS, MANIFEST, QUARANTINE, SILVER, Commit, Tables
from tardis_machine.lake.units import LAYERS, plan
from tests.lake.backfills import replay, run
from tests.lake.commands import launch
from tests.lake.days import DAY_US, START_US
from tests.lake.events import book_change, trade
from tests.lake.records import records
from tests.lake.spark_settings import ZONE
from tests.support.waiting import wait_until

Said = pytest.CaptureFixture[str]
TRADES = SILVER["trade"]
DAY = START_US // DAY_US
DAY_MS = DAY_US // 1000
FIRST = "day = DATE'2024-03-01'"


def write(tables: Tables, number: int, *values: bytes, bronze_only: bool = False) -> None:
    rows = records(tables.spark, values, offset=1000 * number)
    write_batch(tables, rows, Commit("stream/a", number), bronze_only=bronze_only)


def positions(tables: Tables, case: str = "trade") -> list[int]:
    return sorted(row.position for row in tables.read(SILVER[case]).select("position").collect())


def counts_since(tables: Tables, version: int) -> list[int]:
    """Count the rows that each version of the trades had, from one version on."""
    history = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(TRADES)}").collect()
    return [
        tables.spark.read.format("delta")
        .option("versionAsOf", row.version)
        .load(tables.path(TRADES))
        .count()
        for row in history
        if row.version >= version
    ]


def version(tables: Tables) -> int:
    [row] = tables.spark.sql(f"DESCRIBE HISTORY {tables.name(TRADES)} LIMIT 1").collect()
    return int(row.version)


def test_silver_of_days_that_bronze_lacks_survives_a_rebuild_and_bronze_comes_back(
    tables: Tables, capsys: Said
) -> None:
    wanted = replay("trade", minutes=(0, 2))
    run(tables, wanted)
    before = positions(tables)
    command = ["drop-days", "--tables", tables.root, "--before", "2024-03-02", "--layers", "bronze"]
    assert main([*command, "--yes"]) == 0
    assert tables.read(EVENTS).count() == 0
    capsys.readouterr()

    silver = ["silver", "--rebuild", "--tables", tables.root]
    assert main([*silver, "--yes"]) == 0
    said = capsys.readouterr().out
    assert f"trades bitmex: {len(before)} rows that Bronze lacks to be kept, 1 days" in said
    assert positions(tables) == before
    [unit] = run(tables, wanted).finished
    assert unit.layers == ("bronze",)
    assert positions(tables) == before
    assert tables.read(EVENTS).where("payload_case = 'trade'").count() == len(before)

    # Dropped only if told so; then the manifest does not say that it is there.
    assert main([*command, "--yes"]) == 0
    dropping = [*silver, "--drop-what-bronze-lacks"]
    capsys.readouterr()
    assert main([*dropping, "--dry-run", "--yes"]) == 0
    said = capsys.readouterr().out
    assert f"{len(before)} rows that Bronze lacks to be dropped" in said
    assert said.endswith("Nothing was done.\n")
    assert positions(tables) == before
    assert main([*dropping, "--yes"]) == 0
    assert positions(tables) == []
    [unit] = run(tables, wanted).finished
    assert unit.layers == LAYERS
    assert positions(tables) == before
    assert run(tables, wanted).finished == []


def test_days_that_an_earlier_rebuild_emptied_are_backfilled_again(tables: Tables) -> None:
    wanted = replay("trade", minutes=(0, 1))
    run(tables, wanted)
    before = positions(tables)
    drop_days(tables, ["bronze"], date(2024, 3, 2))
    tables.delete(TRADES, "true")
    rebuild(tables)
    [unit] = run(tables, wanted).finished
    assert unit.layers == LAYERS
    assert positions(tables) == before


def test_rows_that_bronze_lacks_of_a_rebuilt_day_are_kept(tables: Tables) -> None:
    write(tables, 0, *(trade(number) for number in range(6)), book_change(9, [("1", "1")]))
    write(tables, 1, trade(DAY_MS + 7))
    whole = replay("trade", "book_change", minutes=(0, 1440))
    [unit] = plan([whole])
    types = ("trade", "book_change")
    counts = {(layer, each): Count(1) for layer in LAYERS for each in types}
    manifest.write_down(tables, unit, counts)
    # Of the first day Bronze has one trade and no book change, and one that Silver has not.
    tables.delete(EVENTS, f"{FIRST} AND position <> 3")
    write(tables, 2, trade(8), bronze_only=True)
    tables.delete(TRADES, f"{FIRST} AND position = 3")
    assert compare(tables) == [
        Part("bookChange", "bitmex", DAY, lacking=1),
        Part("trade", "bitmex", DAY, events=2, lacking=5),
        Part("trade", "bitmex", DAY + 1, events=1),
    ]
    before = version(tables)
    rebuild(tables)
    everything = [0, 1, 2, 3, 4, 5, 8, DAY_MS + 7]
    assert positions(tables) == everything
    assert positions(tables, "bookChange") == [9]
    assert plan([whole], manifest.finished(tables)) == []
    # Each day in one commit: no version has fewer rows than the one before.
    assert counts_since(tables, before) == [8, 8, 6]
    rebuild(tables)
    assert positions(tables) == everything
    assert counts_since(tables, before) == [8, 8, 8, 8, 6]

    rebuild(tables, drop_what_bronze_lacks=True)
    assert positions(tables) == [3, 8, DAY_MS + 7]
    assert positions(tables, "bookChange") == []
    [again] = plan([whole], manifest.finished(tables))
    assert (again.layers, set(again.data_types)) == (("silver",), set(types))


def test_a_day_at_its_border_is_that_of_the_local_time_in_utc(tables: Tables) -> None:
    # A microsecond before midnight, and at midnight; the zone of this machine is another one.
    edges = [
        trade(number, late_us=late_us, event_id=f"{number + late_us + 9:032x}")
        for number, late_us in ((DAY_MS, -1), (DAY_MS, 0), (0, 0), (0, -1))
    ]
    write(tables, 0, *edges)
    rebuild(tables)
    days = tables.read(TRADES).groupBy("day").count().collect()
    expected = {(date(2024, 2, 29), 1), (date(2024, 3, 1), 2), (date(2024, 3, 2), 1)}
    assert {tuple(row) for row in days} == expected
    assert os.environ["TZ"] == ZONE


@pytest.mark.parametrize("drop", [False, True])
def test_a_trade_that_two_servers_took_stays_one(tables: Tables, drop: bool) -> None:
    def taken(late_us: int) -> bytes:
        event_id = f"{late_us + 9:032x}"
        return trade(DAY_MS, trade_id="a", late_us=late_us, event_id=event_id, live=True)

    def kept() -> list[str]:
        return [row.event_id for row in tables.read(TRADES).collect()]

    for number, late_us in enumerate((0, -5, 7)):  # on both sides of midnight
        write(tables, number, taken(late_us))
    assert len(kept()) == 1
    # Silver has a copy that Bronze lacks: kept, it is the one; dropped, another takes its place.
    [before] = kept()
    tables.delete(EVENTS, f"event_id = '{before}'")
    rebuild(tables, drop_what_bronze_lacks=drop)
    [after] = kept()
    assert (after == before) is not drop


def test_rows_in_quarantine_stay_there_once(tables: Tables) -> None:
    write(tables, 0, trade(1), trade(2, price="0." + "1" * 19), b"garbage")
    write(tables, 1, trade(DAY_MS, price="0." + "1" * 19), bronze_only=True)
    rebuild(tables, drop_what_bronze_lacks=True)
    assert positions(tables) == [1]
    stages = sorted(row.stage for row in tables.read(QUARANTINE).collect())
    assert stages == ["bronze", "silver", "silver"]


def test_gold_is_the_same_after_a_rebuild(tables: Tables) -> None:
    write(tables, 0, *(trade(number * 60_000, price=str(number + 1)) for number in range(3)))
    write(tables, 1, trade(DAY_MS))
    bars = [Wanted(GOLD["bars"], "trade_bar_1m")]

    def made() -> Sequence[object]:
        refresh(tables, bars)
        rows = tables.read(GOLD["bars"].table).orderBy("start_ts")
        return rows.select("day", "close", "volume", "trade_count").collect()

    before = made()
    assert len(before) == 4
    tables.delete(EVENTS, f"{FIRST} AND position > 0")
    rebuild(tables)
    assert made() == before


STOPS_BEFORE_THE_SECOND_DAY = """
import sys, time
from pathlib import Path
from tardis_machine.cli import main
from tardis_machine.lake.tables import Tables
replace, calls = Tables.replace, []
def stop_at_the_second(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        Path(sys.argv[1]).touch()
        time.sleep(600)
    return replace(*arguments)
Tables.replace = stop_at_the_second
sys.exit(main(["lake", *sys.argv[2:]]))
"""
"""The command, but for a pause when the first day has been rebuilt."""


def test_a_rebuild_that_is_killed_loses_nothing_and_can_be_run_again(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    write(tables, 0, *(trade(number) for number in (0, 1, 2, DAY_MS, DAY_MS + 1, 2 * DAY_MS)))
    tables.delete(EVENTS, "position = 1")
    tables.delete(EVENTS, "day = DATE'2024-03-03'")
    tables.delete(TRADES, f"position IN (0, {DAY_MS})")
    reached = tmp_path / "reached"
    job = launch(
        *(sys.executable, "-c", STOPS_BEFORE_THE_SECOND_DAY, reached),
        *("silver", "--rebuild", "--yes", "--tables", tables.root),
    )
    wait_until(lambda: reached.exists() or job.poll() is not None, "the second day", patience_s=800)
    os.killpg(job.pid, signal.SIGKILL)
    said, _ = job.communicate()
    assert reached.exists(), said
    # The first day is rebuilt, the others are as they were.
    assert positions(tables) == [0, 1, 2, DAY_MS + 1, 2 * DAY_MS]
    rebuild(tables)
    assert positions(tables) == [0, 1, 2, DAY_MS, DAY_MS + 1, 2 * DAY_MS]


@pytest.mark.parametrize(
    "command",
    [
        "silver --rebuild --tables lake",
        "silver --rebuild --drop-what-bronze-lacks --tables lake",
        "drop-days --before 2024-03-02 --tables lake",
        "backfill --force --exchange a --types b --from 2024-03-01 --to 2024-03-02 --to-tables a",
    ],
)
def test_without_a_terminal_a_command_that_destroys_wants_yes(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError) as refused:
        main(command.split())
    assert str(refused.value).startswith("--yes: is needed: this command deletes or replaces rows")
    assert str(refused.value).endswith(f"run: tardis-machine lake {command} --yes")
    assert list(tmp_path.iterdir()) == []


class Terminal:
    """A terminal on which an answer has been typed."""

    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._answer


def test_on_a_terminal_what_destroys_asks(
    tables: Tables, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    run(tables, replay("trade", minutes=(0, 1)))
    before = positions(tables)
    tables.delete(TRADES, f"position = {before[0]}")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    force = [
        *("backfill", "--sample-data", "--force", "--exchange", "bitmex", "--types", "trade"),
        *("--from", "2024-03-01", "--to", "2024-03-01T00:01", "--to-tables", tables.root),
    ]
    rebuilding = ["silver", "--rebuild", "--tables", tables.root]
    drop = ["drop-days", "--tables", tables.root, "--before", "2024-03-02", "--layers", "silver"]
    for command, says in (
        (rebuilding, "trades bitmex: 1 days, 2024-03-01 to 2024-03-01 to rebuild"),
        (force, "bitmex 2024-03-01T00:00 to 2024-03-01T00:01 trade of all symbols: bronze, silver"),
        (drop, "trades would lose 1 days of exchanges, 2024-03-01 to 2024-03-01"),
    ):
        for answer in ("", "n\n", "maybe\n"):
            monkeypatch.setattr("sys.stdin", Terminal(answer))
            capsys.readouterr()
            assert main(command) == 1
            said = capsys.readouterr()
            assert says in said.out
            assert said.out.endswith("Nothing was done.\n")
            assert said.err.endswith("[y/N] ")
            assert positions(tables) == before[1:]
    monkeypatch.setattr("sys.stdin", Terminal("y\n"))
    assert main(rebuilding) == 0
    assert positions(tables) == before
    tables.delete(TRADES, f"position = {before[0]}")
    assert main(force) == 0
    assert positions(tables) == before
    assert main(drop) == 0
    assert not tables.exists(MANIFEST) or positions(tables) == []


def test_a_dry_run_changes_nothing_even_with_yes(tables: Tables, capsys: Said) -> None:
    write(tables, 0, trade(0))
    assert main(["drop-days", "--tables", tables.root, "--before", "2024-03-02", "--dry-run"]) == 0
    yes = ["--before", "2024-03-02", "--dry-run", "--yes"]
    assert main(["drop-days", "--tables", tables.root, *yes]) == 0
    assert "would lose" in capsys.readouterr().out
    assert positions(tables) == [0]
    with pytest.raises(ConfigError, match=r"--dry-run: needs --rebuild"):
        main(["silver", "--tables", tables.root, "--dry-run"])
