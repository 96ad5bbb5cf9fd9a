"""When Delta joins small files of the days that a commit adds to."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from tardis_machine.lake.session import died

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of a file each: Delta itself would wait for as many.
JOIN_EVERY: Final = 50

_COMPACTION: Final = "spark.databricks.delta.autoCompact.enabled"


@contextmanager
def joining(spark: "SparkSession", batch: int | None) -> Iterator[None]:
    """Have the commits of every 50th batch join small files; without a number, none.

    What the session itself says goes before.

    Delta's own count is of no use to a stream that was started again: of files that another
    process wrote it knows nothing until it has joined them, then counts them off, has less than
    none, and forgets the day. So it joins with every batch, and writes all of a day's small files
    anew each time.
    """
    if spark.conf.get(_COMPACTION, None) is not None:
        yield
        return
    wanted = batch is not None and batch % JOIN_EVERY == JOIN_EVERY - 1
    spark.conf.set(_COMPACTION, "true" if wanted else "false")
    try:
        yield
    finally:
        try:
            spark.conf.unset(_COMPACTION)
        except Exception as error:
            if not died(error):  # a session that has ended has no settings either
                raise
