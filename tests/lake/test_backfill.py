"""Days of history into the tables."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tardis_machine.bronze import Context, Encoder, Event, Origin
from tardis_machine.history import History
from tardis_machine.history.sample import SAMPLE
from tardis_machine.lake import backfill, manifest, streaming
from tardis_machine.lake.batches import Commit, write_batch
from tardis_machine.lake.counting import Counted
from tardis_machine.lake.tables import EVENTS, MANIFEST, QUARANTINE, SILVER, Table, Tables
from tardis_machine.lake.units import BRONZE, Unit, case_of, plan
from tardis_machine.lake.verify import units, verify
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.lake.backfills import SAMPLED, TYPES, replay, run
from tests.lake.days import DAY_US, MINUTE_US, START_US, book, line, trade, trades, write_day
from tests.lake.records import records


def events_of(*replays: ReplayNormalizedOptions, history: History) -> list[Event]:
    """Give what the server would have sent, encoded."""
    found: list[Event] = []
    for each in replays:
        encoder, position = Encoder(Context(origin=Origin.REPLAY)), 0
        with NormalizedReplay([each], history=history) as replayed:
            for batch in replayed.batches():
                found += encoder.encode_lines(batch.data, position).events()
                position += batch.count
    return found


def ids(tables: Tables, case: str) -> list[str]:
    return sorted(row.event_id for row in tables.read(SILVER[case]).select("event_id").collect())


@pytest.mark.whole_path
def test_every_row_is_there_once_however_the_range_was_cut(
    spark: SparkSession, tables: Tables
) -> None:
    # Parts in any order, and one that overlaps, later; deribit has a disconnect.
    run(tables, *(replay(minutes=cut, exchange="deribit") for cut in ((1, 3), (0, 1))))
    run(tables, replay(minutes=(2, 5), exchange="deribit"))
    assert run(tables, replay(minutes=(2, 5), exchange="deribit")).finished == []
    whole = replay(minutes=(0, 5), exchange="deribit")
    with History(source=SAMPLE) as history:
        expected = events_of(whole, history=history)
    for case in (*(case_of(each) for each in TYPES), "disconnect"):
        own = [event.event_id for event in expected if event.payload_case == case]
        assert ids(tables, case) == sorted(own), case
        assert own
    # Bronze has each once as well, as it was sent.
    bronze = tables.read(EVENTS).select("event_id", "data_type", "value").collect()
    assert sorted(row.event_id for row in bronze) == sorted(event.event_id for event in expected)
    # The manifest's counts are each type's own.
    lines = tables.read(MANIFEST).groupBy("layer", "data_type").agg(f.sum("events")).collect()
    counted = {(layer, name): count for layer, name, count in lines}
    for data_type in (*TYPES, "disconnect"):
        own_count = sum(event.data_type == data_type for event in expected)
        assert counted["bronze", data_type] == counted["silver", data_type] == own_count


def broken_days(folder: Path) -> Path:
    """Write a day of trades and books whose connection broke four times, each known by others."""
    second = 1_000_000
    recorded = {  # each connection broke once, between the last of these and the next minute
        0: [("trade", 1), ("book", 2)],
        1: [("trade", MINUTE_US), ("book", MINUTE_US + 10 * second)],
        2: [("trade", 2 * MINUTE_US), ("trade", 2 * MINUTE_US + 30 * second)],
        3: [("book", 3 * MINUTE_US), ("trade", 3 * MINUTE_US + 20 * second)],
        4: [("book", 4 * MINUTE_US + second), ("trade", 4 * MINUTE_US + second)],
    }
    written = {
        "trade": lambda us: trade(us, 1),
        "book": lambda us: book(us, "partial", 1, 1),
    }
    channels = {"trade": ("trade",), "book": ("orderBookL2",), "both": ("orderBookL2", "trade")}
    for name, wanted in channels.items():
        minutes = {
            minute: (b"\n" if minute else b"")
            + b"".join(written[kind](us) for kind, us in lines if name in (kind, "both"))
            for minute, lines in recorded.items()
        }
        write_day(folder, minutes, channels=wanted)
    return folder


def disconnects(tables: Tables) -> list[list[int]]:
    """Give the times of the disconnects that Bronze and Silver have, after the day's beginning."""
    held = (
        tables.read(EVENTS).where("payload_case = 'disconnect'"),
        tables.read(SILVER["disconnect"]),
    )
    return [
        sorted(us - START_US for (us,) in rows.select(f.unix_micros("local_ts")).collect())
        for rows in held
    ]


