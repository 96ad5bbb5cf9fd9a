"""Batches of records into the tables, and again."""

from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from functools import partial
from pathlib import Path
from threading import Barrier
from urllib.parse import urlsplit

import pytest
from pyarrow.parquet import ParquetFile
from pyspark.sql import DataFrame, SparkSession

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake import events as bronze
from tardis_machine.lake import silver
from tardis_machine.lake.batches import Written, write_batch, write_silver
from tardis_machine.lake.groups import grouped, summed_up
from tardis_machine.lake.rebuild import rebuild
from tardis_machine.lake.spans import LAST_US, Span, condition
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Commit, Tables
from tests.lake.events import START_US, book_change, trade
from tests.lake.records import records

ZEROS = "00000000-0000-0000-0000-000000000000"
HOUR_MS = 3_600_000
live = partial(trade, live=True)


def test_a_batch_is_written_once_however_often_it_comes(
    spark: SparkSession, tables: Tables
) -> None:
    values = [
        *(live(number, trade_id=f"t{number}") for number in range(10)),
        live(3, trade_id="t3"),  # published again
        live(4, trade_id="t4", late_us=70_000),  # the same trade from another server
        live(5, trade_id="t5", late_us=1, price="2"),  # another trade, whatever its id
        live(10),  # without an id
        *(live(number, trade_id=ZEROS) for number in (11, 12)),
        *(live(number, trade_id="") for number in (13, 14)),
        b"garbage",
        live(15, price="0." + "1" * 19),
        book_change(20, [("61130.5", "3"), ("61130", "0")], snapshot=True),
    ]
    batch = records(spark, values)
    first = write_batch(tables, batch, Commit("stream/a", 0))
    assert first == Written(20, 2, {"trade": 16, "bookChange": 1})

    # Times are numbers that any reader knows; what differs in each row has no dictionary.
    [file] = tables.read(SILVER["trade"]).inputFiles()
    metadata = ParquetFile(urlsplit(file).path).metadata
    written = {
        column.path_in_schema: (column.physical_type, set(column.encodings))
        for column in map(metadata.row_group(0).column, range(metadata.num_columns))
    }
    assert written["local_ts"] == ("INT64", {"DELTA_BINARY_PACKED"})
    assert written["event_id"] == ("BYTE_ARRAY", {"DELTA_BYTE_ARRAY"})
    assert "RLE_DICTIONARY" in written["price"][1]

    # The same batch again, as after a crash: nothing changes, and nothing is counted.
    again = write_batch(tables, batch, Commit("stream/a", 0))
    assert again == Written(0, 0, {"trade": 0, "bookChange": 0})
    assert tables.read(EVENTS).count() == 20
    # Another checkpoint on the same tables: Bronze has what it read, the rest has it once.
    other = write_batch(tables, batch, Commit("stream/b", 0))
    assert other == Written(20, 0, {"trade": 0, "bookChange": 0})
    assert tables.read(EVENTS).count() == 40
    assert tables.read(SILVER["trade"]).count() == 16
    held = {row.stage: row for row in tables.read(QUARANTINE).collect()}
    assert set(held) == {"bronze", "silver"}
    assert bytes(held["bronze"].value) == b"garbage"
    assert held["silver"].symbol == "XBTUSD"

    # Taken by a second server in a later batch, and with an id that says nothing.
    late = [live(4, trade_id="t4", late_us=9), live(11, trade_id=ZEROS, late_us=9)]
    later = write_batch(tables, records(spark, late), Commit("stream/a", 1))
    assert later.inserted == {"trade": 1}

    [change] = tables.read(SILVER["bookChange"]).collect()
    assert [(level.price, level.amount) for level in change.bids] == [
        (Decimal("61130.5"), Decimal(3)),
        (Decimal(61130), Decimal(0)),
    ]
    levels = silver.book_levels(tables.read(SILVER["bookChange"])).collect()
    assert [(row.side, row.level, row.price) for row in levels] == [
        ("bid", 0, Decimal("61130.5")),
        ("bid", 1, Decimal(61130)),
    ]


