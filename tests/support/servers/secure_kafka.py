"""A Kafka broker that asks for passwords, TLS, or both."""

from collections.abc import Iterator

import pytest

from tests.support.servers.certificates import Certificates
from tests.support.servers.kafka import KafkaBroker

PASSWORD = "right-horse"

_SECURITY = """\
sasl.enabled.mechanisms=PLAIN,SCRAM-SHA-256,SCRAM-SHA-512
listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasl_plaintext.scram-sha-512.sasl.jaas.config={scram}
listener.name.sasl_ssl.scram-sha-256.sasl.jaas.config={scram}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config={scram}
listener.name.sasl_plaintext.plain.sasl.jaas.config={login}
listener.name.sasl_ssl.plain.sasl.jaas.config={login}
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={truststore}
listener.name.ssl.ssl.client.auth=required
"""
_LOGIN = (
    f'org.apache.kafka.common.security.plain.PlainLoginModule required user_writer="{PASSWORD}";'
)
_SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
_SCRAM_USERS = tuple(
    f"{mechanism}=[name=writer,password={PASSWORD}]"
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority with a server and a client that it has signed."""
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def secure_kafka(
    tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[KafkaBroker]:
    """A broker that also listens with passwords, with TLS, and with both."""
    settings = _SECURITY.format(
        login=_LOGIN,
        scram=_SCRAM,
        keystore=certificates.server_chain,
        truststore=certificates.authority,
    )
    listeners = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")
    broker = KafkaBroker(tmp_path_factory.mktemp("secure"), settings, listeners, scram=_SCRAM_USERS)
    broker.start()
    yield broker
    broker.kill()
