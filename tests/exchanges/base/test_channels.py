import msgspec
import pytest

from tardis_machine.exchanges import MapperError
from tardis_machine.exchanges.base.channels import (
    AllHandlers,
    Dispatch,
    Handler,
    SharedDecoder,
    all_handlers,
    arrays,
    decoded,
    find,
    keyed,
    named,
    prefixed,
)

PREFIXED = prefixed(b'{"topic":"', "topic")
KEYED = keyed("topic")
NESTED = keyed("arg", "topic")


class _Message(msgspec.Struct):
    topic: str | None = None


_decode = msgspec.json.Decoder(_Message).decode
_any = msgspec.json.Decoder().decode
DECODED = decoded(_decode, lambda message: message.topic)


def _dispatcher(
    seen: list[tuple[str, bytes]], requested: list[str], dispatch: Dispatch = PREFIXED
) -> Handler:
    def handler_of(topic: str) -> Handler | None:
        requested.append(topic)
        if topic.startswith("no"):
            return None

        def handler(line: bytes) -> bool:
            seen.append((topic, line))
            return not topic.startswith("false")

        return handler

    return dispatch(all_handlers([handler_of]))


@pytest.mark.parametrize("dispatch", [PREFIXED, KEYED])
def test_lines_reach_the_handler_of_their_channel(dispatch: Dispatch) -> None:
    seen: list[tuple[str, bytes]] = []
    requested: list[str] = []
    handle = _dispatcher(seen, requested, dispatch)
    lines = [b'{"topic":"a","x":1}', b'{"topic":"b"}', b'{"topic":"a","x":2}']
    assert [handle(line) for line in lines] == [True, True, True]
    assert seen == [("a", lines[0]), ("b", lines[1]), ("a", lines[2])]
    assert requested == ["a", "b"]


def test_a_handler_may_decline() -> None:
    assert not _dispatcher([], [])(b'{"topic":"false"}')


def test_channels_of_no_interest_are_not_decoded() -> None:
    requested: list[str] = []
    handle = _dispatcher([], requested)
    assert not handle(b'{"topic":"no", not even JSON')
    assert not handle(b'{"topic":"no", still not')
    assert requested == ["no"]


@pytest.mark.parametrize("dispatch", [PREFIXED, KEYED])
@pytest.mark.parametrize(
    "line",
    [
        b'{ "topic": "a"}',
        b'{"other":"x","topic":"a"}',
        b'{"topic":"\\u0061"}',
        b'{"x\\"topic":"b","topic":"a"}',
        b'{"x":"%b","topic":"a"}' % (b"x" * 1000),
    ],
)
def test_other_spellings_of_a_message_are_found(line: bytes, dispatch: Dispatch) -> None:
    seen: list[tuple[str, bytes]] = []
    handle = _dispatcher(seen, [], dispatch)
    assert handle(line)
    assert handle(line)
    assert seen == [("a", line), ("a", line)]


def test_a_message_without_channel_is_of_no_interest() -> None:
    handle = _dispatcher([], [])
    assert not handle(b"{}")
    assert not handle(b'{"topic":null}')
    assert not handle(b'{"success":true,"note":"of another kind"}')


@pytest.mark.parametrize("line", [b"", b"{", b'{"topic":"a', b"\xff", b'["topic'])
@pytest.mark.parametrize("dispatch", [PREFIXED, KEYED, arrays(2), DECODED])
def test_what_is_not_a_message_is_an_error(line: bytes, dispatch: Dispatch) -> None:
    with pytest.raises(ValueError, match=r"."):
        _dispatcher([], [], dispatch)(line)


@pytest.mark.parametrize("dispatch", [PREFIXED, KEYED, arrays(2), decoded(_any, lambda _: None)])
@pytest.mark.parametrize("line", [b'{"x":' + b"[" * 100_000, b"[" * 100_000])
def test_nesting_that_no_decoder_takes_is_an_error_of_the_message(
    line: bytes, dispatch: Dispatch
) -> None:
    with pytest.raises(MapperError, match="nested too deeply"):
        _dispatcher([], [], dispatch)(line)


@pytest.mark.parametrize("dispatch", [PREFIXED, KEYED])
def test_made_up_channels_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch, dispatch: Dispatch
) -> None:
    monkeypatch.setattr("tardis_machine.exchanges.base.channels._MAX_PREFIXES", 2)
    requested: list[str] = []
    handle = _dispatcher([], requested, dispatch)
    for topic in (b"a", b"b", b"c", b"a"):
        assert handle(b'{"topic":"' + topic + b'"}')
    assert requested == ["a", "b", "c", "a"]


