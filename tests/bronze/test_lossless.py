"""JSON, Bronze, JSON: the same bytes, for every type."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine import bronze, messages
from tardis_machine.bronze import Context, Encoder, Event, Origin
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.support.documents import KEYS, Document, documents, javascript

CONTEXT = Context(producer_id="here", origin=Origin.REPLAY, ingest_us=1_709_251_200_000_001)


def ndjson_of(*several: Document) -> bytes:
    return "".join(f"{javascript(document)}\n" for document in several).encode()


def there_and_back(ndjson: bytes) -> bytes:
    batch = Encoder(CONTEXT).encode_lines(ndjson)
    assert not batch.rejected
    return messages.encode_lines(bronze.decode(value).message for value in batch.values())


@pytest.mark.parametrize("message_type", sorted(KEYS))
@given(data=st.data())
def test_every_type_survives(message_type: str, data: st.DataObject) -> None:
    ndjson = ndjson_of(data.draw(documents(message_type)))
    assert there_and_back(ndjson) == ndjson


@given(st.lists(documents(), max_size=8))
def test_no_message_leaves_traces_in_the_next(several: list[Document]) -> None:
    ndjson = ndjson_of(*several)
    assert there_and_back(ndjson) == ndjson


@given(documents())
def test_a_single_message_encodes_as_it_does_in_a_batch(document: Document) -> None:
    ndjson = ndjson_of(document)
    message = messages.decode_line(ndjson)
    event = Encoder(CONTEXT).encode_line(ndjson, 7)
    assert isinstance(event, Event)
    assert bronze.encode(message, CONTEXT, 7) == event.value
    assert bronze.decode(event.value).message == message


@pytest.mark.parametrize("message_type", ["book_change", "book_snapshot"])
def test_thousands_of_levels_survive(message_type: str) -> None:
    levels = [{"price": n / 7, "amount": n * 1e-9} for n in range(5000)]
    document = {
        "book_change": {"isSnapshot": True, "bids": levels, "asks": levels[::-1]},
        "book_snapshot": {
            "name": "book_snapshot_5000_0ms",
            "depth": 5000,
            "interval": 0,
            "bids": levels,
            "asks": [{}] * 5000,
        },
    }[message_type]
    ndjson = ndjson_of(
        {
            "type": message_type,
            "symbol": "日本",
            "exchange": "e",
            **document,
            "timestamp": "2024-03-01T00:00:00.000Z",
            "localTimestamp": "2024-03-01T00:00:00.000000Z",
        }
    )
    assert there_and_back(ndjson) == ndjson


def decimals_of(message: object) -> list[str]:
    """Collect every field that ends in _str, at any depth."""
    found = []
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.name.endswith("_str"):
            found.append(value)
        elif field.type == field.TYPE_MESSAGE and field.name != "meta":
            for item in value if field.is_repeated else [value]:
                found += decimals_of(item)
    return found


@given(documents())
def test_decimals_are_plain(document: Document) -> None:
    event = Encoder(CONTEXT).encode_line(ndjson_of(document))
    assert isinstance(event, Event)
    for text in decimals_of(pb.NormalizedEvent.FromString(event.value)):
        assert text.removeprefix("-").replace(".", "", 1).isdecimal()
        assert text != "-0"
        assert not text.endswith(".")
        assert not text.startswith(("00", "-00"))


@given(documents())
def test_the_bytes_are_those_that_protobuf_writes(document: Document) -> None:
    """Each field once, none that is empty, every length as short as can be."""
    event = Encoder(CONTEXT).encode_line(ndjson_of(document))
    assert isinstance(event, Event)
    rewritten = pb.NormalizedEvent.FromString(event.value).SerializeToString()
    assert len(rewritten) == len(event.value)
