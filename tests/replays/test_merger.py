from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.replays.merger import Merged, PacedStreamMerger, StreamMerger
from tardis_machine.replays.pacing import Schedule
from tests.support.clock import ManualClock
from tests.support.merge_inputs import Message, Stream, named


def _texts(steps: Iterator[Merged]) -> list[str]:
    texts = []
    for merged in steps:
        batch = merged.batch()
        assert batch.count == batch.data.count(b"\n")
        assert batch.hidden_count == batch.hidden.count(b"\n")
        texts += (batch.data + batch.hidden).decode().splitlines()
    return texts


def _by_heads(streams: Sequence[Sequence[Message]]) -> list[str]:
    """As the Node server merges: whose next message is the oldest, the first of those."""
    rest = [[message for message in stream if message[1]] for stream in streams]
    merged = []
    while any(rest):
        at = min((i for i in range(len(rest)) if rest[i]), key=lambda i: (rest[i][0][0], i))
        merged.append(rest[at].pop(0)[1])
    return merged


_sorted = st.lists(st.integers(0, 12), max_size=12).map(sorted)


@settings(max_examples=300, deadline=None)
@given(st.lists(_sorted, min_size=1, max_size=4), st.integers(1, 5))
def test_in_the_order_of_local_time_ties_in_the_order_of_the_streams(
    times: list[list[int]], size: int
) -> None:
    streams = named(times)
    merged = _texts(StreamMerger([Stream(each, size) for each in streams]).steps())
    assert merged == _by_heads(streams)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=1, max_size=3), st.integers(1, 5)
)
def test_what_is_late_comes_as_soon_as_what_preceded_it(times: list[list[int]], size: int) -> None:
    streams = named(times)
    merged = _texts(StreamMerger([Stream(each, size) for each in streams]).steps())
    assert merged == _by_heads(streams)


@settings(max_examples=200, deadline=None)
@given(st.lists(_sorted, min_size=1, max_size=3), st.integers(1, 5))
def test_no_step_ends_inside_a_local_time(times: list[list[int]], size: int) -> None:
    steps = StreamMerger([Stream(each, size) for each in named(times)]).steps()
    ends = [step.batch().data.decode().splitlines() for step in steps]
    texts = [lines for lines in ends if lines]
    for before, after in pairwise(texts):
        assert before[-1].split(".")[2] != after[0].split(".")[2]


def test_parts_tell_their_stream() -> None:
    streams = [[(1, "a"), (3, "c")], [(2, "b"), (4, "d"), (5, "e")]]
    merge = StreamMerger([Stream(each, 5) for each in streams])
    parts = [part for merged in merge.steps() for part in merged.by_stream()]
    assert b"".join(data for _, data in parts) == b"a\nb\nc\nd\ne\n"
    for index, data in parts:
        assert set(data.decode().split()) <= {text for _, text in streams[index]}


def test_hidden_events_come_last_in_a_batch_of_their_own_time() -> None:
    one = [(1, "a"), (2, "b"), (2, "(b)"), (3, "c")]
    two = [(1, "A"), (2, "B"), (4, "D"), (4, "(D)")]
    steps = [merged.batch() for merged in StreamMerger([Stream(one, 9), Stream(two, 9)]).steps()]
    assert [(step.data, step.hidden) for step in steps if step.data or step.hidden] == [
        (b"a\nA\nb\nB\n", b"(b)\n"),
        (b"c\nD\n", b"(D)\n"),
    ]


@pytest.mark.parametrize("size", [1, 2, 9])
def test_a_failure_comes_after_what_precedes_it(size: int) -> None:
    one = Stream([(1, "a"), (3, "c")], size, OSError("gone"))
    two = Stream([(2, "b"), (4, "d"), (5, "e")], size)
    steps: list[Merged] = []
    with pytest.raises(OSError, match="gone"):
        steps.extend(StreamMerger([one, two]).steps())
    assert _texts(iter(steps)) == ["a", "b", "c"]


@pytest.mark.parametrize("size", [1, 2, 9])
def test_what_precedes_a_run_that_raises_is_given(size: int) -> None:
    one = Stream([(1, "a"), (3, "c"), (4, "raise")], size)
    two = Stream([(2, "b"), (5, "e")], size)
    steps: list[Merged] = []
    with pytest.raises(ValueError, match="4"):
        steps.extend(StreamMerger([one, two]).steps())
    assert _texts(iter(steps)) == ["a", "b", "c"]


def test_a_stream_far_ahead_waits() -> None:
    ahead = Stream([(each, f"{each}") for each in range(500, 600)], 1)
    behind = Stream([(each, f"{each}") for each in range(100)], 1)
    merge = StreamMerger([ahead, behind])
    steps = merge.steps()
    for _ in range(100):
        next(steps)
    assert len(ahead._messages) == 100
    assert _texts(steps)[-1] == "599"


_START = 1_709_251_200_000_000
_gaps = st.lists(st.integers(0, 100), max_size=8)


@settings(max_examples=300, deadline=None)
@given(st.lists(_gaps, min_size=1, max_size=3), st.integers(1, 5), st.sampled_from([0.001, 0.01]))
def test_paced_each_message_comes_when_it_is_due(
    times: list[list[int]], size: int, speed: float
) -> None:
    """As without a clock, but not before its time; and no later than the next tick."""
    streams = named(times)
    expected = _texts(StreamMerger([Stream(each, size) for each in streams]).steps())
    clock = ManualClock()
    merge = PacedStreamMerger(
        [Stream(each, size) for each in streams],
        Schedule(_START, _START + 10**6, speed, clock),
    )
    began, found, latest = clock.ns, [], 0
    for step in merge.steps():
        texts = step.batch().data.decode().splitlines()
        for us in (int(text.split(".")[2]) for text in texts):
            latest = max(latest, us)
            due_ns = latest * 1000 / speed
            assert due_ns <= clock.ns - began < due_ns + 5_000_001
        found += texts
    assert found == expected


def test_paced_streams_run_no_further_ahead_than_a_run() -> None:
    busy = Stream([(each, f"{each}") for each in range(100)], 1)
    quiet = Stream([(each, f"{each}") for each in (0, 99)], 1)
    merge = PacedStreamMerger([busy, quiet], Schedule(_START, _START + 10**6, 0.001, ManualClock()))
    assert merge.due_in() == 0
    for _ in merge.steps():
        if merge.due_in() > 0:
            break
    assert merge.pending() is None
    assert len(busy._messages) >= 98
    assert len(quiet._messages) == 1


def test_paced_a_failure_comes_after_what_precedes_it() -> None:
    one = Stream([(1, "a"), (3, "c"), (3, "(c)")], 9, OSError("gone"))
    two = Stream([(2, "b"), (4, "d"), (5, "e")], 9)
    steps: list[Merged] = []
    with pytest.raises(OSError, match="gone"):
        steps.extend(
            PacedStreamMerger(
                [one, two], Schedule(_START, _START + 10**6, 0.001, ManualClock())
            ).steps()
        )
    assert _texts(iter(steps)) == ["a", "b", "c", "(c)"]
