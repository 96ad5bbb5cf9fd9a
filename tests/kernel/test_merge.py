"""What the kernel emitted, interleaved by the kernel: as Python interleaves it."""

from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine.engine import Taken
from tardis_machine.replays.merger import StreamMerger
from tests.kernel.implementations import NAMES, chosen, emitters
from tests.support.merge_inputs import Message, Stream, local_time, named


class Emitted(Stream):
    """A stream whose messages went through the compiled emitter."""

    def __init__(self, messages: Sequence[Message], size: int) -> None:
        super().__init__(messages, size)
        _, self._emitter = emitters("x", ["trade"])

    def take(self) -> Taken:
        for us, text in self._run:
            self._emitter.begin(local_time(us))
            self._emitter.trade("S", text, 1, 1, "buy", None)
        self._run = []
        return self._emitter.take()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.lists(st.integers(0, 12), max_size=12).map(sorted), min_size=2, max_size=4),
    st.lists(st.integers(0, 12), max_size=4),
    st.integers(1, 5),
)
def test_streams_of_which_one_may_go_back(
    times: list[list[int]], others: list[int], size: int
) -> None:
    found = []
    for name in NAMES:
        merge = StreamMerger([Emitted(each, size) for each in named([*times, others])])
        with chosen(name):
            found.append(b"".join(step.batch().data for step in merge.steps()))
    assert found[0] == found[1]
    assert found[0].count(b"\n") == sum(map(len, times)) + len(others)
