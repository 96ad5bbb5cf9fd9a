"""Times as Timestamps."""

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given

from tardis_machine.bronze.times import TimeField
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.messages import Time
from tests.support.documents import times

FIELD = TimeField(4, 23)


@given(times())
@example("1970-01-01T00:00:00.000Z")
@example("1970-01-01T00:00:00.000000Z")
@example("1970-01-01T00:00:00.000001Z")
@example("2024-03-01T00:00:00.000016Z")
@example("2024-03-01T00:00:00.000017Z")
@example("2024-03-01T00:00:00.268435Z")
@example("2024-03-01T00:00:00.268436Z")
@example("9999-12-31T23:59:59.999999Z")
def test_a_time_is_what_protobuf_writes(text: str) -> None:
    microseconds = Time.parse(text)
    seconds, fraction = divmod(microseconds, 1_000_000)
    looks_like_three = len(text) == 27 and text.endswith("000Z")
    event = pb.NormalizedEvent(
        local_ts=Timestamp(seconds=seconds, nanos=fraction * 1000),
        local_ts_precision="TIME_PRECISION_MICROSECONDS" if looks_like_three else None,
    )
    assert FIELD.write(text) == event.SerializeToString()
    if len(text) == 27:
        assert FIELD.write_six_digits(text) == (microseconds, event.SerializeToString())


def test_times_before_1970_are_refused() -> None:
    with pytest.raises(ValueError, match="is before 1970"):
        FIELD.write("1969-12-31T23:59:59.999Z")
