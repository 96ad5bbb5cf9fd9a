"""Replays: history, normalized or raw, as the batches of bytes that the server sends."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict, Unpack

import msgspec

from tardis_machine.filters import Filter
from tardis_machine.history import History
from tardis_machine.merge import Batch
from tardis_machine.normalize import Malformed, NormalizeError
from tardis_machine.options import (
    ReplayNormalizedOptions,
    ReplayOptions,
    parse_replay,
    parse_replay_normalized,
)
from tardis_machine.replay.normalized import NormalizedReplay
from tardis_machine.replay.raw import MergedRawReplay, NativeReplay, RawReplay
from tardis_machine.sample import SAMPLE

__all__ = [
    "Batch",
    "HistoryOptions",
    "Malformed",
    "MergedRawReplay",
    "NativeReplay",
    "NormalizeError",
    "NormalizedReplay",
    "RawReplay",
    "replay",
    "replay_normalized",
    "replay_normalized_many",
    "replay_raw",
]


class _Where(TypedDict, total=False):
    endpoint: str
    api_key: str
    cache_dir: Path | str | None
    cache_max_bytes: int | None


class HistoryOptions(_Where, total=False):
    """Where history comes from, for a replay that makes its own."""

    sample: bool


def replay_normalized_many(
    options: Sequence[ReplayNormalizedOptions],
    *,
    history: History,
    strict: bool = False,
    closes_bars: bool = False,
    fetched_types: Sequence[str] = (),
    on_malformed: Callable[[Malformed], None] | None = None,
) -> NormalizedReplay:
    """Replay several streams merged into one."""
    return NormalizedReplay(
        options,
        history=history,
        strict=strict,
        closes_bars=closes_bars,
        fetched_types=fetched_types,
        on_malformed=on_malformed,
    )


def replay_normalized(
    *,
    exchange: str,
    from_: str | datetime,
    to: str | datetime,
    data_types: Sequence[str],
    symbols: Sequence[str] | None = None,
    with_disconnect_messages: bool = False,
    strict: bool = False,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> NormalizedReplay:
    """Replay one exchange's normalized and computed messages.

    >>> for trade in replay_normalized(exchange="bitmex", from_="2024-03-01", to="2024-03-02",
    ...                                symbols=["XBTUSD"], data_types=["trade"]): ...
    """
    asked = {
        "exchange": exchange,
        "from": _iso(from_),
        "to": _iso(to),
        "dataTypes": list(data_types),
        "symbols": None if symbols is None else list(symbols),
        "withDisconnectMessages": with_disconnect_messages,
    }
    options = parse_replay_normalized(msgspec.json.encode(asked).decode())
    return NormalizedReplay(
        options,
        history=history or _history(**where),
        strict=strict,
        owns_history=history is None,
    )


def replay_raw(options: ReplayOptions, *, history: History, strict: bool = False) -> RawReplay:
    """Replay what an exchange sent, for validated options."""
    return RawReplay(options, history=history, strict=strict)


def replay(
    *,
    exchange: str,
    from_: str | datetime,
    to: str | datetime,
    filters: Sequence[Filter] = (),
    with_disconnects: bool = False,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> RawReplay:
    """Replay what an exchange sent, as it was recorded; a disconnect can be an empty line."""
    asked = {
        "exchange": exchange,
        "from": _iso(from_),
        "to": _iso(to),
        "filters": list(filters),
        "withDisconnects": with_disconnects,
    }
    options = parse_replay(msgspec.json.encode(asked).decode())
    return RawReplay(options, history=history or _history(**where), owns_history=history is None)


def _history(*, sample: bool = False, **where: Unpack[_Where]) -> History:
    return History(**where, source=SAMPLE if sample else None)


def _iso(time: str | datetime) -> str:
    if isinstance(time, str):
        return time
    moment = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return moment.astimezone(UTC).isoformat()
