"""Whole numbers as Protobuf writes them."""

from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine.bronze.varints import varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb


@given(st.integers(0, 2**64 - 1))
@example(127)
@example(128)
@example(2**14 - 1)
@example(2**14)
@example(2**28 - 1)
@example(2**28)
@example(2**64 - 1)
def test_a_varint_is_what_protobuf_writes(number: int) -> None:
    tag = b"\xa8\x01"
    assert pb.NormalizedEvent(position=number).SerializeToString() == tag + varint(number)
