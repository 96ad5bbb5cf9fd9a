"""What the buses' settings refuse at start, and what they warn of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.config import ConfigError, Loaded, load
from tardis_machine.publish.buses import BUSES, bus_config
from tardis_machine.publish.buses.kafka import KafkaConfig
from tardis_machine.publish.buses.kinesis import KinesisConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.buses.redis import RedisConfig
from tardis_machine.publish.buses.sqs import SQSConfig

KAFKA = ("--kafka-brokers", "h:9092", "--kafka-topic", "t")
NATS = ("--nats-servers", "nats://h:4222", "--nats-subject", "s")
KINESIS = ("--kinesis-stream", "s")
SQS = ("--sqs-queue-url", "https://sqs.eu-west-1.amazonaws.com/1/q")
REDIS = ("--redis-stream", "s")


def loaded(*arguments: str, environ: Mapping[str, str] | None = None) -> Loaded:
    return load([bus.config_type for bus in BUSES.values()], arguments, environ or {})


def test_nothing_set_turns_nothing_on():
    ambient = {"AWS_REGION": "eu-west-1", "KAFKA_BROKERS": "h:1", "NATS_URL": "nats://h"}

    assert not any(config.enabled for config in loaded(environ=ambient).sections)


@pytest.mark.parametrize(
    ("arguments", "flag", "said"),
    [
        (["--kafka-topic", "t"], "--kafka-brokers", "--kafka-topic is set"),
        (["--kafka-brokers", "h:1"], "--kafka-topic", "--kafka-brokers is set"),
        (
            ["--kafka-brokers", "h:1", "--kafka-topic-routing", "trade:x"],
            "--kafka-topic",
            "is missing",
        ),
        (["--nats-subject", "s"], "--nats-servers", "--nats-subject is set"),
        (["--nats-servers", "nats://h"], "--nats-subject", "is missing"),
        (["--nats-subject-routing", "trade:x"], "--nats-servers", "is missing"),
        (["--file-include-payloads", "trade"], "--file-path", "is missing"),
        ([*KAFKA, "--kafka-sasl-mechanism", "PLAIN"], "--kafka-sasl-username", "is missing"),
        ([*KAFKA, "--kafka-sasl-username", "u"], "--kafka-sasl-password", "is missing"),
        (
            [*KAFKA, "--kafka-schema-registry-auto-register"],
            "--kafka-schema-registry-auto-register",
            "--kafka-schema-registry-url too",
        ),
        ([*NATS, "--nats-user", "u"], "--nats-pass", "is missing"),
        ([*NATS, "--nats-create"], "--nats-create", "--nats-stream too"),
        (["--kinesis-stream-routing", "trade:x"], "--kinesis-stream", "is missing"),
        (["--kinesis-region", "eu-west-1"], "--kinesis-stream", "is missing"),
        ([*KINESIS, "--kinesis-access-key-id", "a"], "--kinesis-secret-access-key", "is missing"),
        ([*KINESIS, "--kinesis-session-token", "t"], "--kinesis-access-key-id", "is missing"),
        (["--sqs-queue-routing", "trade:https://h/1/q"], "--sqs-queue-url", "is missing"),
        ([*SQS, "--sqs-secret-access-key", "a"], "--sqs-access-key-id", "is missing"),
        (["--redis-host", "h"], "--redis-stream", "--redis-host is set"),
        (["--redis-stream-routing", "trade:x"], "--redis-stream", "is missing"),
    ],
)
def test_a_bus_half_configured_is_refused(arguments: Sequence[str], flag: str, said: str):
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments)

    assert caught.value.flag == flag
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "value"),
    [
        ([*KAFKA, "--kafka-topic-routing", "trades:x"], "trades"),
        ([*KAFKA, "--kafka-topic-routing", "trade"], "trade"),
        ([*KAFKA, "--kafka-topic-routing", "trade:"], "trade:"),
        ([*KAFKA, "--kafka-topic-routing", "trade:a b"], "a b"),
        ([*KAFKA, "--kafka-include-payloads", "trade,nope"], "nope"),
        ([*KAFKA, "--kafka-key-template", "{{symbl}}"], "{{symbl}}"),
        ([*KAFKA, "--kafka-static-headers", "nocolon"], "nocolon"),
        ([*KAFKA, "--kafka-acks", "2"], "2"),
        ([*KAFKA, "--kafka-compression", "rar"], "rar"),
        ([*KAFKA, "--kafka-max-batch-size", "0"], "0"),
        ([*KAFKA, "--kafka-max-batch-size", "many"], "many"),
        ([*KAFKA, "--kafka-max-batch-delay-ms", "-1"], "-1"),
        ([*KAFKA, "--kafka-brokers", "http://h:1"], "http://h:1"),
        ([*KAFKA, "--kafka-topic", "a/b"], "a/b"),
        ([*KAFKA, "--kafka-ssl-ca", "ca.pem"], "ca.pem"),
        ([*KAFKA, "--kafka-ssl", "--kafka-ssl-ca", "/no/such.pem"], "/no/such.pem"),
        ([*KAFKA, "--kafka-config", "acks=1"], "acks"),
        ([*KAFKA, "--kafka-config", "message.timeout.ms=5"], "message.timeout.ms"),
        ([*KAFKA, "--kafka-schema-registry-url", "h:8081"], "h:8081"),
        ([*NATS, "--nats-subject", "a.*"], "a.*"),
        ([*NATS, "--nats-subject", "a..b"], "a..b"),
        ([*NATS, "--nats-subject-template", "a.{{symbol}}.>"], "a.{{symbol}}.>"),
        ([*NATS, "--nats-subject-template", "{{nope}}"], "{{nope}}"),
        ([*NATS, "--nats-subject-routing", "trade:a b"], "a b"),
        ([*NATS, "--nats-include-payloads", "nope"], "nope"),
        ([*NATS, "--nats-mode", "stan"], "stan"),
        ([*NATS, "--nats-creds", "/no/such.creds"], "/no/such.creds"),
        ([*NATS, "--nats-max-batch-delay-ms", "99999999"], "99999999"),
        ([*KINESIS, "--kinesis-stream", "a b"], "a b"),
        ([*KINESIS, "--kinesis-stream-routing", "trade:a/b"], "a/b"),
        ([*KINESIS, "--kinesis-endpoint-url", "localhost:4566"], "localhost:4566"),
        ([*KINESIS, "--kinesis-order", "loose"], "loose"),
        ([*KINESIS, "--kinesis-max-batch-size", "501"], "501"),
        ([*KINESIS, "--kinesis-max-batch-bytes", "11MiB"], "11534336"),
        ([*KINESIS, "--kinesis-partition-key-template", "{{nope}}"], "{{nope}}"),
        ([*KINESIS, "--kinesis-static-headers", "a b:c"], "a b"),
        ([*SQS, "--sqs-queue-url", "bronze"], "bronze"),
        ([*SQS, "--sqs-queue-routing", "trade:bronze"], "bronze"),
        ([*SQS, "--sqs-max-batch-size", "11"], "11"),
        ([*SQS, "--sqs-max-batch-bytes", "2MiB"], "2097152"),
        ([*SQS, "--sqs-message-group-template", "{{nope}}"], "{{nope}}"),
        ([*SQS, "--sqs-attribute-templates", "a:{{nope}}"], "{{nope}}"),
        ([*REDIS, "--redis-port", "0"], "0"),
        ([*REDIS, "--redis-max-len", "-1"], "-1"),
        ([*REDIS, "--redis-max-batch-size", "0"], "0"),
        ([*REDIS, "--redis-tls", "--redis-tls-ca", "/no/such.pem"], "/no/such.pem"),
    ],
)
def test_a_bad_value_is_refused_with_its_flag(arguments: Sequence[str], value: str):
    flag = [argument for argument in arguments if argument.startswith("--")][-1]

    with pytest.raises(ConfigError) as caught:
        loaded(*arguments)

    assert caught.value.flag == flag
    assert value in str(caught.value)


def test_an_unknown_property_of_librdkafka_is_refused_in_its_words():
    with pytest.raises(ConfigError, match=r'--kafka-config.*No such.*"no.such.thing"'):
        loaded(*KAFKA, "--kafka-config", "no.such.thing=1")


def test_two_ways_to_log_in_are_refused():
    secret = {"TM_NATS_TOKEN": "hush", "TM_NATS_PASS": "hush"}

    with pytest.raises(ConfigError, match=r"--nats-token.*--nats-user") as caught:
        loaded(*NATS, "--nats-user", "u", environ=secret)

    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        [*NATS, "--nats-servers", "nats://u:hush@h:4222"],
        [*KAFKA, "--kafka-schema-registry-url", "http://u:hush@h:8081"],
        [*KAFKA, "--kafka-config", "sasl.password=hush"],
        [*REDIS, "--redis-url", "redis://u:hush@h:6379"],
        [*KINESIS, "--kinesis-endpoint-url", "http://u:hush@h:4566"],
        [*SQS, "--sqs-queue-url", "https://u:hush@h/1/q"],
        [*SQS, "--sqs-queue-routing", "trade:u:hush@h/1/q"],
        [*SQS, "--sqs-queue-url", "u:hush@h/1/q"],
        [*NATS, "--nats-servers", "u:hush@h:4222"],
        [*NATS, "--nats-servers", "hush@h:4222"],
        [*NATS, "--nats-servers", "nats://hush@h:4222"],
        [*KAFKA, "--kafka-brokers", "u:hush@h:9092"],
        [*KAFKA, "--kafka-schema-registry-url", "u:hush@h:8081"],
        [*REDIS, "--redis-url", "u:hush@h/0"],
        [*REDIS, "--redis-url", "redis://u:p@s/hush@h:6379"],
        [*REDIS, "--redis-url", "redis://h/0?db=1&password=hush"],
        [*REDIS, "--redis-url", "redis://u:hush@h/0?client_secret=hush&db=1"],
        [*REDIS, "--redis-host", "u:hush@h"],
        [*KINESIS, "--kinesis-endpoint-url", "u:hush@h:4566"],
    ],
)
def test_a_password_in_the_wrong_place_is_refused_and_not_repeated(arguments: Sequence[str]):
    with pytest.raises(ConfigError) as caught:
        loaded(*arguments)

    assert "hush" not in str(caught.value)
    assert "hush" not in str(caught.value.value)


def test_the_rest_of_a_refused_address_is_repeated():
    with pytest.raises(ConfigError, match=r"--nats-servers 'nats://\*\*\*@h:4222': expected"):
        loaded(*NATS, "--nats-servers", "nats://u:hush@h:4222")
    with pytest.raises(ConfigError, match=r"'redis://h/0\?password=\*\*\*&db=1': expected"):
        loaded(*REDIS, "--redis-url", "redis://h/0?password=hush&db=1")


def test_a_secret_comes_from_a_file_and_is_never_shown(tmp_path: Path):
    (tmp_path / "password").write_text("hush\n")
    found = loaded(
        *(*KAFKA, "--kafka-sasl-mechanism", "PLAIN", "--kafka-sasl-username", "u"),
        *("--kafka-ssl", "--kafka-config", "ssl.key.password=whisper"),
        environ={"TM_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "password")},
    )

    assert found[KafkaConfig].sasl_password == "hush"
    assert "hush" not in str(found.redacted())
    assert "whisper" not in str(found.redacted())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([*KAFKA, "--kafka-acks", "1"], "--kafka-acks 1"),
        ([*KAFKA, "--kafka-acks", "0"], "--kafka-acks 0"),
        ([*KAFKA, "--no-kafka-idempotent"], "--kafka-idempotent"),
        ([*NATS, "--nats-mode", "core"], "--nats-mode core"),
        (
            [*KAFKA, "--kafka-include-payloads", "trade", "--kafka-topic-routing", "quote:q"],
            "--kafka-include-payloads leaves out quote",
        ),
    ],
)
def test_what_weakens_the_promise_warns(arguments: Sequence[str], said: str):
    [warning] = loaded(*arguments).warnings

    assert said in warning


@pytest.mark.parametrize(
    ("arguments", "secret", "said"),
    [
        ([*NATS, "--nats-user", "u"], "TM_NATS_PASS", "--nats-pass goes to nats://h:4222 in clear"),
        (NATS, "TM_NATS_TOKEN", "--nats-token goes to nats://h:4222 in clear"),
        (
            [*KAFKA, "--kafka-sasl-mechanism", "PLAIN", "--kafka-sasl-username", "u"],
            "TM_KAFKA_SASL_PASSWORD",
            "sends the password in clear",
        ),
        (
            [
                *(*KAFKA, "--kafka-schema-registry-url", "http://h:8081"),
                *("--kafka-schema-registry-auth-username", "u"),
            ],
            "TM_KAFKA_SCHEMA_REGISTRY_AUTH_PASSWORD",
            "http://h:8081 sends the password in clear",
        ),
        (REDIS, "TM_REDIS_PASSWORD", "--redis-password goes to redis://localhost:6379 in clear"),
    ],
)
def test_credentials_in_clear_warn(arguments: Sequence[str], secret: str, said: str):
    [warning] = loaded(*arguments, environ={secret: "hush"}).warnings

    assert said in warning
    assert "hush" not in warning


@pytest.mark.parametrize("mode", [0o644, 0o604, 0o640, 0o600])
def test_a_secret_file_that_others_can_read_warns(tmp_path: Path, mode: int):
    creds, password = tmp_path / "writer.creds", tmp_path / "password"
    for file in (creds, password):
        file.write_text("hush")
        file.chmod(mode)

    found = loaded(
        *(*NATS, "--nats-creds", str(creds)),
        *(*KAFKA, "--kafka-ssl", "--kafka-sasl-mechanism", "PLAIN", "--kafka-sasl-username", "u"),
        environ={"TM_KAFKA_SASL_PASSWORD_FILE": str(password)},
    )

    expected = [str(password), str(creds)] if mode & 0o004 else []
    assert len(found.warnings) == len(expected)
    for path, warning in zip(expected, found.warnings, strict=True):
        assert f"{path} can be read by others" in warning


def test_settings_print_without_their_secrets():
    kafka = KafkaConfig(
        brokers=("h:1",), topic="t", sasl_password="hush", config={"ssl.key.password": "whisper"}
    )
    nats = NatsConfig(servers=("h",), subject="s", token="hush")
    keys = {"access_key_id": "hush", "secret_access_key": "hush", "session_token": "hush"}
    kinesis = KinesisConfig(stream="s", **keys)
    sqs = SQSConfig(queue_url="https://h/1/q", **keys)
    redis = RedisConfig(stream="s", password="hush")

    for config in (kafka, nats, kinesis, sqs, redis):
        assert "hush" not in repr(config) + str(config)
        assert "whisper" not in repr(config)
    assert repr(nats).startswith("NatsConfig(servers=('h',), user=None, pass_=None, token='***'")


def test_an_encrypted_websocket_is_asked_for_by_its_name(tmp_path: Path):
    (tmp_path / "ca.pem").touch()

    with pytest.raises(ConfigError, match="expected wss://"):
        loaded(
            *("--nats-servers", "ws://h:80", "--nats-subject", "s"),
            *("--nats-tls-ca", str(tmp_path / "ca.pem")),
        )


def test_the_defaults_warn_of_nothing():
    assert loaded(*KAFKA, *NATS, *KINESIS, *SQS, *REDIS).warnings == []


def test_a_token_in_clear_warns():
    keys = {"TM_SQS_ACCESS_KEY_ID": "hush", "TM_SQS_SECRET_ACCESS_KEY": "hush"}
    environ = {**keys, "TM_SQS_SESSION_TOKEN": "hush"}

    [warning] = loaded(*SQS, "--sqs-endpoint-url", "http://h:4566", environ=environ).warnings

    assert "--sqs-session-token goes to http://h:4566 in clear" in warning
    assert loaded(*SQS, "--sqs-endpoint-url", "http://h:4566", environ=keys).warnings == []
    assert "hush" not in str(loaded(*SQS, environ=environ).redacted())


@pytest.mark.parametrize("name", ["kafka", "nats", "kinesis", "sqs", "redis"])
def test_the_flags_of_the_issue_are_there(name: str):
    flags = {
        "kafka": "brokers topic topic-routing include-payloads key-template static-headers "
        "meta-headers-prefix client-id ssl ssl-ca ssl-cert ssl-key sasl-mechanism sasl-username "
        "sasl-password acks idempotent compression max-batch-size max-batch-delay-ms create config "
        "schema-registry-url schema-registry-auth-username schema-registry-auth-password "
        "schema-registry-auto-register",
        "nats": "servers user pass token creds tls-ca tls-cert tls-key subject subject-routing "
        "include-payloads subject-template static-headers mode stream create max-batch-size "
        "max-batch-delay-ms",
        "kinesis": "stream region endpoint-url access-key-id secret-access-key session-token "
        "stream-routing include-payloads partition-key-template static-headers order create "
        "max-batch-size max-batch-bytes max-batch-delay-ms",
        "sqs": "queue-url region endpoint-url access-key-id secret-access-key session-token "
        "queue-routing include-payloads attribute-templates static-attributes "
        "message-group-template order max-batch-size max-batch-bytes max-batch-delay-ms",
        "redis": "host port url username password tls tls-ca tls-cert tls-key stream "
        "stream-routing include-payloads key-template static-headers max-len max-batch-size "
        "max-batch-delay-ms",
    }
    known = {option.flag for option, _, _ in loaded().entries()}

    own = {flag for flag in known if flag.startswith(f"--{name}-")}
    assert {f"--{name}-{flag}" for flag in flags[name].split()} == own


@pytest.mark.parametrize(
    "settings",
    [
        {"brokers": ["h:1"], "topic": "t", "topicRouting": {"trade": "x"}, "maxBatchSize": 7},
        {"brokers": "h:1", "topic": "t", "topic_routing": "trade:x", "max_batch_size": 7},
        KafkaConfig(brokers=("h:1",), topic="t", topic_routing={"trade": "x"}, max_batch_size=7),
    ],
)
def test_settings_may_be_plain_values(settings: Any):
    config = bus_config("kafka", settings)

    assert config == KafkaConfig(
        brokers=("h:1",), topic="t", topic_routing={"trade": "x"}, max_batch_size=7
    )


def test_a_plain_password_of_nats_is_called_pass():
    config = bus_config("nats", {"servers": "h", "subject": "s", "user": "u", "pass": "p"})

    assert isinstance(config, NatsConfig)
    assert config.pass_ == "p"


@pytest.mark.parametrize(
    ("name", "settings", "said"),
    [
        ("rabbit", {}, "kafka, nats"),
        ("kafka", {}, "brokers and topic"),
        ("kafka", NatsConfig(servers=("h",), subject="s"), "KafkaConfig or a dict"),
        ("kafka", {"brokers": "h:1", "topic": "t", "topik": "x"}, "topik"),
    ],
)
def test_plain_values_that_make_no_bus_are_refused(name: str, settings: Any, said: str):
    with pytest.raises(ConfigError, match=said):
        bus_config(name, settings)
