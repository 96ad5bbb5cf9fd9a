"""Data files that a table's log names, but that are gone: no statement gets past them."""

import re
from typing import TYPE_CHECKING, Any, Final

from tardis_machine.lake.spans import listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE_GONE: Final = "FILE_NOT_EXIST"
"""What Spark's errors about such a file have in them."""
_FILE: Final = re.compile(r"[^/\s]+\.parquet")
_NAME: Final = "substring_index(path, '/', -1)"
_FOLDER: Final = f"substring(path, 1, length(path) - length({_NAME}))"


def forget(spark: "SparkSession", place: str, error: str) -> int:
    """Take files that are gone out of a table's log, of the days of which an error names one.

    Delta Lake has no statement for it. The commit removes these alone: what others add stays. Tells
    how many there were.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - only there is it to be had
    java: Any = spark._jsparkSession  # noqa: SLF001
    delta = jvm.org.apache.spark.sql.delta
    settings = java.sessionState().newHadoopConf()
    log = delta.DeltaLog.forTable(java, place)
    transaction = log.startTransaction()
    files = transaction.snapshot().allFiles()

    def are_among(what: str, values: set[str]) -> list[Any]:
        return (
            list(files.where(f"{what} IN ({listed(sorted(values))})").collect()) if values else []
        )

    named = are_among(_NAME, set(_FILE.findall(error)))
    folders = {file.path().removesuffix(file.path().rpartition("/")[2]) for file in named}
    removed = jvm.java.util.ArrayList()
    for file in are_among(_FOLDER, folders):
        path = file.absolutePath(log)
        if not path.getFileSystem(settings).exists(path):
            removed.add(file.remove())
    if len(removed):
        actions = jvm.scala.jdk.javaapi.CollectionConverters.asScala(removed).toSeq()
        update = getattr(getattr(delta, "DeltaOperations$ManualUpdate$"), "MODULE$")
        transaction.commit(actions, update)
    return len(removed)
