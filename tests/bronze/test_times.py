"""Times as Timestamps."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given

from tardis_machine.bronze.times import stamp
from tardis_machine.messages import Time
from tests.messages.documents import times


@given(times())
@example("1970-01-01T00:00:00.000Z")
@example("1970-01-01T00:00:00.000000Z")
@example("1970-01-01T00:00:00.000001Z")
@example("2024-03-01T00:00:00.000016Z")
@example("2024-03-01T00:00:00.000017Z")
@example("2024-03-01T00:00:00.268435Z")
@example("2024-03-01T00:00:00.268436Z")
@example("9999-12-31T23:59:59.999999Z")
def test_a_timestamp_is_what_protobuf_writes(text: str) -> None:
    microseconds, written, has_zeros = stamp(text)
    assert microseconds == Time.parse(text)
    seconds, fraction = divmod(microseconds, 1_000_000)
    assert written == Timestamp(seconds=seconds, nanos=fraction * 1000).SerializeToString()
    assert has_zeros == text.endswith("000Z") * (len(text) == 27)


def test_times_before_1970_are_refused() -> None:
    with pytest.raises(ValueError, match="is before 1970"):
        stamp("1969-12-31T23:59:59.999Z")