@pytest.mark.parametrize(
    "parts",
    [
        [("trade", (0, 2)), ("trade,book_change", (2, 5))],
        [("trade,book_change", (2, 5)), ("trade", (0, 2))],
        [("trade", (0, 3)), ("book_change", (0, 5))],
        [("book_change", (1, 3)), ("trade", (0, 5))],
        [("book_change", (0, 3)), ("trade", (3, 5)), ("trade,book_change", (0, 5))],
        [("trade", (0, 3)), ("trade", (3, 5))],
    ],
    ids=str,
)
def test_a_disconnect_is_there_once_whatever_each_part_knows_it_by(
    tables: Tables, tmp_path: Path, parts: list[tuple[str, tuple[int, int]]]
) -> None:
    cache = broken_days(tmp_path / "cache")
    for types, cut in parts:
        wanted_types = types.split(",")
        run(tables, replay(*wanted_types, minutes=cut), source={"cacheDir": str(cache)})
    bronze, held = disconnects(tables)
    assert len(held) == 4, held
    assert bronze == held


@pytest.mark.parametrize(
    "parts",
    [
        [("trade", (0, 2)), ("book_change", (2, 5))],
        [("trade", (2, 5)), ("book_change", (0, 2))],
        [("trade", (0, 5)), ("book_change", (0, 5)), ("force book_change", (0, 3))],
        [("book_change", (0, 5)), ("force trade", (2, 5)), ("force trade,book_change", (0, 2))],
    ],
    ids=str,
)
def test_a_disconnect_that_few_messages_know_by_old_ones_is_the_same_one(
    tables: Tables, tmp_path: Path, parts: list[tuple[str, tuple[int, int]]]
) -> None:
    books = [book(at, "partial", 1, 1) for at in (2, MINUTE_US + 30, 2 * MINUTE_US + 20)]
    # The connection broke at the end of a minute, and the next trade came long after.
    recorded = {
        ("trade",): {0: trade(1), 1: b"\n", 3: trade(3 * MINUTE_US)},
        ("orderBookL2",): {0: books[0], 1: books[1] + b"\n", 2: books[2]},
        ("orderBookL2", "trade"): {
            0: trade(1) + books[0],
            1: books[1] + b"\n",
            2: books[2],
            3: trade(3 * MINUTE_US),
        },
    }
    for channels, minutes in recorded.items():
        source = {"cacheDir": str(write_day(tmp_path / "cache", minutes, channels=channels))}
    for part, cut in parts:
        _, force, types = part.rpartition("force ")
        wanted = replay(*types.split(","), minutes=cut)
        run(tables, wanted, source=source, force=bool(force))
        bronze, held = disconnects(tables)
        assert bronze == held
        assert len(held) == 1, (part, held)


@pytest.mark.parametrize("types", [("book_change",), ("trade",), ("trade", "book_change")])
def test_a_disconnect_that_only_bronze_was_told_is_the_same_one_in_silver(
    tables: Tables, tmp_path: Path, types: tuple[str, ...]
) -> None:
    source = {"cacheDir": str(broken_days(tmp_path / "cache"))}
    run(tables, replay("trade", minutes=(0, 3)), source=source, layers=(BRONZE,))
    run(tables, replay(*types, minutes=(0, 5)), source=source)
    place = streaming.default_checkpoint(tables.root, "silver")
    streaming.wait(streaming.start_silver(tables, place))
    bronze, held = disconnects(tables)
    assert len(bronze) == 4, bronze
    assert bronze == held
    assert run(tables, replay(*types, minutes=(0, 5)), source=source).finished == []


