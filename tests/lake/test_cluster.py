"""Tables on S3, written to by several drivers."""

from typing import Any
from uuid import uuid4

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tardis_machine.lake.session import S3_SETTINGS, jars
from tests.servers.aws import KEYS, REGION, Ministack


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
