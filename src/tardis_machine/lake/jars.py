"""The jars that the lake needs beside PySpark's own, declared once."""

from pathlib import Path
from typing import Final

from tardis_machine.parts import fetch_jars, parts_dir

DELTA: Final = "4.4.0"
SPARK: Final = "4.2.0"

COORDINATES: Final = (
    f"io.delta:delta-spark_4.2_2.13:{DELTA}",
    f"io.delta:delta-storage:{DELTA}",
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{SPARK}",
    # This one was not published with 4.2.0 everywhere; its interface has not changed since 4.0.0.
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.1",
)
"""Exact and complete: nothing these depend on needs to be fetched beside them."""


def packages() -> str:
    """Give the value of `spark.jars.packages` for a session that someone else starts."""
    return ",".join(COORDINATES)


def jars() -> list[Path]:
    """Give the jar files, fetched once and reused offline."""
    return fetch_jars(COORDINATES, parts_dir() / f"spark-{SPARK}-delta-{DELTA}")
