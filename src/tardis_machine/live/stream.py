"""Live streams for Python programs: normalized messages as exchanges send them."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypedDict, Unpack, overload

from tardis_machine.errors import TardisMachineError
from tardis_machine.live.errors import SlowConsumerError
from tardis_machine.live.hub import Hub, Joined
from tardis_machine.messages import (
    BookChange,
    BookSnapshot,
    BookTicker,
    DerivativeTicker,
    Liquidation,
    Message,
    OptionSummary,
    Trade,
    decode_lines,
)
from tardis_machine.replays import Batch
from tardis_machine.replays.arguments import StreamRequest, Types, read_arguments
from tardis_machine.replays.base import M_co
from tardis_machine.replays.requests import StreamNormalizedOptions, stream_normalized_options

_MAX_UNREAD: Final = 64 * 1024 * 1024


class StreamEndedError(TardisMachineError):
    """A second read of a live stream that was closed or whose loop was left."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this stream {what}: it is read by one loop, and ends with it. Ask for another one"
        )
        self.what = what


class NormalizedStream(Generic[M_co]):
    """Live messages of one or several exchanges, in the order of arrival.

    Iterate over the stream once for typed messages, or over `batches()` for bytes. It ends when it
    is closed or the loop is left. It raises SlowConsumerError if more than 64 MiB are unread, and
    TooManyErrorsError after 50 errors of an exchange in a row. A single error only reconnects; see
    `with_error_messages`.
    """

    def __init__(
        self,
        options: Sequence[StreamNormalizedOptions],
        *,
        hub: Hub | None = None,
    ) -> None:
        self.with_disconnects = any(request.with_disconnect_messages for request in options)
        self.with_errors = any(request.with_error_messages for request in options)
        self._hub = hub or Hub()
        self._owned = self._hub if hub is None else None
        self._options = options
        self._batches: deque[Batch] = deque()
        self._unread = 0
        self._failure: Exception | None = None
        self._closed = False
        self._arrived = asyncio.Event()
        self._joined: Joined | None = None

    def send(self, data: bytes, count: int) -> None:
        """Queue a batch for the consumer.

        The feeds call it in the event loop's thread for each batch. It raises SlowConsumerError
        if too much is unread; the feed then calls `end` with that error.
        """
        self._unread += len(data)
        if self._unread > _MAX_UNREAD:
            raise SlowConsumerError(self._unread, _MAX_UNREAD)
        self._batches.append(Batch(data, count))
        self._arrived.set()

    def end(self, error: Exception) -> None:
        """Make the consumer raise this error once it has read the queued batches.

        A feed calls it in the event loop's thread when it drops this stream.
        """
        self._failure = self._failure or error
        self._arrived.set()

    def _begin(self) -> None:
        if self._closed:
            raise StreamEndedError("was closed")
        if self._joined is not None:  # a loop that is left closes the stream later
            raise StreamEndedError("is being read, or was left")
        self._joined = self._hub.join(self._options, self)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Yield batches of whole messages as JSON lines; leaving the loop closes the stream."""
        self._begin()
        try:
            while True:
                while self._batches:
                    batch = self._batches.popleft()
                    self._unread -= len(batch.data)
                    yield batch
                if self._failure is not None:
                    raise self._failure
                if self._closed:
                    return
                self._arrived.clear()
                await self._arrived.wait()
        finally:
            await self.aclose()

    async def __aiter__(self) -> AsyncGenerator[M_co, None]:
        async with aclosing(self.batches()) as batches:
            async for batch in batches:
                for message in decode_lines(batch.data):
                    yield message  # type: ignore[misc]  # the overloads choose the type

    async def aclose(self) -> None:
        """Close the stream; a waiting consumer reaches its end. Harmless when repeated."""
        self._closed = True
        self._arrived.set()
        if self._joined is not None:
            self._joined.leave()
        if self._owned is not None:
            await self._owned.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.aclose()


class _One(TypedDict, total=False):
    symbols: Sequence[str] | None
    with_error_messages: Literal[False]
    timeout_interval_ms: int
    hub: Hub | None


@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["trade"]], **arguments: Unpack[_One]
) -> NormalizedStream[Trade]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["book_change"]], **arguments: Unpack[_One]
) -> NormalizedStream[BookChange]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["derivative_ticker"]], **arguments: Unpack[_One]
) -> NormalizedStream[DerivativeTicker]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["book_ticker"]], **arguments: Unpack[_One]
) -> NormalizedStream[BookTicker]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["liquidation"]], **arguments: Unpack[_One]
) -> NormalizedStream[Liquidation]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["option_summary"]], **arguments: Unpack[_One]
) -> NormalizedStream[OptionSummary]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["quote"]], **arguments: Unpack[_One]
) -> NormalizedStream[BookSnapshot]: ...
@overload
def stream_normalized(
    exchange: str,
    *,
    data_types: Sequence[str],
    symbols: Sequence[str] | None = None,
    with_disconnect_messages: bool = False,
    with_error_messages: bool = False,
    timeout_interval_ms: int | None = None,
    hub: Hub | None = None,
) -> NormalizedStream[Message]: ...
@overload
def stream_normalized(
    exchange: Sequence[StreamRequest], /, *, hub: Hub | None = None
) -> NormalizedStream[Message]: ...
def stream_normalized(
    exchange: str | Sequence[StreamRequest] | None = None,
    *,
    data_types: Sequence[str] | None = None,
    symbols: Sequence[str] | None = None,
    with_disconnect_messages: bool = False,
    with_error_messages: bool = False,
    timeout_interval_ms: int | None = None,
    hub: Hub | None = None,
) -> NormalizedStream[Any]:
    """Return a live stream of normalized and computed messages.

    >>> async for trade in stream_normalized("bitmex", symbols=["XBTUSD"],
    ...                                      data_types=["trade"]): ...

    Close the stream when done, best with `async with`.

    Args:
        exchange: Exchange id; or a list of dictionaries of the other arguments but `hub`, for
            several streams merged in the order of arrival.
        data_types: One or several data types, such as "trade" or "trade_bar_1m".
        symbols: Symbols as the exchange spells them. Default: all symbols, where the exchange
            can stream them.
        with_disconnect_messages: Whether to include a `Disconnect` when a connection ends.
            Default: False.
        with_error_messages: Whether to include an `ErrorMessage` when a source fails. Default:
            False.
        timeout_interval_ms: Milliseconds without data after which the stream reconnects; 0 for
            never. Default: 10,000.
        hub: Owner of the connections, to share them between streams. Default: a hub of this
            stream, which it closes.

    Returns:
        The stream; it connects when it is read.

    Raises:
        OptionsError: An argument is missing, unknown or invalid.
    """
    requests = read_arguments(
        exchange,
        data_types=data_types,
        symbols=symbols,
        with_disconnect_messages=with_disconnect_messages,
        with_error_messages=with_error_messages,
        timeout_interval_ms=timeout_interval_ms,
    )
    return NormalizedStream(stream_normalized_options(requests), hub=hub)
