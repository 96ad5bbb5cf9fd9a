"""One small Spark session for all tests of the lake, and records made by hand."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from tardis_machine.lake.bronze import RECORD, schema_of
from tardis_machine.lake.session import session
from tardis_machine.lake.sources.tardis import register
from tardis_machine.lake.tables import Tables

os.environ.setdefault("TM_PARTS_DIR", str(Path(__file__).parents[2] / ".parts"))

_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    # Data of a few thousand rows: planning and compiling are what takes time.
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
    "spark.driver.defaultJavaOptions": _JVM,
    "spark.executor.defaultJavaOptions": _JVM,
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session(master="local[2]", name="tests", settings=SMALL)
    register(started)
    yield started
    started.stop()


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "tables"))


def records(
    spark: SparkSession, values: Sequence[bytes | None], *, bus: str = "test", offset: int = 0
) -> DataFrame:
    rows: list[tuple[Any, ...]] = [
        (bus, "events", 0, offset + index, None, None, None, value)
        for index, value in enumerate(values)
    ]
    return spark.createDataFrame(rows, schema_of(RECORD))
