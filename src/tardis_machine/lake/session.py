"""The Spark session and its jars: built with sensible settings, or someone else's, checked."""

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tardis_machine.extras import require
from tardis_machine.lake.errors import SessionError
from tardis_machine.lake.jars import MissingJarError, fetch_jars, jars_dir, java

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.datasource import DataSource

log = logging.getLogger(__name__)

DELTA: Final = "4.4.0"
SPARK: Final = "4.2.0"
HADOOP: Final = "3.5.0"
"""The one that PySpark carries."""

COORDINATES: Final = (
    f"io.delta:delta-spark_4.2_2.13:{DELTA}",
    f"io.delta:delta-storage:{DELTA}",
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    # This one was not published with 4.2.0 everywhere; its interface has not changed since 4.0.0.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""The jars beside PySpark's own. Exact and complete: nothing these depend on needs to be fetched
beside them."""

_AWS_SDK: Final = "2.35.4"
S3_COORDINATES: Final = (
    f"org.apache.hadoop:hadoop-aws:{HADOOP}",
    "software.amazon.s3.analyticsaccelerator:analyticsaccelerator-s3:1.3.1",
)
S3_CLIENT_COORDINATES: Final = tuple(
    f"software.amazon.awssdk:{name}:{_AWS_SDK}"
    for name in ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
)
"""What tables on S3 need besides, with what these depend on: the parts of the SDK that are used, a
thirtieth of its bundle."""
LOG_STORES: Final = Path(__file__).with_name("log-stores.jar")
"""Made from `java/` by `make log-store`."""
S3_SETTINGS: Final[dict[str, str]] = {
    f"spark.delta.logStore.{scheme}.impl": "tardismachine.lake.ConditionalS3LogStore"
    for scheme in ("s3a", "s3")
}
"""What lets several drivers write to the same tables on S3."""
LOCAL_LOG_STORE: Final = ("spark.delta.logStore.file.impl", "tardismachine.lake.LocalLogStore")
"""What lets them on this machine, and keeps a batch from taking longer the more there were."""

_DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"
_ASCII: Final = ("C", "POSIX")
_LOG4J: Final = Path(__file__).with_name("log4j2.properties")

DELTA_SETTINGS: Final[dict[str, str]] = {
    "spark.sql.extensions": _DELTA_EXTENSION,
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
"""What Delta Lake needs of any session."""

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
_ZONE: Final = "spark.sql.session.timeZone"
# Set on the lake's own sessions. What is cloned from them, as each stream is, has it as well.
_OWN: Final = "spark.tardis-machine.own"
_ACTIVATING: Final = threading.Lock()
_LEFT_OUT: Final = "spark.sql.adaptive.optimizer.excludedRules"

TABLE_SETTINGS: Final[dict[str, str]] = {
    _ZONE: "UTC",
    # Filters on the `tardis` source reach history.
    PUSHDOWN: "true",
    # Twice Spark's own: envelopes are small, and each batch costs a round through Python.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.parquet.compression.codec": "zstd",
    # From 3 on it looks for repeats in event ids, finds some, and takes more time and bytes.
    "parquet.compression.codec.zstd.level": "2",
    # Twelve bytes that only some readers know, unless told otherwise.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Times and positions as differences, decimals by dictionary: a third less to keep.
    "parquet.writer.version": "v2",
    **{
        f"parquet.enable.dictionary#{column}": "false"
        for column in ("event_id", "local_ts", "event_ts", "position")
    },
    # A batch of a stream is read back at once, a few times: to compress it costs more than that.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
    # What a writer holds before it writes: a quarter of Parquet's own, since memory may be small.
    "parquet.block.size": str(32 << 20),
    # A batch is mostly of one exchange and day, which would all go through one task.
    "spark.databricks.delta.merge.repartitionBeforeWrite.enabled": "false",
    # Rows are counted on their way; this rule would take what is empty, and its counts, out.
    _LEFT_OUT: "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    # Rows of a few days are written as they come; without this they are sorted by day first.
    "spark.sql.maxConcurrentOutputFileWriters": "32",
    # Files of a long day stay small enough to be skipped by time and joined one at a time.
    "spark.sql.files.maxRecordsPerFile": "5000000",
}
"""Set on the lake's own sessions, unless something else was chosen for them; a session of the user
is never changed. Jobs rely on the zone, and on the rule that is left out."""

LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "2g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
    # A batch of a stream has more queries than Spark's 100: all would be compiled again each time.
    "spark.sql.codegen.cache.maxEntries": "2000",
    # Delta's 50 cost seconds a query on tables of a few thousand files; and a task costs a tenth
    # of a second, for each table and each commit.
    "spark.databricks.delta.snapshotPartitions": "1",
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Its commits would list all files in their checksums as well, which nothing here reads.
    "spark.databricks.delta.allFilesInCrc.enabled": "false",
    # Plans are described for a UI that is not there.
    "spark.sql.ui.explainMode": "simple",
    "spark.python.daemon.module": "tardis_machine.lake.workers",
    # Some tasks do not see what a session says of it, and would have workers of their own.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
    # A small day is over before what its plans run is worth the better compiler's time: that is
    # for what runs once a row, 40 times later than by default. The collector's barriers are short.
    "spark.driver.defaultJavaOptions": (
        "-XX:+IgnoreUnrecognizedVMOptions -XX:+UseParallelGC -XX:Tier4InvocationThreshold=200000 "
        "-XX:Tier4MinInvocationThreshold=20000 -XX:Tier4CompileThreshold=400000 "
        "-XX:Tier4BackEdgeThreshold=1000000"
    ),
    "spark.log.level": "ERROR",
}
"""Defaults on this machine; a setting given to `session` replaces its default."""


def packages() -> str:
    """Give the value of `spark.jars.packages` for a session that someone else starts."""
    return ",".join(COORDINATES)


def jars(*, s3: bool = False) -> list[Path]:
    """Give the jar files, fetched once and reused offline; with `s3` those for tables there."""
    found = fetch_jars(COORDINATES, jars_dir() / f"spark-{SPARK}-delta-{DELTA}")
    if s3:
        hadoop = jars_dir() / f"hadoop-aws-{HADOOP}"
        found += fetch_jars(S3_COORDINATES, hadoop)
        found += fetch_jars(
            S3_CLIENT_COORDINATES, hadoop.with_name(f"aws-sdk-{_AWS_SDK}"), transitive=True
        )
    return [*found, LOG_STORES]


def on_s3(root: str) -> bool:
    """Tell whether tables are on S3."""
    return root.startswith(("s3a://", "s3://"))


def session(
    *,
    master: str | None = None,
    name: str = "tardis-machine",
    settings: Mapping[str, str] | None = None,
    s3: bool = False,
) -> "SparkSession":
    """Return a session that can read and write the tables.

    If there is a session already, by this process, SPARK_REMOTE or spark-submit, the session that
    is returned is another one on the same Spark application (see `prepared`). Otherwise one is
    started on `master` (local[*] when not given) with the jars, fetched once; `s3` is for tables
    on S3.
    """
    require("pyspark", extra="spark")
    from pyspark.sql import SparkSession  # noqa: PLC0415 - an optional dependency

    spark = _running()
    submitted = "SPARK_REMOTE" in os.environ or "PYSPARK_GATEWAY_PORT" in os.environ
    if master is not None and (spark is not None or submitted):
        raise SessionError(
            f"--master {master} cannot be applied: there is a Spark session already, by "
            "SPARK_REMOTE, spark-submit or this process"
        )
    if spark is not None:
        spark = prepared(spark, settings)
    else:
        chosen = dict(settings or {})
        if not submitted:
            chosen = _own_settings(master, chosen, s3=s3)
            _know_letters()
        builder = SparkSession.builder.appName(name)
        for key, value in chosen.items():
            builder = builder.config(key, value)
        spark = _started(builder)
        _expect_delta(spark)
        _set(spark, _table_settings(settings))
    if s3:
        _check_s3(spark)
    return spark


def _running() -> "SparkSession | None":
    """Return the session of this process, if one has been started and not been stopped."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency
    from pyspark.sql import SparkSession  # noqa: PLC0415

    try:
        spark = SparkSession.active()
    except PySparkException:
        return None
    is_stopped = _is_classic(spark) and spark.sparkContext._jsc is None  # noqa: SLF001
    return None if is_stopped else spark


def _know_letters() -> None:
    """Have Java know the names of folders that Python knows: it takes them from the locale.

    In one of plain ASCII Python reads UTF-8 all the same, and tells its children so but for LC_ALL.
    """
    if os.environ.get("LC_ALL") in _ASCII:
        os.environ["LC_ALL"] = "C.UTF-8"


def _started(builder: "SparkSession.Builder") -> "SparkSession":
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - an optional dependency

    try:
        with _interrupted_later():
            return builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        home = os.environ.get("JAVA_HOME")
        which = f"of JAVA_HOME={home}" if home else f"{java()}"
        raise SessionError(
            f"Spark could not start Java ({which}), which said why above. It takes Java 17 or "
            "newer, the one that JAVA_HOME names if that is set, else the one on the PATH"
        ) from error


@contextmanager
def _interrupted_later() -> Iterator[None]:
    """Let an interrupt wait until there is a session, or a second one comes.

    While PySpark starts its JVM it removes, when interrupted, the folder in which that would tell
    where it listens; the JVM then stays for good, and nobody knows of it.
    """
    before = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or before is not signal.default_int_handler:
        yield
        return
    interrupted = threading.Event()

    def note(*_: object) -> None:
        interrupted.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        # A new session has its own by now.
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, before)
    if interrupted.is_set():
        raise KeyboardInterrupt