def test_one_hostile_record_costs_only_itself(spark: SparkSession, tmp_path: Path) -> None:
    # Braces stand for names in statements of Spark's.
    tables = Tables(spark, str(tmp_path / "{env}"))
    last = pb.NormalizedEvent.FromString(trade(2, trade_id="t2"))
    last.local_ts.FromMicroseconds(LAST_US)
    values = [
        trade(0, trade_id="t0"),
        # The longest that a folder can be named after.
        trade(1, trade_id="t1", exchange="{b}/'" * 16),
        last.SerializeToString(),
        trade(3, exchange="/" * 81),
        trade(4, exchange="a\0"),
        b"\xfb\x0e\x74",
    ]
    for inserted in (3, 0):
        written = write_batch(tables, records(spark, values), Commit(f"stream/{inserted}", 0))
        assert written == Written(3, inserted, {"trade": inserted})
    tables.delete_matching(tables.read(QUARANTINE), QUARANTINE, "id")
    assert tables.read(QUARANTINE).count() == 0


def test_what_a_batch_repeats_is_known_before_it_is_written(spark: SparkSession) -> None:
    def told(*values: bytes) -> list[tuple[str | None, bool, bool, tuple[int, int] | None]]:
        found = summed_up(bronze.inspected(records(spark, values)))
        return sorted((g.case or "", g.repeats, g.twins, g.traded) for g in found)

    first, last = START_US + 1000, START_US + 3000
    alone = [live(1, trade_id="1"), live(3, trade_id="3"), live(2, trade_id="2")]
    assert told(*alone) == [("trade", False, False, (first, last))]
    assert told(*alone, live(2, trade_id="2")) == [("trade", True, True, (first, last))]
    assert told(*alone, live(2, trade_id="2", late_us=9)) == [("trade", False, True, (first, last))]
    other = live(2, trade_id="2", exchange="deribit", late_us=9)
    assert {each[1:3] for each in told(*alone, other)} == {(False, False)}
    # Without ids no two of them are one, however alike.
    assert told(*(trade(1, trade_id="1", late_us=us) for us in (0, 9)))[0][2:] == (False, None)
    assert told(live(1, trade_id=ZEROS), live(1, trade_id=ZEROS, late_us=9), b"garbage") == [
        ("", False, False, None),
        ("trade", False, False, None),
    ]
    # What Bronze has does not say so much.
    events = bronze.events(bronze.inspected(records(spark, alone)))
    [group] = grouped(events)
    assert (group.repeats, group.twins) == (False, True)
    assert group.traded is not None
    assert group.traded[0] < first < last < group.traded[1]


def test_servers_may_take_one_trade_on_two_days(spark: SparkSession, tables: Tables) -> None:
    copies = [live(0, trade_id="a", late_us=us, event_id=f"{us + 9:032x}") for us in (-5, 0, 7)]
    first = write_batch(tables, records(spark, copies[:2]), Commit("stream/a", 0))
    assert first.inserted == {"trade": 1}
    others = [copies[2], live(1, trade_id="b")]
    second = write_batch(tables, records(spark, others), Commit("stream/a", 1))
    assert second.inserted == {"trade": 1}
    assert sorted(row.trade_id for row in tables.read(SILVER["trade"]).collect()) == ["a", "b"]


def test_trades_that_were_replayed_go_by_event_id_alone(
    spark: SparkSession, tables: Tables
) -> None:
    # After a reconnect a recording has a trade again.
    replayed = [trade(1, trade_id="a", late_us=us) for us in (7, 9)]
    taken = [live(1, trade_id="a", late_us=us) for us in (1, 3)]
    for number, values in enumerate((replayed, taken)):
        write_batch(tables, records(spark, values), Commit("stream/a", number))
    for _ in range(2):
        origins = [row.origin for row in tables.read(SILVER["trade"]).collect()]
        assert sorted(origins) == ["realtime", "replay", "replay"]
        rebuild(tables)


