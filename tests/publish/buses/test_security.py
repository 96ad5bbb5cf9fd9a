"""Passwords, tokens, credentials and TLS, on servers that insist on them."""

import base64
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nkeys
import pytest

from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.nats import NatsConfig, NatsEventBus
from tests.support.events import records
from tests.support.servers.certificates import Certificates
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.proxy import Proxy
from tests.support.servers.secure_kafka import PASSWORD

Make = Callable[..., EventBus]
StartNats = Callable[..., NatsServer]
_PREFIXES = {b"O": 14 << 3, b"A": 0, b"U": 20 << 3}
"""First bytes of the keys of operators, accounts and users."""


def at(broker: KafkaBroker, listener: str) -> str:
    return f"127.0.0.1:{broker.ports[listener]}"


def login(password: str = PASSWORD) -> dict[str, str]:
    return {"sasl_mechanism": "PLAIN", "sasl_username": "writer", "sasl_password": password}


@pytest.mark.kafka
class TestKafka:
    def test_a_password_lets_in(self, secure_kafka: KafkaBroker, kafka_bus: Make):
        bus = kafka_bus(at(secure_kafka, "SASL_PLAINTEXT"), **login())

        assert bus.send(records(bus, 10), 20).delivered == 10
        [warning] = bus.config.warnings()
        assert "in clear" in warning

    def test_a_password_and_tls(
        self, secure_kafka: KafkaBroker, kafka_bus: Make, certificates: Certificates
    ):
        bus = kafka_bus(
            at(secure_kafka, "SASL_SSL"), ssl=True, ssl_ca=certificates.authority, **login()
        )

        assert bus.send(records(bus, 10), 20).delivered == 10
        assert bus.config.warnings() == []

    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
    def test_scram_says_nothing_that_others_could_use(
        self,
        secure_kafka: KafkaBroker,
        kafka_bus: Make,
        certificates: Certificates,
        mechanism: str,
    ):
        if mechanism == "SCRAM-SHA-256":
            listener, settings = "SASL_PLAINTEXT", {}
        else:
            listener, settings = "SASL_SSL", {"ssl": True, "ssl_ca": certificates.authority}
        known = login() | {"sasl_mechanism": mechanism}
        bus = kafka_bus(at(secure_kafka, listener), **known, **settings)
        stranger = kafka_bus(
            at(secure_kafka, listener), **known | {"sasl_password": "wrong"}, **settings
        )

        assert bus.send(records(bus, 10), 20).delivered == 10
        assert bus.config.warnings() == []
        refused = stranger.send(records(stranger, 10), 2)
        assert refused.delivered == 0
        assert "uthentication" in str(refused.failures[0].error)

    def test_a_certificate_of_the_client(
        self, secure_kafka: KafkaBroker, kafka_bus: Make, certificates: Certificates
    ):
        bus = kafka_bus(
            at(secure_kafka, "SSL"),
            ssl=True,
            ssl_ca=certificates.authority,
            ssl_cert=certificates.client,
            ssl_key=certificates.client_key,
        )

        assert bus.send(records(bus, 10), 20).delivered == 10

    @pytest.mark.parametrize(
        ("listener", "settings"),
        [("SASL_PLAINTEXT", login("wrong")), ("SASL_SSL", {"ssl": True, **login()})],
        ids=["wrong password", "unknown authority"],
    )
    def test_others_stay_outside(
        self,
        secure_kafka: KafkaBroker,
        kafka_bus: Make,
        listener: str,
        settings: dict[str, Any],
    ):
        bus = kafka_bus(at(secure_kafka, listener), **settings)

        result = bus.send(records(bus, 10), 1)

        assert result.delivered == 0
        assert all(failure.error.retriable for failure in result.failures)


