"""Live streams: what exchanges send now, normalized, for programs."""

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
    """A stream that was left, or closed, is asked for its messages again."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"this stream {what}: it is read by one loop, and ends with it. Ask for another one"
        )
        self.what = what


class NormalizedStream(Generic[M_co]):
    """Streams of exchanges, merged in the order of arrival.

    Iterate over it, once, for typed messages, or over `batches()` for the bytes. It ends when it
    is closed or that loop is left, and fails when its consumer is more than 64 MiB behind. An
    exchange that fails is tried again, see `with_error_messages`; after 50 errors in a row it fails
    as well.
    """

    def __init__(
        self,
        options: Sequence[StreamNormalizedOptions],
        *,
        hub: Hub | None = None,
    ) -> None:
        self.with_disconnects = any(each.with_disconnect_messages for each in options)
        self.with_errors = any(each.with_error_messages for each in options)
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
        """Take what arrived; called by the stream's feeds."""
        self._unread += len(data)
        if self._unread > _MAX_UNREAD:
            raise SlowConsumerError(self._unread, _MAX_UNREAD)
        self._batches.append(Batch(data, count))
        self._arrived.set()

    def end(self, error: Exception) -> None:
        """Fail, when what has arrived is consumed; called by the stream's feeds."""
        self._failure = self._failure or error
        self._arrived.set()

    def _begin(self) -> None:
        if self._closed:
            raise StreamEndedError("was closed")
        if self._joined is not None:  # who leaves a loop closes it a moment later
            raise StreamEndedError("is being read, or was left")
        self._joined = self._hub.join(self._options, self)

    async def batches(self) -> AsyncGenerator[Batch, None]:
        """Give the bytes of whole messages, as they arrive; the stream ends with its consumer."""
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
                    yield message  # type: ignore[misc]  # by the types asked for

    async def aclose(self) -> None:
        """Stop; a consumer that waits gets to the end. Harmless when repeated."""
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
    exchange: str, *, data_types: Types[Literal["trade"]], **asked: Unpack[_One]
) -> NormalizedStream[Trade]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["book_change"]], **asked: Unpack[_One]
) -> NormalizedStream[BookChange]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["derivative_ticker"]], **asked: Unpack[_One]
) -> NormalizedStream[DerivativeTicker]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["book_ticker"]], **asked: Unpack[_One]
) -> NormalizedStream[BookTicker]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["liquidation"]], **asked: Unpack[_One]
) -> NormalizedStream[Liquidation]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["option_summary"]], **asked: Unpack[_One]
) -> NormalizedStream[OptionSummary]: ...
@overload
def stream_normalized(
    exchange: str, *, data_types: Types[Literal["quote"]], **asked: Unpack[_One]
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
    """Stream one exchange's normalized and computed messages.

    >>> async for trade in stream_normalized("bitmex", symbols=["XBTUSD"],
    ...                                      data_types=["trade"]): ...

    A list of dictionaries of these arguments is several streams, in the order of arrival. Close it
    when done, best by `async with`.
    """
    asked = read_arguments(
        exchange,
        data_types=data_types,
        symbols=symbols,
        with_disconnect_messages=with_disconnect_messages,
        with_error_messages=with_error_messages,
        timeout_interval_ms=timeout_interval_ms,
    )
    return NormalizedStream(stream_normalized_options(asked), hub=hub)
