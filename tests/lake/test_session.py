"""Sessions of our own and of others."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tardis_machine.lake.errors import SessionError
from tardis_machine.lake.session import (
    COORDINATES,
    LOCAL_SETTINGS,
    LOG_STORES,
    died,
    jars,
    prepared,
    session,
)
from tests.lake.spark_settings import ZONE
from tests.support.waiting import wait_until


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    assert session().sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == LOCAL_SETTINGS["spark.driver.host"]
    # What a caller sets replaces the default.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_what_is_chosen_is_set_on_a_session_of_its_own(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    codec, zone = "spark.sql.parquet.compression.codec", "spark.sql.session.timeZone"
    rules = "spark.sql.adaptive.optimizer.excludedRules"
    before = spark.conf.getAll
    # Of the driver's memory it is too late to choose.
    chosen = {codec: "gzip", zone: ZONE, rules: "some.Rule", "spark.driver.memory": "9g"}
    own = session(settings=chosen)
    assert own.conf.get(codec) == "gzip"
    # But for what the jobs rely on.
    assert own.conf.get(rules) == f"some.Rule,{spark.conf.get(rules)}"
    assert own.conf.get(zone) == "UTC"
    assert own.conf.get("spark.driver.memory") == spark.conf.get("spark.driver.memory")
    assert [record.message for record in caplog.records] == [
        "days and times of the tables are UTC's"
    ]
    assert spark.conf.getAll == before
    assert session() is spark
    assert prepared(own) is own


def test_a_master_cannot_be_chosen_for_a_session_that_is_there(spark: SparkSession) -> None:
    with pytest.raises(SessionError, match=r"--master yarn cannot be applied"):
        session(master="yarn")


def test_what_a_session_lacks_is_named() -> None:
    program = (
        "from pyspark.sql import SparkSession\n"
        "from tardis_machine.lake.session import session\n"
        "SparkSession.builder.master('local[1]').getOrCreate()\n"
        "session()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "SessionError: this Spark session has no Delta Lake" in done.stderr
    assert "--packages io.delta:delta-spark" in done.stderr


def test_interrupted_while_java_starts_nothing_is_left(tmp_path: Path) -> None:
    # What runs there is known by its folder, whoever its parent is by then.
    def running() -> list[Path]:
        found = [each for each in Path("/proc").iterdir() if each.name.isdigit()]
        return [each for each in found if _says(each / "cmdline", b"pyspark-shell", tmp_path)]

    process = subprocess.Popen(
        [sys.executable, "-m", "tardis_machine", "lake", "show", "trades", "--tables", "lake"],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_until(lambda: bool(running()), "no JVM")
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait(120) == 130
    wait_until(lambda: not running(), "the JVM is still there")


def _says(cmdline: Path, text: bytes, folder: Path) -> bool:
    with suppress(OSError):
        return text in cmdline.read_bytes() and (cmdline.parent / "cwd").readlink() == folder
    return False


@pytest.mark.parametrize("locale", [{"LC_ALL": "C"}, {}])
def test_a_command_leaves_nothing_where_it_runs_but_tables(
    tmp_path: Path, locale: dict[str, str]
) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tardis_machine", "lake", "backfill", "--sample-data"),
            *("--exchange", "bitmex", "--types", "trade", "--to-tables", "größe"),
            *("--from", "2024-03-01", "--to", "2024-03-01T00:01", "--master", "local[1]"),
        ],
        cwd=tmp_path,
        env={
            **{key: os.environ[key] for key in os.environ if key[:2] not in ("LC", "LA")},
            **locale,
        },
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [each.name for each in tmp_path.iterdir()] == ["größe"]


def test_a_day_that_fails_is_told_in_a_line(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "tardis_machine", "lake", "backfill", "--sample-data"),
            *("--exchange", "bitmex", "--types", "trade", "--to-tables", "lake"),
            *("--from", "2024-03-05", "--to", "2024-03-05T00:01", "--attempts", "1"),
            *("--master", "local[1]"),
        ],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert (
        "failed: bitmex 2024-03-05: HistoryError: there is only synthetic sample data of"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert " ERROR " not in done.stderr


def test_a_java_that_does_not_start_is_named(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tardis_machine", "lake", "show", "trades", "--tables", tmp_path],
        env={**os.environ, "JAVA_HOME": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert f"Spark could not start Java (of JAVA_HOME={tmp_path})" in done.stderr
    assert f"{tmp_path}/bin/java: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_jars_are_declared_exactly() -> None:
    assert all(len(coordinate.split(":")) == 3 for coordinate in COORDINATES)
    *fetched, own = jars()
    assert {path.suffix for path in fetched} == {".jar"}
    assert len(fetched) == len(COORDINATES)
    assert own == LOG_STORES
    assert own.is_file()


def test_production_settings_are_tested(spark: SparkSession) -> None:
    for setting in ("spark.sql.adaptive.enabled", "spark.sql.codegen.wholeStage"):
        assert spark.conf.get(setting) == "true"
    [row] = spark.sql(
        "SELECT current_timezone(), java_method('java.lang.System', 'getenv', 'TZ')"
    ).collect()
    assert tuple(row) == ("UTC", ZONE)


def _parent(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        command = Path(f"/proc/{os.getppid()}/cmdline").read_text().replace("\0", " ")
        yield pa.RecordBatch.from_pydict({"command": [command]})


def test_workers_are_forked_from_a_process_that_has_imported_what_they_need(
    spark: SparkSession,
) -> None:
    [row] = spark.range(0, 1, 1, 1).mapInArrow(_parent, "command STRING").collect()
    assert "-m tardis_machine.lake.workers" in row["command"]


ENDS_WITHIN_A_DAY = """
import os, signal, sys
from tardis_machine.cli import main
from tardis_machine.lake import backfill
write = backfill.UnitWriter.write
def write_with_a_jvm_that_ends(self):
    os.kill(self._tables.spark.sparkContext._gateway.proc.pid, signal.SIGKILL)
    return write(self)
backfill.UnitWriter.write = write_with_a_jvm_that_ends
sys.exit(main(["lake", *sys.argv[1:]]))
"""
"""The command, but for a JVM that is killed as the first day begins."""


def test_a_jvm_that_has_ended_is_named_and_what_to_do_about_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", ENDS_WITHIN_A_DAY, "backfill", "--sample-data"),
            *("--exchange", "bitmex", "--types", "trade", "--to-tables", tmp_path / "tables"),
            *("--from", "2024-03-01", "--to", "2024-03-01T00:01", "--master", "local[1]"),
        ],
        check=False,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 1, done.stderr
    said = "failed: bitmex 2024-03-01: Spark's JVM has ended, most likely for want of memory."
    assert f"{said} Give it more with --spark spark.driver.memory=4g" in done.stderr
    assert done.stderr.count("day failed") == 1  # another attempt would find no JVM either
    assert died(ValueError("anything else")) is None
    assert "ran out of memory" in str(died(ValueError("java.lang.OutOfMemoryError: …")))
