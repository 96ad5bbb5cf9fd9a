"""Filters: which channels and symbols of an exchange a replay reads."""

from collections.abc import Iterable, Sequence, Set
from hashlib import sha256

import msgspec


class Filter(msgspec.Struct, omit_defaults=True, frozen=True):
    """A channel with its symbols; None and an empty tuple are every symbol."""

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
    by_channel: dict[str, set[tuple[str, ...] | None]] = {}
    for each in filters:
        by_channel.setdefault(each.channel, set()).add(each.symbols)
    return [Filter(channel, _merged(lists)) for channel, lists in sorted(by_channel.items())]


def _merged(lists: Set[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the symbols of all lists; a request for every symbol keeps its form."""
    if None in lists:
        return None
    if () in lists:
        return ()
    return tuple(sorted({symbol for symbols in lists for symbol in symbols or ()}))


def to_json(filters: Sequence[Filter]) -> str:
    """Compact JSON, as it goes into the request and into the cache's hash."""
    return msgspec.json.encode(filters).decode()


def cache_keys(filters: Sequence[Filter]) -> tuple[str, ...]:
    """Return the cache's directory names for normalized filters: ours first, then the others'."""
    forms = (
        msgspec.json.encode(filters),
        msgspec.json.encode([_ExplicitFilter(each.channel, each.symbols) for each in filters]),
    )
    return tuple(dict.fromkeys(sha256(form).hexdigest() for form in forms))
