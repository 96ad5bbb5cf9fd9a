"""Bytes that are no envelope, and envelopes that carry no whole message."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine import bronze
from tardis_machine.bronze import Context, DecodeError, Encoder
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.support.messages import BAR, QUOTE, TRADE

VALUES = Encoder(Context()).encode_lines(b"\n".join((TRADE, BAR, QUOTE))).values()


@given(st.binary(max_size=200))
def test_garbage_is_refused(value: bytes) -> None:
    with pytest.raises(DecodeError, match="not a NormalizedEvent"):
        bronze.decode(value)


@given(st.sampled_from(VALUES), st.data())
def test_damage_is_refused_or_harmless(value: bytes, data: st.DataObject) -> None:
    damaged = bytearray(value)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(value) - 1))] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        bronze.decode(bytes(damaged))


@pytest.mark.parametrize("value", VALUES)
def test_every_truncation_is_refused(value: bytes) -> None:
    bronze.decode(value)
    for end in range(len(value)):
        with pytest.raises(DecodeError):
            bronze.decode(value[:end])


@pytest.mark.parametrize("value", ["text", None, 7])
def test_what_is_not_even_bytes_is_refused(value: object) -> None:
    with pytest.raises(DecodeError):
        bronze.decode(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "text"),
    [
        ("price_str", ""),
        ("price_str", "1e5"),
        ("price_str", "nan"),
        ("price_str", "1_000"),
        ("price_str", " 1"),
        ("price_str", "9" * 400),
        ("qty_str", "."),
    ],
)
def test_a_decimal_must_be_plain(field: str, text: str) -> None:
    event = pb.NormalizedEvent.FromString(VALUES[0])
    setattr(event.trade, field, text)
    with pytest.raises(DecodeError) as caught:
        bronze.decode(event.SerializeToString())
    assert (caught.value.field, caught.value.case) == (field, "trade")


def test_a_time_must_be_there_and_in_range() -> None:
    event = pb.NormalizedEvent.FromString(VALUES[0])
    for seconds, nanos in ((-1, 0), (10**12, 0), (0, -1), (0, 10**9)):
        event.local_ts.seconds, event.local_ts.nanos = seconds, nanos
        with pytest.raises(DecodeError, match="local_ts"):
            bronze.decode(event.SerializeToString())
    event.ClearField("local_ts")
    with pytest.raises(DecodeError, match="local_ts of trade: it is missing"):
        bronze.decode(event.SerializeToString())


def test_an_unknown_enum_value_is_refused() -> None:
    event = pb.NormalizedEvent.FromString(VALUES[0])
    event.trade.side = 99  # type: ignore[assignment]
    with pytest.raises(DecodeError, match="side of trade: 99 is not among"):
        bronze.decode(event.SerializeToString())


def test_an_envelope_without_payload_is_refused() -> None:
    with pytest.raises(DecodeError, match="no payload"):
        bronze.decode(pb.NormalizedEvent(source="s").SerializeToString())
    with pytest.raises(DecodeError, match="no payload"):
        bronze.decode(b"")
