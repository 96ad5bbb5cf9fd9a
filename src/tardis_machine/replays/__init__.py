"""Replays of history, normalized or raw: as messages, tables, or the bytes of the server."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack, overload

from tardis_machine.config import ConfigError, from_dict, resolve
from tardis_machine.history import History
from tardis_machine.history.client import API_WAIT_S
from tardis_machine.history.sample import SAMPLE
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.log import show_warnings
from tardis_machine.messages import (
    BookChange,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
)
from tardis_machine.replays.arguments import (
    Filters,
    Moment,
    NormalizedRequest,
    RawRequest,
    Span,
    Types,
    read_arguments,
)
from tardis_machine.replays.base import MessageReplay, ReplayEndedError
from tardis_machine.replays.merger import Batch
from tardis_machine.replays.normalized import NormalizedReplay, TableTypeError
from tardis_machine.replays.normalizer import Malformed, NormalizeError
from tardis_machine.replays.raw import MergedLines, MergedRawReplay, NativeReplay, RawReplay
from tardis_machine.replays.recorded import RawMessage, RawMessageError
from tardis_machine.replays.requests import (
    OptionsError,
    replay_normalized_options,
    replay_options,
)

__all__ = [
    "Batch",
    "Malformed",
    "MergedRawReplay",
    "MessageReplay",
    "NativeReplay",
    "NormalizeError",
    "NormalizedReplay",
    "NormalizedRequest",
    "RawMessage",
    "RawMessageError",
    "RawReplay",
    "RawRequest",
    "ReplayEndedError",
    "TableTypeError",
    "replay",
    "replay_normalized",
]


class _Where(TypedDict, total=False):
    endpoint: str
    api_key: str
    cache_dir: Path | str | None
    cache_max_bytes: int | None
    max_slices: int
    api_wait_s: float


class HistoryOptions(_Where, total=False):
    """Arguments of the `History` that a replay opens if it gets none."""

    sample: bool


class _Source(HistoryOptions, total=False):
    history: History | None


class _Normalizing(_Source, total=False):
    strict: bool


class _One(Span, _Normalizing, total=False):
    symbols: Sequence[str] | None
    exact: bool | None


@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["trade"]], **arguments: Unpack[_One]
) -> NormalizedReplay[Trade]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["book_change"]], **arguments: Unpack[_One]
) -> NormalizedReplay[BookChange]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["derivative_ticker"]], **arguments: Unpack[_One]
) -> NormalizedReplay[DerivativeTicker]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["book_ticker"]], **arguments: Unpack[_One]
) -> NormalizedReplay[BookTicker]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["liquidation"]], **arguments: Unpack[_One]
) -> NormalizedReplay[Liquidation]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["option_summary"]], **arguments: Unpack[_One]
) -> NormalizedReplay[OptionSummary]: ...
@overload
def replay_normalized(
    exchange: str, *, data_types: Types[Literal["quote"]], **arguments: Unpack[_One]
) -> NormalizedReplay[BookSnapshot]: ...
@overload
def replay_normalized(
    exchange: str,
    *,
    data_types: Sequence[str],
    with_disconnect_messages: bool = False,
    **arguments: Unpack[_One],
) -> NormalizedReplay[Message]: ...
@overload
def replay_normalized(
    exchange: Sequence[NormalizedRequest], /, **arguments: Unpack[_Normalizing]
) -> NormalizedReplay[Message]: ...
def replay_normalized(
    exchange: str | Sequence[NormalizedRequest] | None = None,
    *,
    from_: Moment | None = None,
    to: Moment | None = None,
    data_types: Sequence[str] | None = None,
    symbols: Sequence[str] | None = None,
    with_disconnect_messages: bool = False,
    exact: bool | None = None,
    speed: float | None = None,
    wait_when_data_not_yet_available: bool | float = False,
    from_date: Moment | None = None,
    to_date: Moment | None = None,
    strict: bool = False,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> NormalizedReplay[Any]:
    """Return a replay of normalized and computed messages.

    >>> for trade in replay_normalized("bitmex", from_="2024-03-01", to="2024-03-02",
    ...                                symbols=["XBTUSD"], data_types=["trade"]): ...

    Args:
        exchange: Exchange id; or a list of dictionaries of the arguments but `strict`,
            `history` and `where`, for several replays merged by local time.
        from_: Start (inclusive): ISO text, date or datetime, UTC unless it has a zone.
        to: End (exclusive), like `from_`.
        data_types: One or several data types, such as "trade" or "trade_bar_1m".
        symbols: Symbols as the exchange spells them. Default: all symbols.
        with_disconnect_messages: Whether to include a `Disconnect` where the recorder lost its
            connection. Default: False.
        exact: Whether to begin and end at `from_` and `to` to the microsecond, instead of at
            whole minutes. Default: True for tables, False for messages and batches.
        speed: Multiple of recorded time: 1 is as it happened, 10 ten times as fast. Default: as
            fast as possible.
        wait_when_data_not_yet_available: Whether `to` may lie in the future. Each minute is then
            fetched when it is 30 minutes old, or as many minutes as given, at least 6.
            Default: False.
        from_date: Another name of `from_`.
        to_date: Another name of `to`.
        strict: Whether a line that cannot be normalized raises NormalizeError, instead of being
            logged and left out. Default: False.
        history: Source of the data. Default: a `History` of the arguments in `where`, which the
            replay closes.
        **where: Arguments of that `History`, and `sample` for the built-in sample data.

    Returns:
        The replay: an iterator over messages, with `batches()`, `to_arrow()`, `to_pandas()` and
        `to_polars()`.

    Raises:
        OptionsError: An argument is missing, unknown or invalid.
    """
    requests = read_arguments(
        exchange,
        from_=from_,
        to=to,
        from_date=from_date,
        to_date=to_date,
        data_types=data_types,
        symbols=symbols,
        with_disconnect_messages=with_disconnect_messages,
        exact=exact,
        speed=speed,
        wait_when_data_not_yet_available=wait_when_data_not_yet_available,
    )
    return NormalizedReplay(
        replay_normalized_options(requests, exact_tables=True),
        history=_chosen(history, where),
        strict=strict,
        owns_history=history is None,
        warns=True,
    )


class _Raw(_Source, total=False):
    from_date: Moment
    to_date: Moment
    exact: bool
    speed: float | None
    wait_when_data_not_yet_available: bool | float


@overload
def replay(
    exchange: str,
    from_: Moment | None = None,
    to: Moment | None = None,
    filters: Filters | None = None,
    *,
    with_disconnects: Literal[False] = False,
    **arguments: Unpack[_Raw],
) -> RawReplay[RawMessage]: ...
@overload
def replay(
    exchange: str,
    from_: Moment | None = None,
    to: Moment | None = None,
    filters: Filters | None = None,
    *,
    with_disconnects: bool,
    **arguments: Unpack[_Raw],
) -> RawReplay[RawMessage | None]: ...
@overload
def replay(exchange: Sequence[RawRequest], /, **arguments: Unpack[_Source]) -> MergedLines: ...
def replay(
    exchange: str | Sequence[RawRequest] | None = None,
    from_: Moment | None = None,
    to: Moment | None = None,
    filters: Filters | None = None,
    *,
    with_disconnects: bool = False,
    exact: bool = False,
    speed: float | None = None,
    wait_when_data_not_yet_available: bool | float = False,
    from_date: Moment | None = None,
    to_date: Moment | None = None,
    history: History | None = None,
    **where: Unpack[HistoryOptions],
) -> RawReplay[Any] | MergedLines:
    """Return a replay of messages as the exchange sent them.

    >>> for local_timestamp, message in replay("bitmex", "2024-03-01", "2024-03-02",
    ...                                        [Channel("trade", ["XBTUSD"])]): ...

    Args:
        exchange: Exchange id; or a list of dictionaries of the arguments but `history` and `where`,
            for several replays merged by local time.
        from_: Start (inclusive): ISO text, date or datetime, UTC unless it has a zone.
        to: End (exclusive), like `from_`.
        filters: Channels, each with its symbols. Default: all channels.
        with_disconnects: Whether to yield None where the recorder lost its connection. Default:
            False.
        exact: Whether to begin and end at `from_` and `to` to the microsecond, instead of at
            whole minutes. Default: False.
        speed: Multiple of recorded time: 1 is as it happened, 10 ten times as fast. Default: as
            fast as possible.
        wait_when_data_not_yet_available: Whether `to` may lie in the future. Each minute is then
            fetched when it is 30 minutes old, or as many minutes as given, at least 6.
            Default: False.
        from_date: Another name of `from_`.
        to_date: Another name of `to`.
        history: Source of the data. Default: a `History` of the arguments in `where`, which the
            replay closes.
        **where: Arguments of that `History`, and `sample` for the built-in sample data.

    Returns:
        The replay: an iterator over pairs of local time and decoded message.

    Raises:
        OptionsError: An argument is missing, unknown or invalid.
    """
    options = [
        replay_options(request)
        for request in read_arguments(
            exchange,
            from_=from_,
            to=to,
            from_date=from_date,
            to_date=to_date,
            filters=filters,
            with_disconnects=with_disconnects,
            exact=exact,
            speed=speed,
            wait_when_data_not_yet_available=wait_when_data_not_yet_available,
        )
    ]
    if len(options) > 1 and any(option.with_disconnects for option in options):
        raise OptionsError("with_disconnects: a disconnect does not tell which replay it is of")
    source = _chosen(history, where)
    if len(options) > 1:
        return MergedLines(options, history=source, owns_history=history is None)
    return RawReplay(options[0], history=source, owns_history=history is None)


def _chosen(history: History | None, where: HistoryOptions) -> History:
    """Return the caller's history, or open one; raise OptionsError for arguments of both."""
    unknown = where.keys() - HistoryOptions.__annotations__.keys()
    if unknown:
        raise OptionsError(f"unknown argument: {min(unknown)}")
    if history is None:
        return _history(**where)
    if not isinstance(history, History):
        raise OptionsError(f"history: {type(history).__name__}, expected a History")
    also_set = [name for name, value in where.items() if value is not None and value is not False]
    if also_set:
        raise OptionsError(f"{also_set[0]} is given beside a history, which has its own")
    return history


def _history(*, sample: bool = False, **where: Unpack[_Where]) -> History:
    """Open a history with these arguments; missing ones come from the environment."""
    # TM_CONFIG names a file with settings of the server, which do not apply to a Python program.
    environ = {name: value for name, value in os.environ.items() if name != "TM_CONFIG"}
    config = resolve([HistoryConfig], {}, environ)[HistoryConfig]
    try:
        arguments = from_dict(HistoryConfig, where)
    except ConfigError as error:
        name = error.flag.removeprefix("--").replace("-", "_")
        raise ConfigError(name, error.value, error.allowed) from None
    overrides = {
        name: getattr(arguments, name)
        for name, value in where.items()
        # None is a value of these: no key, the default folder, no limit.
        if value is not None or name in {"api_key", "cache_dir", "cache_max_bytes"}
    }
    config = replace(config, **overrides)
    return History(
        endpoint=config.endpoint,
        api_key=config.api_key or "",
        cache_dir=config.cache_dir,
        cache_max_bytes=config.cache_max_bytes,
        max_slices=config.max_slices,
        api_wait_s=API_WAIT_S if config.api_wait_s is None else config.api_wait_s,
        source=SAMPLE if sample or config.sample_data else None,
    )


show_warnings()
