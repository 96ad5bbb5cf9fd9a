"""The Redis bus on a real server."""

import logging
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish.buses.base import EventBus
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    RecordRejectedError,
)
from tardis_machine.publish.buses.redis import RedisConfig, RedisEventBus
from tests.support.arrivals import assert_promises_kept, from_redis
from tests.support.events import deliver, events, records, resized, routed
from tests.support.servers.certificates import Certificates
from tests.support.servers.proxy import Proxy
from tests.support.servers.redis import RedisServer

Make = Callable[..., EventBus]
StartRedis = Callable[..., RedisServer]


@pytest.fixture
def redis_bus(opened: Callable[[EventBus], EventBus], name: str) -> Make:
    """Make a Redis bus for a server; the stream has the test's name."""

    def make(server: RedisServer, **settings: Any) -> EventBus:
        shared = {"host": "127.0.0.1", "port": server.port, "stream": name}
        config = RedisConfig(**{**shared, **settings})
        config.validate()
        return opened(RedisEventBus(config))

    return make


def test_an_entry_has_the_value_and_the_headers_as_fields(
    redis: RedisServer, redis_bus: Make, name: str
):
    bus = redis_bus(redis, static_headers={"desk": "a:b"})
    [event] = events(1)

    result = bus.send(routed(bus, [event]), 10)

    assert (result.delivered, result.duplicates, result.failures) == (1, 0, [])
    [arrival] = from_redis(redis.client(), name)
    assert arrival.value == event.value
    assert arrival.headers == {
        "event-id": event.event_id,
        "payload-case": "trade",
        "content-type": "application/x-protobuf",
        "desk": "a:b",
    }


def test_route_beats_template_and_template_beats_the_base(
    redis: RedisServer, redis_bus: Make, name: str
):
    bus = redis_bus(
        redis,
        key_template=f"{name}:{{{{symbol}}}}",
        stream_routing={"bookChange": f"{name}-books"},
    )
    sent = records(bus, 40)

    deliver(bus, sent)

    arrived = [
        arrival
        for stream in (*(f"{name}:S{n}" for n in range(5)), f"{name}-books", name)
        for arrival in from_redis(redis.client(), stream)
    ]
    assert len(arrived) == 40
    assert_promises_kept(sent, arrived)


def test_a_stream_is_trimmed_to_about_its_length(redis: RedisServer, redis_bus: Make, name: str):
    bus = redis_bus(redis, max_len=500)

    deliver(bus, records(bus, 3_000))

    assert 500 <= redis.client().xlen(name) < 1_000


def test_mistake_1_a_wrong_type_is_final_and_holds_no_other_stream(
    redis: RedisServer, redis_bus: Make, name: str
):
    redis.client().set(f"{name}-books", "not a stream")
    bus = redis_bus(redis, stream_routing={"bookChange": f"{name}-books"})
    sent = records(bus, 100)

    rejected = deliver(bus, sent)

    assert len(rejected) == 25
    assert all(isinstance(each.error, RecordRejectedError) for each in rejected)
    assert "WRONGTYPE" in str(rejected[0].error)
    trades = [record for record in sent if record.destination == name]
    assert_promises_kept(trades, from_redis(redis.client(), name))


