"""One Spark session for all tests of the lake: as in production, but small and far from UTC."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.lake.session import session
from tardis_machine.lake.sources.tardis import register
from tardis_machine.lake.tables import Tables
from tests.lake.spark_settings import SMALL, ZONE


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the lake: Spark compiles its first jobs as they run, which takes long.

    Those that ask for the session are slow, but for the whole paths.
    """
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(900))
            item.add_marker(pytest.mark.spark)
            has_session = "spark" in getattr(item, "fixturenames", ())
            if has_session and not item.get_closest_marker("whole_path"):
                item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TZ", ZONE)  # for the JVM and its workers, which keep it
        started = session(master="local[2]", name="tests", settings=SMALL)
    register(started)
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be in a zone that is not UTC: no time may depend on it."""
    monkeypatch.setenv("TZ", ZONE)
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
def tables(spark: SparkSession, tmp_path: Path) -> Tables:
    return Tables(spark, str(tmp_path / "tables"))