def test_a_failing_day_stops_no_other_and_is_left_to_do(
    spark: SparkSession, tables: Tables
) -> None:
    tomorrow = ReplayNormalizedOptions(
        exchange="bitmex",
        from_=START_US + DAY_US,
        to=START_US + DAY_US + MINUTE_US,
        data_types=("trade",),
    )
    wanted = [replay("trade", minutes=(0, 1)), tomorrow]
    seen: list[int] = []
    report = backfill.run(
        tables,
        plan(wanted),
        SAMPLED,
        attempts=2,
        wait_s=0,
        report=lambda progress: seen.append(progress.done),
    )
    [failed] = report.failed
    assert (failed.unit.day_text, "synthetic sample data" in failed.error) == ("2024-03-02", True)
    assert seen == [1, 2]
    assert report.events == tables.read(SILVER["trade"]).count() > 0
    left = plan(wanted, manifest.finished(tables))
    assert [unit.day_text for unit in left] == ["2024-03-02"]


def test_force_replaces_what_a_mistake_left_and_verify_finds_it(
    spark: SparkSession, tables: Tables, tmp_path: Path
) -> None:
    malformed = line(MINUTE_US + 5, {"table": "trade", "action": "insert", "data": [7]})
    wrong = {0: trade(1, 100) + trade(2, 5), 1: trade(MINUTE_US, 7) + malformed}
    right = {0: trade(1, 1), 1: trade(MINUTE_US, 7), 2: book(2 * MINUTE_US, "partial", 1, 1)}
    source = {"cacheDir": str(write_day(tmp_path / "wrong", wrong))}
    mended = {"cacheDir": str(write_day(tmp_path / "right", right))}
    wanted = replay("trade", "book_change", minutes=(0, 3))
    report = run(tables, wanted, source=source)
    assert report.rejected == 1
    [bad] = tables.read(QUARANTINE).collect()
    assert (bad.stage, bytes(bad.value)) == ("normalize", malformed.rstrip())
    lines = tables.read(MANIFEST).where("data_type = 'malformed'").collect()
    assert [(row.events, row.rejected) for row in lines] == [(0, 1)]
    # What a live server took of the same time is not a replay's to replace.
    live = Encoder(Context(origin=Origin.REALTIME))
    message = (
        b'{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","id":"L","price":9,"amount":1,'
        b'"side":"buy","timestamp":"2024-03-01T00:00:30.000Z",'
        b'"localTimestamp":"2024-03-01T00:00:30.000001Z"}\n'
    )
    [event] = live.encode_lines(message).events()
    write_batch(tables, records(spark, [event.value]), Commit("stream/live", 0))

    finished = manifest.finished(tables)
    assert verify(tables, units(finished), source) == []
    differences = {each.data_type: each for each in verify(tables, units(finished), mended)}
    assert set(differences) == {"trade", "book_change"}
    assert (differences["trade"].held.rows, differences["trade"].expected.rows) == (3, 2)
    assert differences["trade"].command == (
        "tardis-machine lake backfill --force --exchange bitmex --types trade "
        "--from 2024-03-01T00:00 --to 2024-03-01T00:03 --yes"
    )

    assert run(tables, wanted, source=mended).finished == []
    [unit] = run(tables, wanted, source=mended, force=True).finished
    assert unit.generation == 1
    prices = {(row.price, row.origin) for row in tables.read(SILVER["trade"]).collect()}
    assert prices == {(1, "replay"), (7, "replay"), (9, "realtime")}
    bronze = tables.read(EVENTS).where("bus = 'tardis'")
    assert bronze.count() == 3
    assert tables.read(QUARANTINE).count() == 0
    assert verify(tables, units(manifest.finished(tables)), mended) == []
    # One table, one commit: nobody saw it without either.
    history = spark.sql(f"DESCRIBE HISTORY {tables.name(SILVER['trade'])}").orderBy("version")
    assert [row.operation for row in history.collect()][-1] == "WRITE"