def test_an_event_id_is_there_once_even_if_its_content_changed(
    spark: SparkSession, tables: Tables
) -> None:
    same = "a" * 32
    values = [trade(1, trade_id="x", price=price, event_id=same) for price in ("1", "2")]
    write_batch(tables, records(spark, values), Commit("stream/a", 0))
    corrected = trade(1, trade_id="x", price="3", event_id=same)
    write_batch(tables, records(spark, [corrected]), Commit("stream/a", 1))
    assert tables.read(SILVER["trade"]).count() == 1


def test_silver_can_be_made_from_bronze_later(spark: SparkSession, tables: Tables) -> None:
    values = [trade(number) for number in range(5)] + [trade(9, amount="0." + "1" * 19)]
    batch = records(spark, values)
    assert write_batch(tables, batch, Commit("stream/a", 0), bronze_only=True).inserted == {}
    assert not tables.exists(SILVER["trade"])
    bronze = tables.read(EVENTS)
    assert write_silver(tables, bronze, grouped(bronze)) == ({"trade": 5}, 1)
    assert write_silver(tables, bronze, grouped(bronze)) == ({"trade": 0}, 0)
    assert [row.stage for row in tables.read(QUARANTINE).collect()] == ["silver"]
    # Made anew, it has the same rows, and no others.
    tables.delete(SILVER["trade"], "position = 3")
    write_batch(tables, records(spark, [trade(20)]), Commit("stream/b", 0))
    rebuild(tables)
    positions = [row.position for row in tables.read(SILVER["trade"]).collect()]
    assert sorted(positions) == [0, 1, 2, 3, 4, 20]


