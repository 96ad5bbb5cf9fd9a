"""Length-delimited streams."""

import io

import pytest
from google.protobuf.proto import serialize_length_prefixed
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.bronze import DecodeError
from tardis_machine.bronze.frames import MAX_LENGTH, frame, read_frames
from tardis_machine.bronze.varints import varint
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 50))
def test_a_stream_parts_into_what_was_written(values: list[bytes], size: int) -> None:
    stream = b"".join(map(frame, values))
    chunks = [stream[at : at + size] for at in range(0, len(stream), size)]
    frames = list(read_frames(chunks))
    assert [found.value for found in frames] == values
    offsets = [len(b"".join(map(frame, values[:n]))) for n in range(len(values))]
    assert [found.offset for found in frames] == offsets


@given(st.text(max_size=300))
def test_frames_are_those_of_protobuf(source: str) -> None:
    event = pb.NormalizedEvent(source=source)
    theirs = io.BytesIO()
    serialize_length_prefixed(event, theirs)
    assert frame(event.SerializeToString()) == theirs.getvalue()


@pytest.mark.parametrize("stream", [varint(MAX_LENGTH + 1), b"\xff" * 5, b"\x80" * 6])
def test_a_length_that_cannot_be_one_is_refused(stream: bytes) -> None:
    with pytest.raises(DecodeError, match="no envelope begins at byte 2"):
        list(read_frames([frame(b"a") + stream]))


def test_an_end_inside_is_refused() -> None:
    with pytest.raises(DecodeError, match="ends inside the envelope at byte 2"):
        list(read_frames([frame(b"a") + frame(b"abc")[:-1]]))
