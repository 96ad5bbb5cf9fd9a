"""Described channels both ways: lines that the kernel takes, and the same lines through mappers."""

import pkgutil
import re
from contextlib import suppress
from functools import cache
from importlib import import_module
from itertools import chain
from typing import ClassVar

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tardis_machine import bounded, exchanges
from tardis_machine.engine import Emitter, create, parse_all
from tardis_machine.engine.shapes import AnyShape, Memory
from tardis_machine.messages.times import iso_us
from tardis_machine.replays.normalizer import Normalizer, ShapedNormalizer
from tests.kernel.described import (
    DATA_TYPES,
    DESCRIBED,
    LOCAL,
    Listening,
    messages,
    normalized,
    taken_by_shape,
)
from tests.kernel.implementations import chosen
from tests.kernel.variations import relaxed, variations
from tests.support import shapes

COMPUTED = ("trade_bar_1s", "quote", "book_snapshot_3_grouped10_1s")


def described() -> dict[int, str]:
    """All shapes that the exchanges' modules have, with their names."""
    found = {}
    for module in pkgutil.iter_modules(exchanges.__path__):
        for name, value in vars(import_module(f"{exchanges.__name__}.{module.name}")).items():
            if isinstance(value, AnyShape):
                found[id(value)] = f"{module.name}.{name}"
    return found


# What a damaged message may have instead of a value, or a key.
ODD_VALUES = (None, True, 0, -1, 1.5, "", "x", "1", "0.0", "-0", 10**15, 1e300, [], {}, [["1"]])


@st.composite
def damaged(draw: st.DrawFn, message: bytes) -> bytes:
    """A message with something else in it; or with blanks, or cut off."""
    how = draw(st.integers(0, 9))
    if how == 0:
        return message[: draw(st.integers(0, len(message)))]
    if how == 1:
        at = draw(st.integers(0, len(message)))
        added = draw(st.sampled_from((b" ", b'"', b"\\", b"0", b",", b"\xff")))
        return message[:at] + added + message[at:]
    if how == 2:
        return msgspec.json.format(message, indent=0)
    decoded = msgspec.json.decode(message)
    place = decoded
    while True:
        children = [key for key, value in _items(place) if isinstance(value, dict | list) and value]
        if not children or draw(st.integers(0, 3)) == 0:
            break
        place = place[draw(st.sampled_from(children))]
    keys = [key for key, _ in _items(place)]
    if keys:
        key = draw(st.sampled_from(keys))
        if isinstance(place, dict) and draw(st.booleans()):
            value = place.pop(key)
            place[draw(st.sampled_from(("other", key)))] = value
        else:
            place[key] = draw(st.sampled_from(ODD_VALUES))
    return msgspec.json.encode(decoded)


def _items(place):
    return list(place.items()) if isinstance(place, dict) else list(enumerate(place))


@st.composite
def feeds(draw: st.DrawFn, name: str) -> tuple[int, list[bytes]]:
    """A stream of an exchange's own messages, some of them again, some damaged."""
    created, raw = draw(st.sampled_from(messages(name)))
    order = draw(st.lists(st.sampled_from(raw), max_size=12))
    lines = []
    for number, message in enumerate([*raw[:6], *order]):
        odd = draw(st.integers(0, 3)) == 0
        content = draw(damaged(message)) if odd and number >= 3 else message
        if b"\n" in content:
            content = content.replace(b"\n", b" ")
        stamp = f"2024-03-01T00:00:{number // 3:02d}.{number % 3}000000Z "
        lines.append(stamp.encode() + content if draw(st.integers(0, 19)) else b"")
    return created, lines


def test_exchanges_describe_their_busiest_channels() -> None:
    assert {"bitmex", "binance-futures", "deribit"} <= set(DESCRIBED)
    assert all(
        taken_by_shape(name).total() > 200 for name in ("bitmex", "binance-futures", "deribit")
    )


def test_fixtures_have_messages_of_every_shape() -> None:
    taken = {shape for name in DESCRIBED for shape in taken_by_shape(name)}
    unseen = [name for shape, name in described().items() if shape not in taken]
    assert unseen == [], "nothing would compare these with what mappers make"


@pytest.mark.parametrize("name", DESCRIBED)
@settings(max_examples=25)  # of each exchange; fuzz.py goes on for longer
@given(data=st.data())
def test_shapes_make_what_mappers_make(name: str, data: st.DataObject) -> None:
    created, lines = data.draw(feeds(name))
    types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
    asked = data.draw(st.lists(st.sampled_from(types), min_size=1, unique=True))
    asked += data.draw(st.sampled_from(((), COMPUTED)))
    with chosen("python"):
        expected = normalized(Normalizer, name, lines, asked, created)
    with chosen("compiled"):
        assert normalized(ShapedNormalizer, name, lines, asked, created) == expected