def test_a_key_may_be_nested() -> None:
    seen: list[tuple[str, bytes]] = []
    handle = _dispatcher(seen, [], NESTED)
    lines = [b'{"arg":{"topic":"a","x":1}}', b'{ "arg" : {"y":{"topic":7}, "topic" : "b"}}']
    assert [handle(line) for line in lines] == [True, True]
    assert [topic for topic, _ in seen] == ["a", "b"]


@pytest.mark.parametrize(
    ("line", "path", "text"),
    [
        (b'{"a":"x"}', ["a"], "x"),
        (b'{"b":{"a":"y"},"a":"x"}', ["a"], "x"),
        (b'{"b":["a","y"],"a":"x"}', ["a"], "x"),
        (b'{"b":"\\"a\\":\\"y","a":"\\u0078"}', ["a"], "x"),
        (b'{"a":{"b":"x"}}', ["a", "b"], "x"),
        (b'{"b":"y","a":{"c":{"b":"z"},"b":"x"}}', ["a", "b"], "x"),
        (b'{"a":7}', ["a"], None),
        (b'{"a":null,"b":"a"}', ["a"], None),
        (b'{"a":{"b":"x"}}', ["a"], None),
        (b'{"a":["b","x"]}', ["a", "b"], None),
        (b'{"c":{"b":"x"}}', ["a", "b"], None),
        (b'["a","x"]', ["a"], None),
        (b'[{"a":"x"}]', ["a"], None),
        (b"", ["a"], None),
    ],
)
def test_a_text_is_found_by_its_path(line: bytes, path: list[str], text: str | None) -> None:
    assert find(line, path) == text


def _announced(line: bytes) -> tuple[int, str] | None:
    message = msgspec.json.decode(line)
    return (message["id"], message["names"]) if "id" in message else None


def test_arrays_tell_their_names_at_the_end_or_by_a_number() -> None:
    seen: list[tuple[str, bytes]] = []
    requested: list[str] = []
    handle = _dispatcher(seen, requested, arrays(2, _announced))
    assert not handle(b'[89,"te",[1,2]]')
    assert not handle(b'{"event":"info"}')
    assert not handle(b'{"event":"subscribed","id":89,"names":"trades A"}')
    lines = [
        b'[89,"te",[1,2]]',
        b'[7,[1,2],"book","B"]',
        b'[89,["hb"],"book","B"]',
        b'[7, [1,2], "book", "B\\/C"]',
    ]
    assert [handle(line) for line in lines] == [True] * 4
    assert [name for name, _ in seen] == ["trades A", "book B", "book B", "book B/C"]
    assert not handle(b'[8,"te",[1,2]]')
    assert not handle(b'["x","y","no","B"]')
    assert not handle(b"[]")


def test_a_number_may_come_to_mean_something_else() -> None:
    seen: list[tuple[str, bytes]] = []
    handle = _dispatcher(seen, [], arrays(2, _announced))
    for name in ("trades A", "trades B"):
        handle(b'{"id":1,"names":"%b"}' % name.encode())
        assert handle(b"[1,2]")
    assert [name for name, _ in seen] == ["trades A", "trades B"]


def test_a_decoded_message_tells_its_channel_and_is_not_decoded_again() -> None:
    decodes: list[bytes] = []
    seen: list[tuple[str, str]] = []

    def decode(line: bytes) -> _Message:
        decodes.append(line)
        return _decode(line)

    def shared(name: str) -> SharedDecoder[_Message]:
        def see(message: _Message) -> bool:
            seen.append((name, message.topic or ""))
            return name == "second"

        return SharedDecoder(decode, see)

    types = [named({"a": shared("first")}), named({"a": shared("second"), "b": shared("second")})]
    handle = decoded(decode, lambda message: message.topic)(all_handlers(types))
    assert handle(b'{"topic":"a"}')
    assert handle(b'{"topic":"b"}')
    assert not handle(b'{"topic":"c"}')
    assert not handle(b"{}")
    assert seen == [("first", "a"), ("second", "a"), ("second", "b")]
    assert len(decodes) == 4


def test_types_that_share_a_channel_have_to_share_its_decoder() -> None:
    def handlers(_: str) -> list[Handler | SharedDecoder[_Message]]:
        return [lambda line: True, SharedDecoder(_decode, lambda message: True)]

    typed: AllHandlers = handlers
    with pytest.raises(TypeError, match="share its decoder"):
        PREFIXED(typed)(b'{"topic":"a"}')


def test_names_may_have_an_end_that_does_not_matter() -> None:
    handler_of = named({"trades": lambda line: True}, ".")
    assert handler_of("trades.BTC.raw") is not None
    assert handler_of("trades") is not None
    assert handler_of("trade.BTC") is None
    assert named({"trades.BTC": lambda line: True})("trades.BTC") is not None