def prepared(spark: "SparkSession", chosen: Mapping[str, str] | None = None) -> "SparkSession":
    """Return a session of the lake's own beside a session of the user, which is not changed.

    It has the user's settings, temporary views and data sources as they are now, and its own time
    zone (UTC) and settings of how tables are written, unless `chosen` has others. A session that
    is the lake's own is returned as it is, unless something is chosen.
    """
    if not chosen and is_own(spark):
        return spark
    _expect_delta(spark)
    own = _cloned(spark)
    _set(own, {**(chosen or {}), **_table_settings(chosen)})
    return own


def is_own(spark: "SparkSession") -> bool:
    """Whether a session has the lake's settings."""
    return spark.conf.get(_OWN, None) is not None


def moved(rows: "DataFrame", spark: "SparkSession") -> "DataFrame":
    """Return the same rows as a DataFrame of another session of the application."""
    if rows.sparkSession is spark or not _is_classic(spark):
        return rows
    java: Any = spark._jvm  # noqa: SLF001 - PySpark does not offer it
    dataset = java.org.apache.spark.sql.classic.Dataset
    plan = rows._jdf.queryExecution().analyzed()  # noqa: SLF001
    there = dataset.ofRows(spark._jsparkSession, plan)  # noqa: SLF001
    return type(rows)(there, spark)