def test_mistake_3_a_full_memory_breaks_no_order(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    """Memory comes free while entries are refused: none may slip in before an earlier one."""
    server = start_redis("maxmemory 8mb\nmaxmemory-policy noeviction")
    bus = redis_bus(server)
    sent = records(bus, 20_000, padding=300)
    kept: list[str] = []
    refused: list[str] = []
    done = threading.Event()

    def take() -> None:
        client = server.client()
        while not done.wait(0.02):
            entries = client.xrange(name)
            kept.extend(fields[b"event-id"].decode() for _, fields in entries)
            if entries:
                client.xtrim(name, minid=_after(entries[-1][0]), approximate=False)
        kept.extend(fields[b"event-id"].decode() for _, fields in client.xrange(name))
        client.close()

    def send() -> None:
        left = sent
        while left:
            batch = left[:1_000]
            result = bus.send(batch, 10)
            assert all(error.retriable for _, error in result.failures)
            refused.extend(str(error) for _, error in result.failures)
            left = [batch[place] for place, _ in result.failures] + left[1_000:]
            if refused and not taking:
                taking.append(pool.submit(take))
            elif taking and taking[0].done():
                pytest.fail("nobody takes")

    taking: list[Future[None]] = []
    with ThreadPoolExecutor(2) as pool:
        try:
            pool.submit(send).result()
        finally:
            done.set()
    taking[0].result()

    assert kept == [record.event.event_id for record in sent]
    assert any("OOM" in reason for reason in refused)


def _after(entry: bytes) -> str:
    moment, _, number = entry.decode().partition("-")
    return f"{moment}-{int(number) + 1}"


def test_mistake_3_a_cut_connection_breaks_no_order(
    redis: RedisServer, redis_bus: Make, name: str, proxy: Proxy
):
    proxy.target = redis.port
    bus = redis_bus(redis, port=proxy.port)
    sent = records(bus, 4_000, padding=300)
    for start in range(0, len(sent), 1_000):
        proxy.cut_after(20_000 + start * 100)
        deliver(bus, sent[start : start + 1_000])

    arrived = from_redis(redis.client(), name)
    assert_promises_kept(sent, arrived)


def test_mistake_4_a_batch_is_one_transaction(redis: RedisServer, redis_bus: Make, proxy: Proxy):
    proxy.target = redis.port
    bus = redis_bus(redis, port=proxy.port, max_batch_size=500)
    bus.connect()

    deliver(bus, records(bus, 2_000), batch=bus.limits.records)

    assert proxy.said.count(b"MULTI") == 1 + 4  # the first one is to see that it may
    assert proxy.said.count(b"XADD") == 2_000
    assert bus.limits.bytes == 8 << 20


def test_a_replica_is_waited_for_until_it_is_the_primary(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    primary = start_redis()
    replica = start_redis(f"replicaof 127.0.0.1 {primary.port}")
    bus = redis_bus(replica)
    sent = records(bus, 10)

    with pytest.raises(BusUnavailableError, match="READONLY"):
        bus.check()
    before = bus.send(sent, 5)
    replica.client().replicaof("no", "one")
    assert deliver(bus, sent) == []

    assert before.delivered == 0
    assert all(error.retriable for _, error in before.failures)
    assert_promises_kept(sent, from_redis(replica.client(), name))


def test_a_primary_that_becomes_a_replica_refuses_retriably(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    server, other = start_redis(), start_redis()
    bus = redis_bus(server)
    sent = records(bus, 20)
    deliver(bus, sent[:10])
    server.client().replicaof("127.0.0.1", str(other.port))

    result = bus.send(sent[10:], 5)

    assert result.delivered == 0
    assert "READONLY" in str(result.failures[0].error)
    assert {error.destination for _, error in result.failures} == {None}
    assert all(error.retriable for _, error in result.failures)


@pytest.mark.faults
def test_a_server_that_is_loading_is_waited_for(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    """Started with a slow load, as with much data: it answers now and then, and not with yes."""
    server = start_redis()
    bus = redis_bus(server)
    sent = records(bus, 20_000)
    deliver(bus, sent[:19_990], batch=1_000)
    server.kill()
    with server.configuration.open("a") as configuration:
        configuration.write("key-load-delay 500\n")
    server.start()

    broken, loading = (bus.send(sent[19_990:], 5) for _ in range(2))

    assert (broken.delivered, loading.delivered) == (0, 0)
    assert "LOADING" in str(loading.failures[0].error)
    assert all(error.retriable for _, error in loading.failures)


def test_a_slow_link_gets_all_of_the_time_that_a_batch_has(
    redis: RedisServer,
    redis_bus: Make,
    name: str,
    proxy: Proxy,
    monkeypatch: pytest.MonkeyPatch,
):
    """What is cut short each time is sent anew each time, and never arrives."""
    monkeypatch.setattr("tardis_machine.publish.buses.redis._SOCKET_TIMEOUT_S", 0.5)
    proxy.target = redis.port
    bus = redis_bus(redis, port=proxy.port)
    sent = [resized(bus, record, 20_000) for record in records(bus, 800)]
    proxy.pause_s = 0.01

    first = bus.send(sent, 60)
    proxy.pause_s = 0.05
    cut_short = bus.send(sent, 1)

    assert first.delivered == 800
    assert cut_short.delivered == 0
    assert "in time" in str(cut_short.failures[0].error)
    assert redis.client().xlen(name) == 800


def test_a_cluster_is_refused_at_start(start_redis: StartRedis, redis_bus: Make):
    bus = redis_bus(start_redis("cluster-enabled yes"))

    with pytest.raises(BusError, match="is a cluster") as caught:
        bus.connect()

    assert not caught.value.retriable


def test_no_persistence_warns_once(
    start_redis: StartRedis, redis_bus: Make, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    bus = redis_bus(start_redis("appendonly no"))

    assert "no persistence" in bus.check()
    bus.connect()
    bus.connect()

    [warning] = [record for record in caplog.records if "no persistence" in record.message]
    assert warning.levelno == logging.WARNING


@pytest.mark.parametrize("settings", ["appendonly yes", "appendonly no\nsave 60 1"])
def test_persistence_warns_of_nothing(start_redis: StartRedis, redis_bus: Make, settings: str):
    bus = redis_bus(start_redis(settings))

    assert "persistence" not in bus.check()


def test_a_user_without_rights_is_told_and_other_streams_go_on(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    """Neither INFO nor CONFIG for this one, as on hosted servers, and one stream only."""
    server = start_redis(f"user writer on >right-horse ~{name} +xadd +multi +exec +client")
    bus = redis_bus(
        server,
        username="writer",
        password="right-horse",
        stream_routing={"bookChange": f"{name}-books"},
    )
    sent = records(bus, 40)

    first = bus.send(sent, 10)
    refused = {place for place, error in first.failures if "NOPERM" in str(error)}
    again = bus.send([record for place, record in enumerate(sent) if place not in refused], 10)

    assert {sent[place].destination for place in refused} == {f"{name}-books"}
    assert all(error.retriable for _, error in first.failures)
    assert again.delivered == 30
    assert len(from_redis(server.client(), name)) == 30


@pytest.mark.parametrize("right", ["multi", "exec"])
def test_a_user_without_transactions_is_refused_before_anything_is_stored(
    start_redis: StartRedis, redis_bus: Make, name: str, right: str
):
    """Entries behind a MULTI that is refused would each be stored, at every attempt anew."""
    server = start_redis(f"user writer on >right-horse ~* +@all -{right}")
    bus = redis_bus(server, username="writer", password="right-horse")

    with pytest.raises(BusUnavailableError, match=f"NOPERM.*'{right}'"):
        bus.check()
    result = bus.send(records(bus, 3), 10)

    assert [error.retriable for _, error in result.failures] == [True] * 3
    assert server.client().xlen(name) == 0


def test_what_is_stored_without_a_transaction_is_not_sent_again(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    """Rights may be taken away while a connection lives."""
    server = start_redis("user writer on >right-horse ~* +@all")
    bus = redis_bus(server, username="writer", password="right-horse")
    sent = records(bus, 6)
    assert bus.send(sent[:3], 10).delivered == 3
    server.client().execute_command("ACL", "SETUSER", "writer", "-multi")

    assert bus.send(sent[3:], 10).delivered == 3
    assert len(bus.send(records(bus, 3), 10).failures) == 3

    assert_promises_kept(sent, from_redis(server.client(), name))


@pytest.mark.parametrize(
    ("rights", "said"), [("~* +@all -xadd", "NOPERM.*'xadd'"), ("~other:* +@all", "NOPERM.*key")]
)
def test_check_tells_that_a_user_may_not_add_to_a_stream(
    start_redis: StartRedis, redis_bus: Make, name: str, rights: str, said: str
):
    server = start_redis(f"user writer on >right-horse {rights}")
    login = {"username": "writer", "password": "right-horse"}

    with pytest.raises(BusUnavailableError, match=f"{name}: {said}"):
        redis_bus(server, **login).check()


def test_check_needs_no_right_to_a_stream_that_nothing_goes_to(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    """A template takes all that has no route; which streams it will make nobody knows."""
    rights = f"~{name}:* ~{name}-books +xadd +multi +exec +client"
    server = start_redis(f"user writer on >right-horse {rights}")
    login = {"username": "writer", "password": "right-horse"}
    template = {"key_template": f"{name}:{{{{symbol}}}}"}

    assert redis_bus(server, **login, **template).check()
    assert redis_bus(server, **login, **template, stream_routing={"trade": f"{name}-books"}).check()
    with pytest.raises(BusUnavailableError, match=f"{name}-trades: NOPERM"):
        redis_bus(server, **login, **template, stream_routing={"trade": f"{name}-trades"}).check()
    server.client().acl_setuser("writer", enabled=True, commands=["-xadd"])
    with pytest.raises(BusUnavailableError, match=r"NOPERM.*'xadd'"):
        redis_bus(server, **login, **template).check()


def test_check_tells_of_what_is_no_stream_or_full_and_adds_nothing(
    start_redis: StartRedis, redis_bus: Make, name: str
):
    server = start_redis("maxmemory-policy noeviction")
    client = server.client()
    assert redis_bus(server).check()
    assert client.exists(name) == 0
    client.config_set("maxmemory", "1")
    with pytest.raises(BusUnavailableError, match="OOM"):
        redis_bus(server).check()
    client.config_set("maxmemory", "0")
    client.set(name, "not a stream")
    with pytest.raises(BusUnavailableError, match=f"{name}: WRONGTYPE: it is a string"):
        redis_bus(server).check()


@pytest.fixture
def tls_front(redis: RedisServer, certificates: Certificates) -> Iterator[Proxy]:
    """TLS before a server that was built without it; clients must show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.server, certificates.server_key)
    context.load_verify_locations(certificates.authority)
    context.verify_mode = ssl.CERT_REQUIRED
    proxy = Proxy(redis.port, context)
    yield proxy
    proxy.close()


def test_tls_with_a_certificate_of_the_client(
    redis: RedisServer, redis_bus: Make, tls_front: Proxy, certificates: Certificates
):
    files = {
        "tls_ca": certificates.authority,
        "tls_cert": certificates.client,
        "tls_key": certificates.client_key,
    }
    by_flag = redis_bus(redis, port=tls_front.port, tls=True, **files)
    url = f"rediss://127.0.0.1:{tls_front.port}/0"
    by_url = redis_bus(redis, host="localhost", port=6379, url=url, **files)

    for bus in (by_flag, by_url):
        assert bus.send(records(bus, 10), 10).delivered == 10
        assert bus.config.warnings() == []


def test_an_unknown_authority_stays_outside(redis: RedisServer, redis_bus: Make, tls_front: Proxy):
    bus = redis_bus(redis, port=tls_front.port, tls=True)

    result = bus.send(records(bus, 10), 5)

    assert result.delivered == 0
    assert "certificate" in str(result.failures[0].error).lower()


def test_a_database_and_a_socket_by_url(
    start_redis: StartRedis, opened: Callable[[EventBus], EventBus], tmp_path: Path
):
    path = tmp_path / "redis.sock"
    server = start_redis(f"unixsocket {path}")
    for url, database in ((f"redis://127.0.0.1:{server.port}/3", 3), (f"unix://{path}", 0)):
        config = RedisConfig(url=url, stream="s")
        config.validate()
        bus = opened(RedisEventBus(config))
        assert bus.send(records(bus, 5), 10).delivered == 5
        assert server.client(db=database).xlen("s") == 5


@pytest.mark.parametrize(
    ("settings", "flag"),
    [
        ({"url": "redis://u:hush@h:1/0"}, "--redis-url"),
        ({"url": "http://h:1"}, "--redis-url"),
        ({"url": "redis://h:99999"}, "--redis-url"),
        ({"url": "redis://h:one"}, "--redis-url"),
        ({"url": "redis://h:0"}, "--redis-url"),
        ({"url": "redis://[::1"}, "--redis-url"),
        ({"host": "h:6379"}, "--redis-host"),
        ({"url": "redis://h:1", "tls": True}, "--redis-url"),
        ({"url": "redis://h:1", "host": "other"}, "--redis-host"),
        ({"url": "redis://h:1", "port": 1}, "--redis-port"),
        ({"username": "u"}, "--redis-password"),
        ({"tls_ca": Path("ca.pem")}, "--redis-tls-ca"),
        ({"static_headers": {"value": "x"}}, "--redis-static-headers"),
        ({"key_template": "{{symbol}} x"}, "--redis-key-template"),
        ({"stream_routing": {"trade": "a b"}}, "--redis-stream-routing"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], flag: str):
    with pytest.raises(ConfigError) as caught:
        RedisConfig(stream="s", **settings).validate()

    assert caught.value.flag == flag
    assert "hush" not in str(caught.value)
