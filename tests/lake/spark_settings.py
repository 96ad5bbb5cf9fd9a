"""Settings of the Spark sessions under test."""

ZONE = "America/St_Johns"
"""A time zone whose days begin three and a half hours after those of UTC."""
# Spark starts faster with these; plans and generated code stay the same.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=200m"
SMALL = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": _JVM,
    "spark.executor.defaultJavaOptions": _JVM,
}
"""Spark settings for a small machine."""
