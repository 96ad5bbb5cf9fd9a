"""What one request, and all of them together, may ask of the server."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, TypeVar

from tardis_machine.config import Section, setting
from tardis_machine.engine.datatypes import BookSnapshots, parse
from tardis_machine.errors import TardisMachineError
from tardis_machine.replays.json_options import read_requests
from tardis_machine.replays.requests import (
    OptionsError,
    ReplayNormalizedOptions,
    StreamNormalizedOptions,
    replay_normalized_options,
    stream_normalized_options,
)
from tardis_machine.server.metrics import Metrics

_RETRY_AFTER_S: Final = 5

Normalized = TypeVar("Normalized", ReplayNormalizedOptions, StreamNormalizedOptions)


@dataclass(frozen=True, kw_only=True)
class LimitsConfig(Section, title="Limits", help_topic="limits"):
    """How much is served at once; each process of a cluster has these for itself."""

    max_replays: int = setting(
        100, help="replays at once; further ones are told to try again later", minimum=1
    )
    max_connections: int = setting(
        1000, help="connections at once on each of the two ports", minimum=1
    )
    max_streams: int = setting(100, help="streams that one request may merge", minimum=1)
    max_data_types: int = setting(
        100, help="data types of one request, those of all its streams together", minimum=1
    )
    max_depth: int = setting(5_000, help="levels of a book snapshot", minimum=1)
    max_levels: int = setting(
        10_000, help="levels of all book snapshots of one request together", minimum=1
    )
    idle_timeout_s: float = setting(
        75.0,
        help="a connection on which no request is under way for so long is closed, and one whose "
        "request takes so long to come",
        minimum=0.1,
    )
    stall_timeout_s: float = setting(
        300.0,
        help="a client that has data to take and takes none for so long is cut",
        minimum=0.1,
    )


class LimitError(OptionsError):
    """A request that asks for too much."""

    def __init__(self, limit: str, asked: int, allowed: int, message: str) -> None:
        self.limit = limit
        self.asked = asked
        self.allowed = allowed
        super().__init__(f"{message}, expected at most {allowed} ({LimitsConfig.flag(limit)})")


class BusyError(TardisMachineError):
    """A server that has enough to do."""

    status: Final = 503
    retry_after_s: Final = _RETRY_AFTER_S

    def __init__(self, allowed: int) -> None:
        self.allowed = allowed
        super().__init__(
            f"busy: {allowed} replays are being served, try again later "
            f"({LimitsConfig.flag('max_replays')})"
        )


class Limits:
    """Refuses, and counts what it refuses."""

    def __init__(self, config: LimitsConfig, metrics: Metrics) -> None:
        self.config = config
        self._limited = metrics.limited
        self._replays = 0

    def replay_normalized(self, text: str | None, *, strict: bool) -> list[ReplayNormalizedOptions]:
        """Read the options of a normalized replay that is not too much."""
        return self._within(replay_normalized_options(read_requests(text), strict=strict))

    def stream_normalized(self, text: str | None, *, strict: bool) -> list[StreamNormalizedOptions]:
        """Read the options of a normalized live stream that is not too much."""
        return self._within(stream_normalized_options(read_requests(text), strict=strict))

    @contextmanager
    def replay(self) -> Iterator[None]:
        """Be one of the replays that are served at once; raise BusyError if they are enough."""
        if self._replays >= self.config.max_replays:
            self._limited.labels("max_replays").inc()
            raise BusyError(self.config.max_replays)
        self._replays += 1
        try:
            yield
        finally:
            self._replays -= 1

    def _within(self, options: list[Normalized]) -> list[Normalized]:
        try:
            self._check(options)
        except LimitError as error:
            self._limited.labels(error.limit).inc()
            raise
        return options

    def _check(self, options: Sequence[Normalized]) -> None:
        types = [parse(name) for each in options for name in each.data_types]
        snapshots = [each for each in types if isinstance(each, BookSnapshots)]
        self._at_most("max_streams", len(options), 'invalid "options": {} streams')
        self._at_most("max_data_types", len(types), 'invalid "dataTypes": {} types in one request')
        for each in snapshots:
            self._at_most(
                "max_depth", each.depth, f'invalid "dataTypes": depth {{}} of {each.name}'
            )
        levels = sum(each.depth for each in snapshots)
        self._at_most("max_levels", levels, 'invalid "dataTypes": {} levels in one request')

    def _at_most(self, limit: str, asked: int, message: str) -> None:
        allowed = getattr(self.config, limit)
        if asked > allowed:
            raise LimitError(limit, asked, allowed, message.format(asked))
