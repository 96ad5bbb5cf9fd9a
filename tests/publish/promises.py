"""Whether what arrived keeps the promises made to those who read the buses."""

import json
from collections.abc import Iterable, Mapping, Sequence

from tardis_machine.bronze import Context, Encoder, Event
from tardis_machine.publish.accounts import Account
from tardis_machine.publish.buses.file import FileConfig
from tests.support.arrivals import Arrival


def events_of(ndjson: bytes) -> list[Event]:
    """Encode a whole response as one batch: ids do not depend on where batches end."""
    batch = Encoder(Context()).encode_lines(ndjson, 0)
    assert not batch.rejected
    return batch.events()


def ids_by_key(events: Iterable[Event]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for event in events:
        key = f"{event.exchange}|{event.symbol}|{event.payload_case}"
        found.setdefault(key, []).append(event.event_id)
    return found


def arrived_by_key(arrivals: Iterable[Arrival]) -> dict[str, list[str]]:
    """Give ids by key in the order they first arrived; what came twice must be the same event."""
    found: dict[str, list[str]] = {}
    seen: dict[tuple[str, str], Arrival] = {}
    known: set[str] = set()
    for arrival in arrivals:
        event_id = arrival.headers["event-id"]
        envelope = arrival.envelope
        assert envelope.event_id == event_id
        first = seen.setdefault((envelope.meta["request_id"], event_id), arrival)
        assert arrival == first
        if event_id in known:
            continue
        known.add(event_id)
        case = arrival.headers["payload-case"]
        found.setdefault(f"{envelope.exchange}|{envelope.symbol}|{case}", []).append(event_id)
    return found


def assert_all_arrived(ndjson: bytes, arrivals: Sequence[Arrival]) -> None:
    """Nothing lost, nothing made up, order kept per key."""
    assert arrived_by_key(arrivals) == ids_by_key(events_of(ndjson))


def assert_received_arrived(received: bytes, whole: bytes, arrivals: Sequence[Arrival]) -> None:
    """Of a response cut short: what the client got arrived, in order, and not beyond the whole."""
    arrived = arrived_by_key(arrivals)
    everything = ids_by_key(events_of(whole))
    for key, ids in arrived.items():
        assert ids == everything[key][: len(ids)]
    for key, ids in ids_by_key(events_of(received)).items():
        assert ids == arrived.get(key, [])[: len(ids)]


def assert_balanced(account: Account, *, journalled: int, **counts: int) -> None:
    """Every journalled message is in exactly one of the books."""
    expected: Mapping[str, int] = {
        "journalled": journalled,
        "filtered": 0,
        "accepted": journalled - counts.get("filtered", 0),
        "delivered": 0,
        "pending": 0,
        "dead_lettered": 0,
        "dropped": 0,
        **counts,
    }
    actual = account.counts()
    del actual["duplicates"]
    assert actual == expected
    assert account.accepted == (
        account.delivered + account.pending + account.dead_lettered + account.dropped
    )


def written(config: FileConfig) -> list[str]:
    """Return the ids of the events that a file bus has written, in order."""
    assert config.path is not None
    return [
        json.loads(line)["headers"]["event-id"] for line in config.path.read_bytes().splitlines()
    ]