def test_force_mends_a_day_whose_files_are_gone_and_verify_names_them(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tables = Tables(spark, str(tmp_path / "50% of é"))
    parts = [replay("trade", minutes=(minute, minute + 1)) for minute in (0, 1)]
    run(tables, *parts)
    tomorrow = replay("trade", minutes=(1440, 1441))
    day = {0: trade(DAY_US + 1)}
    cached = {"cacheDir": str(write_day(tmp_path / "cache", day, day=1, channels=["trade"]))}
    run(tables, tomorrow, source=cached)
    whole = [ids(tables, "trade"), sorted(row.event_id for row in tables.read(EVENTS).collect())]
    for table in (SILVER["trade"], EVENTS):
        first = tables.read(table).where(f"local_ts < timestamp_micros({START_US + MINUTE_US}L)")
        [gone] = first.select("_metadata.file_path").distinct().collect()
        Path(unquote(urlsplit(gone.file_path).path)).unlink()

    done = manifest.finished(tables)
    seen: list[str] = []
    differences = verify(tables, units(done), SAMPLED, lambda unit, _: seen.append(unit.start_text))
    # The sample has no other day.
    assert [each[-5:] for each in seen] == ["00:00", "00:01", "00:00"]
    lost, other = differences
    assert isinstance(lost.held, str)
    assert "does not exist" in lost.held
    assert isinstance(other.expected, str)
    assert "synthetic sample data" in other.expected
    # Any part of that day finds it in its way.
    for each in reversed(parts):
        run(tables, each, force=True)
    assert "data files are gone" in caplog.text
    assert ids(tables, "trade") == whole[0]
    assert sorted(row.event_id for row in tables.read(EVENTS).collect()) == whole[1]


def test_silver_follows_what_a_wider_backfill_adds_to_bronze(tables: Tables) -> None:
    place = streaming.default_checkpoint(tables.root, "silver")
    for symbols in (("XBTUSD",), None):
        wanted = replay("trade", minutes=(0, 1), symbols=symbols)
        run(tables, wanted, layers=(BRONZE,))
        streaming.wait(streaming.start_silver(tables, place))
    held = tables.read(EVENTS).select("event_id", "symbol").collect()
    assert len({row.symbol for row in held}) > 1
    assert ids(tables, "trade") == sorted(row.event_id for row in held)


def shuffled(spark: SparkSession) -> int:
    """Tell how many bytes tasks have handed to each other so far."""
    executors = spark.sparkContext._jsc.sc().statusStore().executorList(False)
    return sum(executors.apply(each).totalShuffleWrite() for each in range(executors.size()))


def test_neighbouring_days_come_in_at_once_with_little_memory_and_all_their_trades(
    spark: SparkSession, tables: Tables, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert spark.conf.get("spark.driver.memory") == "1g"
    # Ids that say nothing, as rows of indices have them: each is a trade all the same.
    nothing = ("00000000-0000-0000-0000-000000000000", "", None)
    same: list[tuple[float, int, str | None]] = [(1, 1, nothing[row % 3]) for row in range(30)]
    for day in (0, 1):
        minutes = {
            minute: b"".join(
                trades(day * DAY_US + minute * MINUTE_US + second * 1_000_000, same)
                for second in (0, 0, 20, 40)
            )
            for minute in range(1440)
        }
        cache = write_day(tmp_path / "cache", minutes, day=day)
    wanted = replay("trade", "book_change", minutes=(0, 2 * 1440))
    before = shuffled(spark)
    with caplog.at_level("INFO", "tardis_machine.lake.tables"):
        report = run(tables, wanted, source={"cacheDir": str(cache)})
    count = 2 * 1440 * 4 * len(same)
    assert report.events == count
    # Rows go straight from the replay into files: what tasks hand on is Delta's bookkeeping.
    assert shuffled(spark) - before < count
    held = tables.read(SILVER["trade"])
    assert held.select("event_id").distinct().count() == held.count() == count
    assert tables.read(EVENTS).count() == count
    assert [
        record for record in caplog.records if record.name == "tardis_machine.lake.tables"
    ] == []


class Killed(BaseException):
    """The process ends here."""


def test_killed_between_any_two_tables_nothing_is_lost_or_twice(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = replay("trade", minutes=(0, 1))
    reached: list[str] = []

    def killed_before(name: str, where: str) -> None:
        original: Callable[..., Any] = getattr(Tables, name)

        def killed(self: Tables, rows: Any, table: Any, *more: Any) -> Any:
            if table.path == where:
                reached.append(where)
                raise Killed
            return original(self, rows, table, *more)

        monkeypatch.setattr(Tables, name, killed)

    for name, table in (
        ("replace", EVENTS),
        ("insert_new", SILVER["trade"]),
        ("append_once", MANIFEST),
    ):
        killed_before(name, table.path)
        [unit] = plan([wanted], manifest.finished(tables))
        with pytest.raises(Killed):
            backfill.UnitWriter(tables, unit, SAMPLED).write()
        monkeypatch.undo()
        assert reached[-1] == table.path
        assert not tables.exists(MANIFEST)
    # The other of the two tables was written meanwhile, again and again.
    assert tables.read(EVENTS).count() == tables.read(SILVER["trade"]).count() > 0
    run(tables, wanted)
    with History(source=SAMPLE) as history:
        expected = sorted(event.event_id for event in events_of(wanted, history=history))
    assert ids(tables, "trade") == expected
    assert sorted(row.event_id for row in tables.read(EVENTS).collect()) == expected


def test_an_interrupted_backfill_takes_back_what_is_queued(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Unit] = []
    three = threading.Event()

    def write(self: backfill.UnitWriter) -> manifest.Counts:
        begun.append(self._unit)
        if len(begun) == 3:
            three.set()
        if len(begun) <= 1:
            return {}
        three.wait(60)
        spark.range(10**12).selectExpr("sum(sqrt(id))").collect()  # longer than anyone waits
        return {}

    def interrupted(_: backfill.Progress) -> None:
        assert three.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(backfill.UnitWriter, "write", write)
    wanted = [
        ReplayNormalizedOptions(
            exchange="bitmex", from_=START_US, to=START_US + 50 * DAY_US, data_types=("trade",)
        )
    ]
    with pytest.raises(KeyboardInterrupt):
        backfill.run(tables, plan(wanted), SAMPLED, report=interrupted)
    assert len(begun) == 3


def test_what_has_no_rows_is_counted_as_well(spark: SparkSession, tables: Tables) -> None:
    table = Table(
        "silver/small",
        {"event_id": "STRING"},
        partitioned_by=(),
        ordered_by=("event_id",),
        statistics=("event_id",),
    )
    held = spark.createDataFrame([("a",)], "event_id STRING")
    tables.append_once(held, table, Commit("a", 0))
    counted = Counted(
        lambda: tables.read(table).where("event_id < 'a'").withColumn("trouble", f.lit(None)),
        {"all": "true"},
        trouble="trouble",
    )
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    try:
        # A join whose one side turns out to be empty is left out by Spark, and its counts with it.
        assert tables.insert_new(counted, table, ["event_id"], "true") == 0
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(lambda: counted.counts).result(timeout=60) == {"all": 0}
    finally:
        spark.conf.unset("spark.sql.autoBroadcastJoinThreshold")
