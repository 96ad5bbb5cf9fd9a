import msgspec
import pytest

from tardis_machine.exchanges import MapperError
from tardis_machine.exchanges.dispatch import dispatcher
from tardis_machine.exchanges.exchange import Handler


class _Envelope(msgspec.Struct):
    topic: str | None = None


def _dispatcher(seen: list[tuple[str, bytes]], routed: list[str]) -> Handler:
    def route(topic: str) -> Handler | None:
        routed.append(topic)
        if topic.startswith("no"):
            return None

        def handler(line: bytes) -> bool:
            seen.append((topic, line))
            return not topic.startswith("false")

        return handler

    decode = msgspec.json.Decoder(_Envelope).decode
    return dispatcher(b'{"topic":"', lambda line: decode(line).topic, route)


def test_lines_reach_the_handler_of_their_channel() -> None:
    seen: list[tuple[str, bytes]] = []
    routed: list[str] = []
    handle = _dispatcher(seen, routed)
    lines = [b'{"topic":"a","x":1}', b'{"topic":"b"}', b'{"topic":"a","x":2}']
    assert [handle(line) for line in lines] == [True, True, True]
    assert seen == [("a", lines[0]), ("b", lines[1]), ("a", lines[2])]
    assert routed == ["a", "b"]


def test_a_handler_may_decline() -> None:
    assert not _dispatcher([], [])(b'{"topic":"false"}')


def test_channels_of_no_interest_are_not_decoded() -> None:
    routed: list[str] = []
    handle = _dispatcher([], routed)
    assert not handle(b'{"topic":"no", not even JSON')
    assert not handle(b'{"topic":"no", still not')
    assert routed == ["no"]


@pytest.mark.parametrize(
    "line",
    [b'{ "topic": "a"}', b'{"other":"x","topic":"a"}', b'{"topic":"\\u0061"}'],
)
def test_other_spellings_of_a_message_are_decoded(line: bytes) -> None:
    seen: list[tuple[str, bytes]] = []
    handle = _dispatcher(seen, [])
    assert handle(line)
    assert handle(line)
    assert seen == [("a", line), ("a", line)]


def test_a_message_without_channel_is_of_no_interest() -> None:
    handle = _dispatcher([], [])
    assert not handle(b"{}")
    assert not handle(b'{"topic":null}')
    assert not handle(b'{"success":true,"note":"of another kind"}')


@pytest.mark.parametrize("line", [b"", b"{", b'{"topic":"a', b"[]", b"\xff", b'{"topic":7}'])
def test_what_is_not_a_message_is_an_error(line: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        _dispatcher([], [])(line)


def test_nesting_that_no_decoder_takes_is_an_error_of_the_message() -> None:
    with pytest.raises(MapperError, match="nested too deeply"):
        _dispatcher([], [])(b'{"x":' + b"[" * 100_000)


def test_made_up_channels_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tardis_machine.exchanges.dispatch._MAX_HEADS", 2)
    routed: list[str] = []
    handle = _dispatcher([], routed)
    for topic in (b"a", b"b", b"c", b"a"):
        assert handle(b'{"topic":"' + topic + b'"}')
    assert routed == ["a", "b", "c", "a"]
