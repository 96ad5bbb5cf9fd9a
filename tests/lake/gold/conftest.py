"""The bundled sample in Bronze, Silver and Gold, made once for all tests that only look at it."""

import pytest
from pyspark.sql import SparkSession

from tardis_machine.lake import backfill
from tardis_machine.lake.gold.refresh import refresh
from tardis_machine.lake.tables import Tables
from tardis_machine.lake.units import plan
from tests.lake.gold.sampled import EXCHANGES, MORE, TYPES, sample_replay, wanted


@pytest.fixture(scope="session")
def sampled(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Tables:
    tables = Tables(spark, str(tmp_path_factory.mktemp("sampled")))
    replays = [sample_replay(exchange, *TYPES, *MORE[exchange]) for exchange in EXCHANGES]
    report = backfill.run(tables, plan(replays), {"sampleData": "true"}, attempts=1)
    assert not report.failed
    refresh(tables, wanted())
    return tables