class TestNats:
    def test_user_and_password_let_in(self, start_nats: StartNats, nats_bus: Make):
        server = start_nats(f"authorization {{ user: writer, password: {PASSWORD} }}")
        bus = nats_bus(server.url, user="writer", pass_=PASSWORD)

        assert bus.send(records(bus, 10), 10).delivered == 10

    def test_a_token_lets_in(self, start_nats: StartNats, nats_bus: Make):
        server = start_nats(f"authorization {{ token: {PASSWORD} }}")
        bus = nats_bus(server.url, token=PASSWORD)

        assert bus.send(records(bus, 10), 10).delivered == 10

    def test_credentials_let_in(self, start_nats: StartNats, nats_bus: Make, tmp_path: Path):
        operator, system, account, user = Signer(b"O"), Signer(b"A"), Signer(b"A"), Signer(b"U")
        limits = dict.fromkeys(("subs", "data", "payload", "conn", "imports", "exports"), -1)
        storage = dict.fromkeys(("mem_storage", "disk_storage", "streams", "consumer"), -1)
        account_jwt = operator.sign(account, "account", {"limits": limits | storage})
        system_jwt = operator.sign(system, "account", {"limits": limits})
        user_jwt = account.sign(user, "user", {"subs": -1, "data": -1, "payload": -1})
        server = start_nats(
            f"operator: {operator.sign(operator, 'operator', {})}\n"
            f"system_account: {system.public}\n"
            "resolver: MEMORY\n"
            "resolver_preload: {\n"
            f"{system.public}: {system_jwt}\n{account.public}: {account_jwt}\n}}"
        )
        creds = tmp_path / "writer.creds"
        creds.write_text(
            f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{user.seed}\n------END USER NKEY SEED------\n"
        )
        bus = nats_bus(server.url, creds=creds)

        assert bus.send(records(bus, 10), 10).delivered == 10

    def test_tls_with_a_certificate_of_the_client(
        self, start_nats: StartNats, nats_bus: Make, certificates: Certificates
    ):
        server = start_nats(
            f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server_key}", '
            f'ca_file: "{certificates.authority}", verify: true }}'
        )
        bus = nats_bus(
            server.url.replace("nats://", "tls://"),
            tls_ca=certificates.authority,
            tls_cert=certificates.client,
            tls_key=certificates.client_key,
        )

        assert bus.send(records(bus, 10), 10).delivered == 10

    @pytest.mark.parametrize("demand", ["scheme", "authority"])
    def test_nothing_is_said_to_a_server_without_tls(
        self, nats: NatsServer, proxy: Proxy, certificates: Certificates, demand: str
    ):
        """The client by itself would go on in clear, password and all."""
        proxy.target = nats.port
        scheme = "tls" if demand == "scheme" else "nats"
        config = NatsConfig(
            servers=(f"{scheme}://127.0.0.1:{proxy.port}",),
            subject="s",
            user="writer",
            pass_=PASSWORD,
            tls_ca=None if demand == "scheme" else certificates.authority,
        )
        bus = NatsEventBus(config)

        result = bus.send(records(bus, 3), 5)
        bus.close()

        assert result.delivered == 0
        assert "secure connection not available" in str(result.failures[0].error)
        assert proxy.said == b""

    def test_a_server_that_leaves_it_open_is_talked_into_tls(
        self,
        start_nats: StartNats,
        nats_bus: Make,
        certificates: Certificates,
        proxy: Proxy,
    ):
        server = start_nats(
            f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server_key}" }}\n'
            f"allow_non_tls: true\nauthorization {{ user: writer, password: {PASSWORD} }}"
        )
        proxy.target = server.port
        bus = nats_bus(
            f"tls://127.0.0.1:{proxy.port}",
            tls_ca=certificates.authority,
            user="writer",
            pass_=PASSWORD,
        )

        assert bus.send(records(bus, 10), 10).delivered == 10
        assert PASSWORD.encode() not in proxy.said
        assert bus.config.warnings() == []

    def test_an_unknown_authority_stays_outside(
        self, start_nats: StartNats, nats_bus: Make, certificates: Certificates
    ):
        server = start_nats(
            f'tls {{ cert_file: "{certificates.server}", key_file: "{certificates.server_key}" }}'
        )
        bus = nats_bus(server.url.replace("nats://", "tls://"))

        result = bus.send(records(bus, 10), 2)

        assert result.delivered == 0
        assert "certificate" in str(result.failures[0].error).lower()


class Signer:
    """An operator, account or user of NATS, who signs for others."""

    def __init__(self, kind: bytes) -> None:
        seed = nkeys.encode_seed(os.urandom(32), _PREFIXES[kind])
        self.seed = bytes(seed).decode()
        self._pair = nkeys.from_seed(bytearray(seed))
        self.public = bytes(self._pair.public_key).decode()

    def sign(self, subject: "Signer", kind: str, claims: dict[str, Any]) -> str:
        content = {
            "jti": os.urandom(8).hex(),
            "iat": int(time.time()),
            "iss": self.public,
            "sub": subject.public,
            "name": kind,
            "nats": {"type": kind, "version": 2, **claims},
        }
        header = {"typ": "JWT", "alg": "ed25519-nkey"}
        text = ".".join(_base64(json.dumps(part).encode()) for part in (header, content))
        return f"{text}.{_base64(self._pair.sign(text.encode()))}"


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