class Swapping(Listening):
    """An emitter that is told of another shape in the place of one."""

    def __init__(self, emitter: Emitter, shape: AnyShape, other: AnyShape) -> None:
        super().__init__(emitter)
        self._shape = shape
        self._other = other

    def describe(self, head: bytes, shape: AnyShape, memory: Memory | None = None) -> None:
        super().describe(head, self._other if shape is self._shape else shape, memory)


class Watching(ShapedNormalizer):
    """Remembers which lines the kernel left to mappers."""

    left: ClassVar[list[bytes]]

    def _take_line(self, at: int, local: str) -> None:
        self.left.append(self._stream.index[at])
        super()._take_line(at, local)


def made_of(kind: type[Normalizer], name: str, lines: list[bytes], created: int) -> list[object]:
    """Messages that become of lines, however many go into a run, and counts of the others."""
    types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
    found, malformed, ignored = normalized(kind, name, lines, types, created)
    return [*chain.from_iterable(found[::3]), malformed, ignored]


def shaped(name: str, lines: list[bytes], created: int) -> tuple[list[object], list[bytes]]:
    """What the kernel makes of lines, and which it leaves to mappers."""
    Watching.left = []
    return made_of(Watching, name, lines, created), Watching.left


@cache
def examples(name: str) -> dict[int, tuple[AnyShape, int, list[bytes]]]:
    """Lines for each shape of an exchange: its feed, then variations of what has the shape."""
    found: dict[int, tuple[AnyShape, int, list[bytes]]] = {}
    for created, raw in messages(name)[::-1]:
        types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
        emitter = Listening(create(name, parse_all(types)))
        mapper = exchanges.get(name).mapper(types, created, emitter)
        having: dict[int, list[bytes]] = {}
        for message in raw * 2:
            with suppress(ValueError):
                shapes.handle(emitter, mapper, message, LOCAL)
                if shapes.take(emitter, message, LOCAL):
                    head = max((head for head in emitter.told if head in message), key=len)
                    having.setdefault(id(emitter.told[head]), []).append(message)
        for shape in emitter.told.values():
            if id(shape) in having:
                several = list(dict.fromkeys(having[id(shape)]))[:4]
                varied = [
                    each
                    for one in several
                    for other in variations(one, shape)
                    for each in (other, other, one)
                ]
                lines = [
                    f"{iso_us(created + number)[:-1]}0Z ".encode() + message.replace(b"\n", b" ")
                    for number, message in enumerate([*raw, *raw, *varied])
                ]
                found[id(shape)] = (shape, created, lines)
    return found


@pytest.mark.parametrize("name", DESCRIBED)
def test_every_flag_of_a_shape_decides_in_an_example(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an example both kernels make the same; without the flag, it is another or is not taken."""
    undecided = []
    with chosen("compiled"):
        by_shape = examples(name)
    assert by_shape.keys() >= taken_by_shape(name).keys() & described().keys()
    for shape, created, lines in by_shape.values():
        with chosen("python"):
            expected = made_of(Normalizer, name, lines, created)
        with chosen("compiled"):
            made, left = shaped(name, lines, created)
            assert made == expected
            for place, other in relaxed(shape):
                with monkeypatch.context() as swapped:
                    swapped.setattr(
                        "tardis_machine.engine.create",
                        lambda *given, one=shape, two=other: Swapping(create(*given), one, two),
                    )
                    if shaped(name, lines, created) == (made, left):
                        undecided.append(f"{described()[id(shape)]}: {place}")
    assert undecided == []


@pytest.mark.parametrize("name", ["bitmex", "binance-futures", "deribit", "okex"])
def test_a_key_that_differs_in_its_last_letter_is_another(name: str) -> None:
    types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
    for created, raw in messages(name):
        unlike = {tuple(re.findall(rb'"(\w+)":', message)): message for message in raw}
        renamed = [
            message.replace(b'"%b":' % key, b'"%b_":' % key[:-1])
            for keys, message in unlike.items()
            for key in sorted(set(keys))
        ]
        several = [*unlike.values(), *renamed][:900]
        lines = [
            f"2024-03-01T00:00:00.{number:07d}Z ".encode() + message
            for number, message in enumerate(several)
        ]
        with chosen("python"):
            expected = normalized(Normalizer, name, lines, types, created)
        with chosen("compiled"):
            assert normalized(ShapedNormalizer, name, lines, types, created) == expected


@pytest.mark.parametrize("name", ["hyperliquid", "gate-io", "kucoin", "kucoin-futures"])
def test_what_a_mapper_forgets_passes_no_gate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_NAMES", 1)
    types = [each for each in DATA_TYPES if each in exchanges.get(name).types]
    for created, raw in messages(name):
        stamps = (f"2024-03-01T00:00:00.{number:07d}Z ".encode() for number in range(1000))
        lines = [next(stamps) + message for message in raw * 3]
        with chosen("python"):
            expected = normalized(Normalizer, name, lines, types, created)
        with chosen("compiled"):
            assert normalized(ShapedNormalizer, name, lines, types, created) == expected
