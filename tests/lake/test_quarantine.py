"""What no table takes: kept, told, and released."""

from collections.abc import Sequence

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.lake import events
from tardis_machine.lake.batches import Written, write_batch
from tardis_machine.lake.quarantine import event_place, held, set_aside, set_aside_records
from tardis_machine.lake.release import release
from tardis_machine.lake.tables import EVENTS, QUARANTINE, SILVER, Commit, Tables
from tests.lake.events import trade
from tests.lake.records import records


def newer(number: int) -> bytes:
    """Make an event whose payload has a number that this version does not know."""
    event = pb.NormalizedEvent.FromString(trade(number))
    event.ClearField("trade")
    return event.SerializeToString() + bytes([0xFA, 0x06, 0x02]) + b"hi"  # field 111


def test_a_payload_that_only_a_newer_version_knows_is_kept(
    spark: SparkSession, tables: Tables
) -> None:
    written = write_batch(tables, records(spark, [trade(1), newer(2)]), Commit("stream/a", 0))
    assert written == Written(2, 1, {"trade": 1})
    kept = tables.read(EVENTS).where(f"payload_case = '{events.NEWER}'").collect()
    assert [bytes(row.value) for row in kept] == [newer(2)]
    [told] = held(tables)
    assert (told.stage, told.reason, told.exchange) == (
        "silver",
        "a payload that only a newer version knows",
        "bitmex",
    )
    assert str(told.day) == "2024-03-01"


def test_records_in_the_same_place_of_another_stream_are_others(
    spark: SparkSession, tables: Tables
) -> None:
    values: Sequence[bytes] = [b"garbage", b"rubbish"]
    for number, value in enumerate(values):
        write_batch(tables, records(spark, [value]), Commit("stream/a", number))
    assert {bytes(row.value) for row in tables.read(QUARANTINE).collect()} == set(values)


def test_what_is_sound_by_now_is_released(spark: SparkSession, tables: Tables) -> None:
    sound, defect = trade(1), trade(2, amount="0." + "1" * 19)
    write_batch(tables, records(spark, [trade(5), defect, newer(3), b"garbage"]), Commit("a", 0))
    assert tables.read(QUARANTINE).count() == 3
    # As an older version would have set them aside, which could not read or hold them.
    read = events.inspected(records(spark, [sound], offset=100))
    set_aside_records(tables, read.withColumn("reason", f.lit("not read by 0.9")))
    known = events.events(events.inspected(records(spark, [trade(6)], offset=101)))
    tables.append_once(known, EVENTS, Commit("a", 1))
    rejects = known.select(
        event_place().alias("id"),
        f.lit("silver").alias("stage"),
        f.lit("not held by 0.9").alias("reason"),
        *[name for name in QUARANTINE.columns if name in known.columns],
    )
    set_aside(tables, lambda: rejects.withColumn("unit", f.lit(None).cast("string")))
    assert sum(each.records for each in held(tables)) == 5

    outcome = release(tables)
    assert (outcome.released, outcome.left, outcome.redo) == (2, 3, [])
    in_silver = [row.position for row in tables.read(SILVER["trade"]).collect()]
    assert sorted(in_silver) == [1, 5, 6]
    in_bronze = [row.offset for row in tables.read(EVENTS).collect()]
    assert sorted(in_bronze) == [0, 1, 2, 100, 101]
    reasons = {each.reason for each in held(tables)}
    assert not any("0.9" in reason for reason in reasons)
    # Again changes nothing.
    assert release(tables).released == 0
    assert tables.read(EVENTS).count() == 5
