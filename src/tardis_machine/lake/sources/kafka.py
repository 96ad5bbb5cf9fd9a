"""Kafka topics as a stream of records, by Spark's own connector."""

from typing import TYPE_CHECKING, Final

from tardis_machine.lake.records import RECORD

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from tardis_machine.lake.sources.streams import Asked
    from tardis_machine.publish.buses.kafka import KafkaConfig

_LOGIN_MODULES: Final = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
}


def stream(spark: "SparkSession", config: "KafkaConfig", asked: "Asked") -> "DataFrame":
    """Read every topic that the publisher of this configuration writes to."""
    reader = (
        spark.readStream.format("kafka")
        .option("subscribe", ",".join(config.routing().destinations))
        .option("startingOffsets", asked.starting)
        .option("maxOffsetsPerTrigger", asked.max_events)
        .option("failOnDataLoss", str(not asked.skip_lost).lower())
        .option("includeHeaders", "true")
    )
    for name, value in properties(config).items():
        reader = reader.option(f"kafka.{name}", value)
    return records(reader.load())


def records(rows: "DataFrame") -> "DataFrame":
    """Give the connector's rows the shape that all sources have."""
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    return rows.select(
        f.lit("kafka").alias("bus"),
        rows.topic.alias("destination"),
        "partition",
        "offset",
        "timestamp",
        "key",
        "headers",
        "value",
    ).select(*RECORD)


def properties(config: "KafkaConfig") -> dict[str, str]:
    """Translate the bus's settings into those of the Java client."""
    encrypted = "SSL" if config.ssl else "PLAINTEXT"
    found = {
        "bootstrap.servers": ",".join(config.brokers),
        "client.id": config.client_id,
        "security.protocol": f"SASL_{encrypted}" if config.sasl_mechanism else encrypted,
    }
    if config.ssl_ca:
        found |= {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": _text(config.ssl_ca)}
    if config.ssl_cert and config.ssl_key:
        found |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.certificate.chain": _text(config.ssl_cert),
            "ssl.keystore.key": _text(config.ssl_key),
        }
    if config.sasl_mechanism:
        login = (
            f"{_LOGIN_MODULES[config.sasl_mechanism]} required "
            f"username={_quoted(config.sasl_username)} password={_quoted(config.sasl_password)};"
        )
        found |= {"sasl.mechanism": config.sasl_mechanism, "sasl.jaas.config": login}
    return found


def _text(path: "Path") -> str:
    return path.read_text(encoding="utf-8")


def _quoted(value: str | None) -> str:
    escaped = (value or "").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
