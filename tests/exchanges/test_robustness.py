"""Mappers emit valid messages or raise an error of the message, for any bytes of a feed."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tardis_machine import exchanges, messages
from tests.exchanges import fixtures
from tests.exchanges.feed import LOCAL, Feed

TIME = "2024-03-01T00:00:00.500Z"


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(
        ["", "0", "-1.50", "1e400", "nan", "Infinity", "1_0", "Buy", TIME, "\ud7ff\0"]
    )
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=6,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Name every place in a message."""
    inner: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        inner = list(value.items())
    elif isinstance(value, list):
        inner = list(enumerate(value))
    return [p for key, each in inner for p in ((*path, key), *_places(each, (*path, key)))]


# What a JSON encoder would not write, put where a value was.
_HOSTILE = (b"NaN", b"-", b"1" * 4000, b"1e99999", b'"\xff\xfe"', b"[" * 3000, b"{" * 50, b'"', b"")
_MARK = "the place of something hostile"


def _messages(exchange: str) -> list[Any]:
    return [msgspec.json.decode(step.raw) for run in fixtures.runs(exchange) for step in run.steps]


@st.composite
def _spoiled(draw: st.DrawFn, known: list[Any]) -> bytes:
    """Draw a message of which a field is missing or replaced, bytes are changed, or none of it."""
    message = copy.deepcopy(draw(st.sampled_from(known)))
    for _ in range(draw(st.integers(0, 2))):
        places = _places(message)
        if not places:
            break
        *way, last = draw(st.sampled_from(places))
        parent: Any = message
        for key in way:
            parent = parent[key]
        if draw(st.booleans()):
            parent[last] = draw(_JSON | st.just(_MARK))
        else:
            del parent[last]
    line = msgspec.json.encode(message)
    line = line.replace(msgspec.json.encode(_MARK), draw(st.sampled_from(_HOSTILE)))
    if draw(st.integers(0, 9)) == 0:
        start = draw(st.integers(0, len(line)))
        line = line[:start] + draw(st.binary(max_size=3)) + line[start + draw(st.integers(0, 9)) :]
    return line


@pytest.mark.fuzz
@pytest.mark.parametrize("exchange", exchanges.names())
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_spoiled_messages_give_valid_messages_or_errors_of_the_message(
    exchange: str, data: st.DataObject
) -> None:
    made = data.draw(st.sampled_from([fixtures.created(run) for run in fixtures.runs(exchange)]))
    live = data.draw(st.booleans())
    feed = Feed(exchange, exchanges.get(exchange).data_types(), made, live=live)
    for line in data.draw(st.lists(_spoiled(_messages(exchange)), min_size=1, max_size=8)):
        feed.emitter.begin(LOCAL)
        try:
            assert feed.handle(line) in (True, False)
        except ValueError as e:
            assert str(e)  # noqa: PT017
        messages.decode_lines(feed.emitter.take().data)


@pytest.mark.parametrize("exchange", exchanges.names())
@settings(max_examples=50, deadline=None)
@given(line=st.binary(max_size=60))
def test_bytes_of_no_meaning_are_errors_of_the_message(exchange: str, line: bytes) -> None:
    feed = Feed(exchange, exchanges.get(exchange).data_types())
    try:
        assert not feed.handle(line)
    except ValueError as e:
        assert str(e)  # noqa: PT017
    assert feed.emitter.take().count == 0
