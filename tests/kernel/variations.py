"""Variations of a raw message, in which each condition of its shape is met or not."""

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import msgspec

from tardis_machine.engine.shapes import AnyShape

_REMOVED = object()
_LONG = 10


def variations(message: bytes, shape: AnyShape) -> Iterator[bytes]:
    """Yield the message with each of its values replaced by others, one at a time.

    Then with each value under the other names of the shape, with the rows of one table in another
    one's place and with single cells of them, and with all tables empty.
    """
    decoded = msgspec.json.decode(message)
    for place, key in list(_places(decoded)):
        value = place[key]
        for other in _others(value):
            if other is not _REMOVED:
                place[key] = other
                yield msgspec.json.encode(decoded)
            elif isinstance(place, dict):
                rest = {name: place[name] for name in place if name != key}
                kept = dict(place)
                place.clear()
                place.update(rest)
                yield msgspec.json.encode(decoded)
                place.clear()
                place.update(kept)
            else:
                del place[key]
                yield msgspec.json.encode(decoded)
                place.insert(key, value)
        place[key] = value
    for place, key in list(_places(decoded)):
        if isinstance(place, dict):
            yield from _renamed(decoded, place, key, _names(shape))
    arrays = [(place, key) for place, key in _places(decoded) if _is_table(place[key])]
    empty = msgspec.json.decode(message)
    for place, key in list(_places(empty)):
        if _is_table(place[key]):
            place[key] = []
    yield msgspec.json.encode(empty)
    for other in [deepcopy(place[key]) for place, key in arrays]:
        for place, key in arrays:
            value, place[key] = place[key], other
            yield msgspec.json.encode(decoded)
            place[key] = value
            for row, cells in zip(value, other, strict=False):
                for at, cell in enumerate(cells[: len(row)]):
                    kept, row[at] = row[at], cell
                    yield msgspec.json.encode(decoded)
                    row[at] = kept


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, list) for each in value)


def _names(shape: Any) -> set[str]:
    """Collect the keys that a shape has something to say of."""
    if isinstance(shape, dict):
        return set(shape).union(*map(_names, shape.values()))
    if isinstance(shape, tuple):
        return set().union(*map(_names, shape))
    if isinstance(shape, msgspec.Struct):
        return _names(getattr(shape, "fields", ()))
    return set()


def _renamed(message: Any, place: dict[str, Any], key: str, names: set[str]) -> Iterator[bytes]:
    """Yield the message with a value under another name, instead of its own and beside it."""
    value = place[key]
    for name in sorted(names - place.keys()):
        place[name] = value
        yield msgspec.json.encode(message)
        del place[key]
        yield msgspec.json.encode(message)
        del place[name]
        place[key] = value


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each container with the key of each value in it; of a long array two."""
    if isinstance(value, dict):
        keys: list[Any] = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value))) if len(value) < _LONG else [0, len(value) - 1]
    else:
        return
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _others(value: Any) -> Iterator[Any]:
    yield from (_REMOVED, None)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield from (0, -value, str(value), value + 0.25, value * 1000)
    elif isinstance(value, str):
        yield from ("", "0", "0.00", value.upper(), value.lower(), "other", value + "0", value[:-1])
        try:
            number = float(value)
        except ValueError:
            return
        yield from (number, int(number), f"-{value}", f"{int(number)}.25")
    elif isinstance(value, list):
        yield from ([], value * 2)
    elif isinstance(value, dict):
        yield {}


def relaxed(shape: AnyShape) -> Iterator[tuple[str, AnyShape]]:
    """Yield the shape with each of its flags dropped, one at a time, with the flag's place."""
    for place, other in _relaxed(shape):
        assert isinstance(other, AnyShape)
        yield place, other


def _relaxed(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            inner = getattr(value, field.name)
            if field.default is not msgspec.NODEFAULT and inner != field.default:
                place = f"{type(value).__name__}.{field.name}"
                yield place, msgspec.structs.replace(value, **{field.name: field.default})
            for place, other in _relaxed(inner):
                yield place, msgspec.structs.replace(value, **{field.name: other})
    elif isinstance(value, dict):
        for key, inner in value.items():
            for place, other in _relaxed(inner):
                yield f"{key}: {place}", value | {key: other}
    elif isinstance(value, tuple):
        for number, inner in enumerate(value):
            for place, other in _relaxed(inner):
                yield f"{number}: {place}", (*value[:number], other, *value[number + 1 :])
