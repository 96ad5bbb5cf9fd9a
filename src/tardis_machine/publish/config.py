"""Settings of the journal and of the publisher; those of each bus are in its own module."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tardis_machine.config import (
    ConfigError,
    DefaultDirectory,
    Section,
    bytes_size,
    check_own,
    claim,
    setting,
)

FLOWS: Final = ("http-replay", "ws-replay", "ws-stream")
_FSYNC: Final = re.compile(r"interval:(\d+)(ms|s)")
_SMALLEST_BOUND: Final = 1 << 20
_A_YEAR_S: Final = 365 * 24 * 3600
"""Nobody can wait three hundred years, which is as long as a lock's clock goes."""
_DEFAULT: Final = DefaultDirectory("XDG_STATE_HOME", ".local/state", "journal")


def fsync_interval(text: str) -> float | None:
    """Read `interval:500ms`, `batch` or `never` as seconds between syncs, 0, or None."""
    if text == "never":
        return None
    if text == "batch":
        return 0.0
    match = _FSYNC.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise ValueError("expected interval:500ms, interval:2s, batch or never")
    return int(match[1]) / (1000 if match[2] == "ms" else 1)


def _fsync(text: str) -> str:
    fsync_interval(text)
    return text


@dataclass(frozen=True, kw_only=True)
class JournalConfig(
    Section,
    section="journal",
    title="Journal",
    note="used only while a bus is on; one directory per set of buses and destinations",
):
    """Where messages wait for the buses, and how many."""

    dir: Path | None = setting(
        None,
        help="directory of the journal; without it tardis-machine/journal in XDG_STATE_HOME",
    )
    max_bytes: int = setting(
        8 << 30,
        help="bound of the whole directory; units such as 8GiB work",
        minimum=_SMALLEST_BOUND,
        parse=bytes_size,
        metavar="BYTES",
    )
    fsync: str = setting(
        "interval:500ms",
        help="when written data is forced to disk; only power loss makes a difference",
        parse=_fsync,
        metavar="interval:500ms|batch|never",
    )
    stall_s: float = setting(
        60.0,
        help="a bus that has not moved for so long while the journal is full is skipped ahead",
        minimum=0,
    )
    when_full: str = setting(
        "pace",
        choices=("pace", "drop", "error"),
        help="slow replays down, skip the oldest, or end the response",
    )

    ring_bytes: int = setting(
        8 << 20,
        help="memory through which replays pass what the publisher's process then writes to the "
        "journal, so that they need not; 0 for none, and none in a journal of less than 32 times "
        "as much",
        minimum=0,
        maximum=1 << 30,
        parse=bytes_size,
        metavar="BYTES",
    )
    adopt: bool = setting(
        False,
        help="take over what is left of another configuration: buses of the same name get it, "
        "what was for others is given up",
    )

    @property
    def path(self) -> Path:
        return self.dir or _DEFAULT.path(self.flag("dir"))

    def claim(self) -> Path:
        """Make the directory and return it; ConfigError if other users could plant logs in it."""
        flag = self.flag("dir")
        return _DEFAULT.claim(flag) if self.dir is None else claim(flag, self.dir)

    @property
    def fsync_s(self) -> float | None:
        """Give the seconds between syncs; 0 after each batch, None never."""
        return fsync_interval(self.fsync)

    def validate(self) -> None:
        if 0 < self.ring_bytes < _SMALLEST_BOUND:
            raise ConfigError(
                self.flag("ring_bytes"),
                self.ring_bytes,
                f"expected 0, or at least {_SMALLEST_BOUND}",
            )

    def warnings(self) -> list[str]:
        if self.when_full == "drop":
            return ["--journal-when-full drop: a full journal loses the oldest messages at once"]
        return []


@dataclass(frozen=True, kw_only=True)
class PublishConfig(Section, title="Publishing", help_topic="publishing"):
    """What is published, as whom, and how long it is tried."""

    publish_flows: tuple[str, ...] = setting(
        FLOWS, choices=FLOWS, help="responses that are published", metavar="FLOW,…"
    )
    publish_source: str = setting("tardis-machine", help="source in every envelope")
    producer_id: str | None = setting(
        None, help="name of this instance in every envelope; without it host name and process"
    )
    dead_letter_dir: Path | None = setting(
        None, help="what a bus will never accept; without it dead-letters in the journal's"
    )
    dead_letter_max_bytes: int = setting(
        1 << 30,
        help="bound of each bus's dead letters; a bus that would write more waits",
        minimum=_SMALLEST_BOUND,
        parse=bytes_size,
        metavar="BYTES",
    )
    drain_timeout_s: float = setting(
        30.0, help="how long shutdown waits for the buses", minimum=0, maximum=_A_YEAR_S
    )
    retry_max: int = setting(
        8, help="failures in a row after which a bus counts as unhealthy", minimum=1
    )
    retry_min_ms: int = setting(
        100, help="first pause after a failure, doubled each time", minimum=1
    )
    retry_max_s: float = setting(
        30.0,
        help="longest pause; an unhealthy bus is tried again so often",
        minimum=0.01,
        maximum=_A_YEAR_S,
    )
    send_timeout_s: float = setting(
        30.0, help="how long a batch may go unacknowledged", minimum=0.1, maximum=_A_YEAR_S
    )
    give_way_s: float = setting(
        2.0,
        help="how long delivery waits at most for a response that is sent at full speed, which it "
        "would slow down where processors are few; 0 for not at all",
        minimum=0,
        maximum=3600,
    )
    held_back_max_records: int = setting(
        100_000,
        help="records in memory for destinations that fail; with more the others of their bus wait",
        minimum=1,
    )
    held_back_max_bytes: int = setting(
        64 << 20,
        help="the same in bytes; units such as 64MiB work",
        minimum=_SMALLEST_BOUND,
        parse=bytes_size,
        metavar="BYTES",
    )

    def validate(self) -> None:
        if not self.publish_flows:
            raise ConfigError(
                self.flag("publish_flows"), "", f"expected some of {', '.join(FLOWS)}"
            )
        if self.retry_min_ms > self.retry_max_s * 1000:
            raise ConfigError(
                self.flag("retry_min_ms"),
                self.retry_min_ms,
                f"expected at most {self.flag('retry_max_s')} ({self.retry_max_s:g} s)",
            )

    def dead_letters(self, journal: Path) -> Path:
        return self.dead_letter_dir or journal / "dead-letters"

    def claim_dead_letters(self, journal: Path) -> None:
        """Make sure that other users cannot plant dead letters; ConfigError if they can."""
        flag = self.flag("dead_letter_dir")
        if self.dead_letter_dir is not None:
            claim(flag, self.dead_letter_dir)
        elif self.dead_letters(journal).exists():
            check_own(flag, self.dead_letters(journal))
