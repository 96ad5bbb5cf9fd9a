"""Every exchange's live dialect and native subscriptions, against `dialects/{family}.json`.

subscribes   a type and symbols, then each source: its URL and the messages to it, or a poller
asked        what a client of the exchange sends, and the filters that it asks for
says         what the exchange sends, which kind of message that is, what is replied to it
renders      REST answers of a snapshot's or poller's URLs, and the raw messages made of them
"""

from typing import Any

import msgspec
import pytest

from tardis_machine import exchanges
from tardis_machine.exchanges.base.dialect import (
    ConnectionContext,
    Dialect,
    Poller,
    SnapshotRequest,
    spelled,
)
from tardis_machine.history.filters import Filter
from tests.support.dialects import FACTS, LIVE
from tests.vectors.dialects import same_sources, subscribed


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Nothing is emitted here: once is enough."""


GARBAGE: list[Any] = [
    *(None, True, 0, 1.5, "", "text", [], [[]], [None, {}], {}, {"id": []}, {"": {}}),
    *({"op": "subscribe"}, {"op": "subscribe", "args": None}, {"method": {}, "params": 5}),
    *({"params": [1]}, {"result": {}}, {"data": [1]}, {"error": ""}, {"event": None}),
]


def cases(section: str) -> list[Any]:
    return [
        pytest.param(name, case, id=f"{name}-{at}")
        for name, facts in FACTS.items()
        for at, case in enumerate(facts.get(section, ()))
    ]


def live(name: str) -> Dialect:
    dialect = exchanges.get(name).live
    assert dialect is not None
    return dialect


@pytest.mark.parametrize(("name", "case"), cases("subscribes"))
def test_subscribes(name: str, case: dict[str, Any]) -> None:
    made = subscribed(exchanges.get(name), case["type"], case["symbols"])
    assert same_sources(made, case["sources"]), made


@pytest.mark.parametrize(("name", "case"), cases("asked"))
def test_native_subscriptions(name: str, case: dict[str, Any]) -> None:
    read = exchanges.get(name).subscriptions
    assert read is not None
    found = msgspec.json.encode(read(case["message"]))
    assert msgspec.json.decode(found) == case["filters"]


@pytest.mark.parametrize(("name", "case"), cases("says"))
def test_messages_are_told_apart(name: str, case: dict[str, Any]) -> None:
    dialect = live(name)
    message, kind = case["message"], case["kind"]
    is_error = dialect.errors(message)
    assert is_error == (kind in {"error", "refusal"})
    if is_error:
        assert dialect.refusals(message) == (kind == "refusal")
    if kind != "data":
        assert not msgspec.json.encode(message).startswith(dialect.data or (b"~",))
    assert dialect.heartbeats(message) == (kind == "heartbeat")
    assert dialect.acks(message) == (kind == "ack")
    assert dialect.reply(message) == case.get("reply")


@pytest.mark.parametrize(("name", "case"), cases("renders"))
def test_answers_become_raw_messages(name: str, case: dict[str, Any]) -> None:
    source = sources(name)[case["channel"]]
    urls = source.urls if isinstance(source, Poller) else (source.url,)
    assert [spelled(url, case["symbol"]) for url in urls] == case["urls"]
    assert source.render is not None
    rendered = source.render(case["symbol"], [answer.encode() for answer in case["answers"]])
    assert [message.decode() for message in rendered] == case["messages"]


@pytest.mark.parametrize("name", LIVE)
def test_every_dialect_has_its_facts(name: str) -> None:
    facts = FACTS[name]
    assert facts["subscribes"]
    assert facts["asked"]
    assert "data" in {case["kind"] for case in facts["says"]}
    rendered = {case["channel"] for case in facts.get("renders", ())}
    assert rendered == {
        channel for channel, source in sources(name).items() if source.render is not None
    }


@pytest.mark.parametrize("name", LIVE)
def test_nothing_an_exchange_says_makes_its_dialect_fail(name: str) -> None:
    dialect = live(name)
    for message in GARBAGE:
        for asks in (dialect.errors, dialect.heartbeats, dialect.acks, dialect.logged_in):
            assert asks(message) in {True, False}
        dialect.refusals(message)
        dialect.reply(message)


@pytest.mark.parametrize("name", LIVE)
def test_endpoints_of_one_exchange_have_names_of_their_own(name: str) -> None:
    endpoints = live(name).endpoints
    assert len({each.name for each in endpoints}) == len(endpoints)
    assert len(endpoints) == 1 or all(each.name for each in endpoints)


def test_credentials_change_deribit_subscriptions() -> None:
    session = ConnectionContext(0, (), ("id", "secret"))
    dialect = live("deribit")
    (asked,) = dialect.subscribe([Filter("trades", ("BTC-PERPETUAL",))], session)
    assert asked == {
        "jsonrpc": "2.0",
        "id": 3,
        "method": "private/subscribe",
        "params": {"channels": ["trades.BTC-PERPETUAL.raw"]},
    }
    assert dialect.login is not None
    login: Any = dialect.login(session)
    assert login["params"]["client_secret"] == session.secrets[1]
    assert dialect.logged_in({"id": 1, "result": {"access_token": "x"}})


def sources(name: str) -> dict[str, SnapshotRequest | Poller]:
    dialect = live(name)
    snapshots = {each.channel or each.deltas: each for each in dialect.snapshots}
    return {**snapshots, **{each.channel: each for each in dialect.pollers}}
