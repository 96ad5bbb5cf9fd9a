"""A cluster whose workers have neither the driver's disk nor its environment; tables on S3."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tardis_machine.cli import submit
from tardis_machine.lake.session import DELTA_SETTINGS, S3_SETTINGS, jars
from tests.support.command import environment
from tests.support.servers.aws import KEYS, REGION, Ministack
from tests.support.servers.redis import RedisServer
from tests.support.servers.spark import SPARK_HOME, SparkCluster, environment_archive

pytestmark = pytest.mark.cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    made = SparkCluster(tmp_path / "cluster")
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture
def bucket(ministack: Ministack) -> str:
    name = f"lake-{uuid4()}"
    where = {"LocationConstraint": REGION}
    ministack.client("s3").create_bucket(Bucket=name, CreateBucketConfiguration=where)
    return name


def s3a(ministack: Ministack) -> dict[str, str]:
    return {
        "fs.s3a.endpoint": ministack.url,
        "fs.s3a.endpoint.region": REGION,
        "fs.s3a.path.style.access": "true",
        "fs.s3a.access.key": KEYS["access_key_id"],
        "fs.s3a.secret.key": KEYS["secret_access_key"],
    }


def rows_in(client: Any, bucket: str, table: str) -> int:
    """Count the rows of a table by its log alone."""
    prefix = f"lake/{table}/_delta_log/"
    count = 0
    for each in client.list_objects_v2(Bucket=bucket, Prefix=prefix).get("Contents", ()):
        if each["Key"].endswith(".json"):
            body = client.get_object(Bucket=bucket, Key=each["Key"])["Body"].read()
            for line in body.splitlines():
                added = json.loads(line).get("add")
                count += json.loads(added["stats"])["numRecords"] if added else 0
    return count


def test_spark_submit_ships_all_that_workers_need(
    cluster: SparkCluster, ministack: Ministack, bucket: str, redis: RedisServer, tmp_path: Path
) -> None:
    archive = environment_archive(tmp_path)
    settings = {
        **DELTA_SETTINGS,
        **S3_SETTINGS,
        **{f"spark.hadoop.{name}": value for name, value in s3a(ministack).items()},
        "spark.executor.memory": "512m",
        "spark.driver.memory": "1g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.databricks.delta.snapshotPartitions": "2",
        "spark.executorEnv.TM_CACHE_DIR": "cache",
    }
    stream = f"cluster-{uuid4()}"
    job = subprocess.Popen(
        [
            SPARK_HOME / "bin" / "spark-submit",
            *("--master", cluster.master, "--archives", f"{archive}#env"),
            *("--jars", ",".join(map(str, jars(s3=True)))),
            *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
            *(submit.__file__, "backfill", "--sample-data", "--exchange", "bitmex,deribit"),
            *("--types", "trade", "--from", "2024-03-01", "--to", "2024-03-01T00:01"),
            *("--to-tables", f"s3a://{bucket}/lake"),
            *("--to-bus", "redis", "--redis-url", redis.url, "--redis-stream", stream),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        # Where the archive is unpacked: the driver plans with the Python that tasks run on.
        cwd=tmp_path,
        env=environment(
            TM_JARS_DIR=os.environ["TM_JARS_DIR"],
            PYSPARK_PYTHON="./env/bin/python",
            PYSPARK_DRIVER_PYTHON=sys.executable,
            SPARK_HOME=str(SPARK_HOME),
            SPARK_LOCAL_IP="127.0.0.1",
        ),
    )
    said, _ = job.communicate(timeout=800)
    assert job.returncode == 0, said + cluster.log()[-2000:]
    assert said.count("2/2 days done") == 2, said
    client = ministack.client("s3")
    trades = rows_in(client, bucket, "silver/trades")
    assert trades == rows_in(client, bucket, "bronze/events") > 0
    asked = redis.client()
    assert asked.xlen(stream) == trades
    asked.close()
    for folder in cluster.folders:
        # Each ran an executor, on what was sent to it.
        assert list(folder.glob("work/app-*/*/env/bin/python")), list(folder.rglob("*"))[:50]


def test_two_drivers_cannot_both_make_a_commit_on_s3(
    spark: SparkSession, ministack: Ministack, bucket: str
) -> None:
    jvm: Any = spark.sparkContext._jvm
    found = jars(s3=True)
    urls = spark.sparkContext._gateway.new_array(jvm.java.net.URL, len(found))
    for number, jar in enumerate(found):
        urls[number] = jvm.java.io.File(str(jar)).toURI().toURL()
    loader = jvm.java.net.URLClassLoader(urls, jvm.java.lang.ClassLoader.getSystemClassLoader())
    configuration = jvm.org.apache.hadoop.conf.Configuration()
    configuration.setClassLoader(loader)
    for name, value in s3a(ministack).items():
        configuration.set(name, value)
    [kind] = set(S3_SETTINGS.values())
    made = loader.loadClass(kind).getConstructors()[0]
    given = spark.sparkContext._gateway.new_array(jvm.java.lang.Object, 1)
    given[0] = configuration
    path = jvm.org.apache.hadoop.fs.Path(f"s3a://{bucket}/table/_delta_log/0.json")

    def commit(driver: Any, text: str) -> None:
        driver.write(path, jvm.java.util.List.of(text).iterator(), False, configuration)

    drivers = [made.newInstance(given) for _ in range(2)]
    commit(drivers[0], "first")
    with pytest.raises(Py4JJavaError, match=r"java.nio.file.FileAlreadyExistsException"):
        commit(drivers[1], "second")
    # The same words are one's own: an answer was lost, and the client has asked again.
    commit(drivers[0], "first")
    [line] = list(drivers[1].read(path, configuration))
    assert line == "first"