def test_a_batch_that_bronze_refused_is_whole_the_next_time(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = records(spark, [trade(number) for number in range(3)])
    commit = Commit("stream/a", 0)

    def refuse(*_: object) -> None:
        raise OSError("no space left")

    with monkeypatch.context() as full:
        full.setattr(Tables, "append_once", refuse)
        with pytest.raises(OSError, match="no space left"):
            write_batch(tables, batch, commit)
    assert not tables.exists(EVENTS)
    # Silver had been written beside it.
    assert write_batch(tables, batch, commit) == Written(3, 0, {"trade": 0})
    assert tables.read(EVENTS).count() == tables.read(SILVER["trade"]).count() == 3


def test_two_writers_that_overlap_insert_each_event_once(
    spark: SparkSession, tables: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_batch(tables, records(spark, [trade(1000)]), Commit("before", 0))
    together = Barrier(2)
    first_try: set[int] = set()
    insert_new = Tables.insert_new

    def overlapping(self: Tables, rows, table, keys, where=""):  # type: ignore[no-untyped-def]
        def asked() -> DataFrame:
            # Both have looked at the table before either has written.
            found = rows()
            if table == SILVER["trade"] and id(self) not in first_try:
                first_try.add(id(self))
                together.wait(timeout=120)
            return found

        return insert_new(self, asked, table, keys, where)

    monkeypatch.setattr(Tables, "insert_new", overlapping)
    written = [records(spark, [trade(n) for n in range(start, start + 40)]) for start in (0, 20)]
    own = [Tables(spark, tables.root) for _ in written]
    with ThreadPoolExecutor(2) as pool:
        jobs = [
            pool.submit(write_batch, mine, batch, Commit(f"writer/{number}", 0))
            for number, (mine, batch) in enumerate(zip(own, written, strict=True))
        ]
        inserted = sum(job.result().inserted["trade"] for job in jobs)
    assert len(first_try) == 2
    assert inserted == 60
    assert tables.read(SILVER["trade"]).select("event_id").distinct().count() == 61
    assert tables.read(SILVER["trade"]).count() == 61
    assert tables.read(EVENTS).count() == 81


def test_writers_that_make_the_same_tables_at_once_all_go_on(
    spark: SparkSession, tables: Tables
) -> None:
    writers = 5
    together = Barrier(writers)
    made = [SILVER[case] for case in ("trade", "quote", "error")]

    def make(_: int) -> None:
        # Each knows nothing of the others, as processes do.
        own = Tables(spark, tables.root)
        for table in made:
            together.wait(timeout=60)
            own.create(table)

    with ThreadPoolExecutor(writers) as pool:
        list(pool.map(make, range(writers)))
    assert all(tables.exists(table) for table in made)


def test_tables_of_an_older_version_gain_columns(spark: SparkSession, tables: Tables) -> None:
    trades = SILVER["trade"]
    for table in (EVENTS, trades):
        older = {name: kind for name, kind in table.columns.items() if name != "producer_id"}
        tables.create(table._replace(columns=older))
    write_batch(tables, records(spark, [trade(1)]), Commit("stream/a", 0))
    # And those of a newer version keep columns that this one does not know.
    for table in (EVENTS, trades):
        spark.sql(f"ALTER TABLE {tables.name(table)} ADD COLUMN (from_the_future STRING)")
    write_batch(tables, records(spark, [trade(2)]), Commit("stream/a", 1))
    for table in (EVENTS, trades):
        rows = tables.read(table)
        assert {"producer_id", "from_the_future"} <= set(rows.columns)
        assert rows.count() == 2


def test_a_merge_opens_only_files_of_its_exchanges_days_and_times(
    spark: SparkSession, tables: Tables
) -> None:
    apart = {"same": 2 * HOUR_MS, "earlier": 0, "between": 30 * HOUR_MS, "later": 54 * HOUR_MS}
    for number in apart.values():
        write_batch(tables, records(spark, [trade(number)]), Commit("stream/a", number))
    write_batch(tables, records(spark, [trade(0, exchange="deribit")]), Commit("stream/a", 1))
    trades = tables.read(SILVER["trade"])
    first, last = apart["same"], apart["later"]
    needed = {
        path
        for number in (first, last)
        for path in trades.where(trades.event_id == f"{number:020x}{0:012x}").inputFiles()
    }
    others = set(trades.inputFiles()) - needed
    assert len(others) == 3
    for path in others:
        # Whoever opens it fails.
        Path(urlsplit(path).path).write_bytes(b"no Parquet")
    # One event of two days ago does not make the merge read what lies between.
    again = [trade(number + late) for number in (first, last) for late in (0, 1)]
    written = write_batch(tables, records(spark, again), Commit("stream/a", 2))
    assert written.inserted == {"trade": 2}
    with pytest.raises(Exception, match=r"not a Parquet|CANNOT_READ_FILE|hecksum"):
        tables.read(SILVER["trade"]).collect()


def test_spans_are_those_of_each_exchange_and_day() -> None:
    spans = [Span("a", START_US, START_US + 5), Span("b", START_US + 6, START_US + 9)]
    assert condition(spans, "t") == (
        "((t.exchange = 'a' AND t.day IN (DATE'2024-03-01')) OR "
        "(t.exchange = 'b' AND t.day IN (DATE'2024-03-01'))) AND "
        f"(t.local_ts BETWEEN timestamp_micros({START_US}L) AND timestamp_micros({START_US + 9}L))"
    )
    around_midnight = Span("a", START_US, START_US).widened(1)
    assert "IN (DATE'2024-02-29', DATE'2024-03-01')" in condition([around_midnight], "t")
    at_the_end = Span("a", LAST_US, LAST_US).widened(1)
    assert "IN (DATE'9999-12-31')" in condition([at_the_end], "t")


def test_a_small_batch_is_one_file_of_each_table(spark: SparkSession, tables: Tables) -> None:
    values = [trade(number, trade_id=f"t{number}") for number in range(200)]
    write_batch(tables, records(spark, values).repartition(4), Commit("stream/a", 0))
    assert tables.read(EVENTS).count() == 200
    for table in (EVENTS, SILVER["trade"]):
        assert len(tables.read(table).inputFiles()) == 1