def frame(spark: "SparkSession", lines: Sequence[tuple[Any, ...]], schema: str) -> "DataFrame":
    """Make a DataFrame of some lines; the process's active session stays the one that it was."""
    with _activated(spark):
        return spark.createDataFrame(lines, schema)


def register(spark: "SparkSession", source: "type[DataSource]") -> None:
    """Make a data source known to a session, even if the active session has one of its name."""
    with _activated(spark):
        spark.dataSource.register(source)


@contextmanager
def _activated(spark: "SparkSession") -> Iterator[None]:
    """Make a session the active one of the process and of this thread, for a moment.

    PySpark itself makes it that for good with `createDataFrame`.
    """
    if not _is_classic(spark):
        yield
        return
    kind: Any = type(spark)
    java = kind._get_j_spark_session_class(spark._jvm)  # noqa: SLF001 - PySpark does not offer it
    with _ACTIVATING:
        active, of_thread = kind._activeSession, java.getActiveSession()  # noqa: SLF001
        try:
            kind._activeSession = spark  # noqa: SLF001
            java.setActiveSession(spark._jsparkSession)  # noqa: SLF001
            yield
        finally:
            kind._activeSession = active  # noqa: SLF001
            if of_thread.isDefined():
                java.setActiveSession(of_thread.get())
            else:
                java.clearActiveSession()


def _is_classic(spark: "SparkSession") -> bool:
    """Whether a session is not one of Spark Connect."""
    return hasattr(spark, "_jsparkSession")


def _cloned(spark: "SparkSession") -> "SparkSession":
    if not _is_classic(spark):
        clone: SparkSession = spark.cloneSession()  # type: ignore[attr-defined] # Connect's
        return clone
    java = spark._jsparkSession.cloneSession()  # noqa: SLF001 - PySpark offers it for Connect only
    return type(spark)(spark.sparkContext, java)


def _expect_delta(spark: "SparkSession") -> None:
    if _DELTA_EXTENSION not in (spark.conf.get("spark.sql.extensions", "") or ""):
        settings = " ".join(f"--conf {key}={value}" for key, value in DELTA_SETTINGS.items())
        raise SessionError(
            "this Spark session has no Delta Lake. Start it with "
            f"--packages {packages()} {settings}"
        )


