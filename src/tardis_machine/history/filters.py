"""Filters: the channels and symbols of an exchange that a replay reads."""

from collections.abc import Iterable, Sequence, Set
from hashlib import sha256

import msgspec


class Filter(msgspec.Struct, omit_defaults=True, frozen=True):
    """A channel with its symbols; None and an empty tuple mean every symbol."""

    channel: str
    symbols: tuple[str, ...] | None = None


class Channel(msgspec.Struct, frozen=True):
    """A filter as the official Python clients spell it."""

    name: str
    symbols: Sequence[str] | None = None


class _ExplicitFilter(msgspec.Struct, frozen=True):
    """A filter as the official Python client writes it: `"symbols":null` instead of no key."""

    channel: str
    symbols: tuple[str, ...] | None = None


def normalize(filters: Iterable[Filter]) -> list[Filter]:
    """Return one filter per channel, sorted, with sorted symbols and without duplicates."""
    by_channel: dict[str, set[tuple[str, ...] | None]] = {}
    for item in filters:
        by_channel.setdefault(item.channel, set()).add(item.symbols)
    return [Filter(channel, _merged(lists)) for channel, lists in sorted(by_channel.items())]


def _merged(lists: Set[tuple[str, ...] | None]) -> tuple[str, ...] | None:
    """Return the union of symbol lists; None or () if a list has that, since both mean all."""
    if None in lists:
        return None
    if () in lists:
        return ()
    return tuple(sorted({symbol for symbols in lists for symbol in symbols or ()}))


def to_json(filters: Sequence[Filter]) -> str:
    """Return filters as compact JSON, as the API's requests have it."""
    return msgspec.json.encode(filters).decode()


def cache_keys(filters: Sequence[Filter]) -> tuple[str, ...]:
    """Return the cache's directory names for normalized filters, without duplicates.

    Slices are stored under the first. The others are those of the official Python client, which
    are only read.
    """
    forms = (
        msgspec.json.encode(filters),
        msgspec.json.encode([_ExplicitFilter(item.channel, item.symbols) for item in filters]),
    )
    return tuple(dict.fromkeys(sha256(form).hexdigest() for form in forms))
