"""Filters: which channels and symbols of an exchange a replay reads."""

from collections.abc import Iterable, Sequence
from hashlib import sha256

import msgspec


class Filter(msgspec.Struct, omit_defaults=True, frozen=True):
    """A channel with its symbols; None is every symbol, an empty tuple none."""

    channel: str
    symbols: tuple[str, ...] | None = None


class Channel(msgspec.Struct, frozen=True):
    """A filter as the official Python clients spell it."""

    name: str
    symbols: Sequence[str] | None = None


class _ExplicitFilter(msgspec.Struct, frozen=True):
    """As the official Python client writes it: `"symbols":null` where Node leaves the key out."""

    channel: str
    symbols: tuple[str, ...] | None = None


def normalize(filters: Iterable[Filter]) -> list[Filter]:
    """One entry per channel, sorted by channel, its symbols sorted and without repetitions."""
    merged: dict[str, set[str] | None] = {}
    for each in filters:
        known = merged.get(each.channel, set())
        if known is None or each.symbols is None:
            merged[each.channel] = None
        else:
            merged[each.channel] = known | set(each.symbols)
    return [
        Filter(channel, None if symbols is None else tuple(sorted(symbols)))
        for channel, symbols in sorted(merged.items())
    ]


def to_json(filters: Sequence[Filter]) -> str:
    """Compact JSON, as it goes into the request and into the cache's hash."""
    return msgspec.json.encode(filters).decode()


def cache_keys(filters: Sequence[Filter]) -> tuple[str, ...]:
    """The cache's directory names for normalized filters: ours first, then where else to look."""
    forms = (
        msgspec.json.encode(filters),
        msgspec.json.encode([_ExplicitFilter(each.channel, each.symbols) for each in filters]),
    )
    return tuple(dict.fromkeys(sha256(form).hexdigest() for form in forms))
