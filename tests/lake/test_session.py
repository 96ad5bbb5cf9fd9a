"""Sessions of our own and of others."""

import subprocess
import sys

import pytest
from pyspark.sql import SparkSession

from tardis_machine.lake import jars
from tardis_machine.lake.errors import SessionError
from tardis_machine.lake.session import LOCAL_SETTINGS, session


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    assert session().sparkContext is spark.sparkContext
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.conf.get("spark.driver.host") == LOCAL_SETTINGS["spark.driver.host"]
    # What a caller sets replaces the default.
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


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


def test_jars_are_declared_exactly() -> None:
    assert all(len(coordinate.split(":")) == 3 for coordinate in jars.COORDINATES)
    assert {path.suffix for path in jars.jars()} == {".jar"}
    assert len(jars.jars()) == len(jars.COORDINATES)