def _table_settings(chosen: Mapping[str, str] | None) -> dict[str, str]:
    """Return the lake's settings, with those that were chosen in their place."""
    own = dict(chosen or {})
    if own.pop(_ZONE, "UTC") != "UTC":
        log.warning("days and times of the tables are UTC's", extra={"setting": _ZONE})
    if _LEFT_OUT in own:
        own[_LEFT_OUT] = _joined(own[_LEFT_OUT], [TABLE_SETTINGS[_LEFT_OUT]])
    return {_OWN: "true", **{key: own.get(key, value) for key, value in TABLE_SETTINGS.items()}}


def _set(spark: "SparkSession", settings: Mapping[str, str]) -> None:
    """Set what a session can be told while Spark runs; the rest stays as Spark was started."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    for key, value in settings.items():
        with suppress(PySparkException):
            spark.conf.set(key, value)


def _check_s3(spark: "SparkSession") -> None:
    """Say when the tables are not safe from a second driver."""
    for name, value in S3_SETTINGS.items():
        if spark.conf.get(name, None) is None:
            log.warning(
                "only one driver may write to tables on S3 with this session",
                extra={"otherwise": f"--jars {LOG_STORES} --conf {name}={value}"},
            )
            return


def parallelism(spark: "SparkSession") -> int:
    """Tell how many tasks run at once, or might, where Spark Connect hides it."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - an optional dependency

    try:
        return max(spark.sparkContext.defaultParallelism, 1)
    except PySparkException:
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 1)


def died(error: BaseException) -> str | None:
    """Say what to do if an error means that Spark's own process has ended."""
    from py4j.protocol import Py4JError, Py4JJavaError  # noqa: PLC0415 - an optional dependency

    memory = "Java heap space" in str(error) or "OutOfMemoryError" in str(error)
    # Whatever the JVM itself raises says so; all else is about talking to it.
    silent = isinstance(error, Py4JError) and not isinstance(error, Py4JJavaError)
    if not memory and not silent and not isinstance(error, ConnectionError):
        return None
    what = "ran out of memory" if memory else "has ended, most likely for want of memory"
    return (
        f"Spark's JVM {what}. Give it more with --spark spark.driver.memory=4g, or let fewer tasks "
        "run at once with --master local[1]"
    )


def _own_settings(
    master: str | None, given: Mapping[str, str], *, s3: bool = False
) -> dict[str, str]:
    try:
        java()
    except MissingJarError as error:
        raise SessionError(f"Spark needs Java: {error}") from error
    where = master or given.get("spark.master") or os.environ.get("SPARK_MASTER") or "local[*]"
    # Workers must run this very Python, and everything on loopback unless told otherwise.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    local = where.startswith("local")
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        # A cluster of processes on this machine starts its executors from here.
        pyspark = require("pyspark", extra="spark")
        os.environ.setdefault("SPARK_HOME", str(Path(str(pyspark.__file__)).parent))
    chosen = {
        "spark.master": where,
        **DELTA_SETTINGS,
        **(S3_SETTINGS if s3 else {}),
        **(LOCAL_SETTINGS if local else {}),
        **given,
    }
    if "spark.driver.extraJavaOptions" in given and "spark.driver.defaultJavaOptions" not in given:
        # Whoever chooses flags of the JVM has them alone: two collectors are refused.
        chosen.pop("spark.driver.defaultJavaOptions", None)
    if "spark.jars.packages" not in chosen:
        found = map(str, jars(s3=s3))
        if where.startswith("local["):
            # No copies for executors, and classes are found at once, not after all other jars.
            chosen.setdefault(*LOCAL_LOG_STORE)
            path = [chosen.get("spark.driver.extraClassPath"), *found]
            chosen["spark.driver.extraClassPath"] = os.pathsep.join(filter(None, path))
        else:
            chosen["spark.jars"] = _joined(chosen.get("spark.jars"), found)
    if "spark.sql.extensions" in given:
        chosen["spark.sql.extensions"] = _joined(given["spark.sql.extensions"], [_DELTA_EXTENSION])
    return chosen


def _joined(given: str | None, more: "map[str] | list[str]") -> str:
    return ",".join(dict.fromkeys([*(given.split(",") if given else []), *more]))
