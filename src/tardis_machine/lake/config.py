"""The settings of `tardis-machine lake`, beside those of the buses and of history."""

from dataclasses import dataclass
from typing import Final

from tardis_machine.config import ConfigError, Section, pairs, setting
from tardis_machine.lake.places import check_place
from tardis_machine.lake.sources import STREAMS

MOST_ROWS: Final = 1_000_000_000
"""Of those that a command prints or draws: Spark's own limits are not much larger."""
_BATCH: Final = 200_000
_DAY_S: Final = 86_400
# What Delta Lake insists on: a reader or a stream may be that far behind.
_WEEK_HOURS: Final = 168
YES_HELP: Final = "do it without asking; needed where there is no terminal to ask on"


@dataclass(frozen=True, kw_only=True)
class SparkConfig(Section, title="Spark"):
    """Where the work is done."""

    master: str | None = setting(
        None, help="Spark master; local[*] unless spark-submit says otherwise"
    )
    spark: dict[str, str] = setting(
        {}, help="any setting of Spark", parse=pairs, metavar="spark.NAME=VALUE,…"
    )
    debug: bool = setting(False, help="log more")
    log_format: str = setting("human", help="how logs are written", choices=("human", "json"))


@dataclass(frozen=True, kw_only=True)
class TablesConfig(Section):
    """Which tables."""

    tables: str = setting("", help="folder or URL of the tables", metavar="PATH")

    def validate(self) -> None:
        """Refuse no tables, and those that cannot be."""
        if not self.tables:
            raise ConfigError(self.flag("tables"), None, "is needed")
        check_place(self.flag("tables"), self.tables)


@dataclass(frozen=True, kw_only=True)
class BackfillConfig(Section, title="Backfill"):
    """What is brought in, and where to."""

    exchange: tuple[str, ...] = setting((), help="exchanges", metavar="NAME,…")
    symbols: tuple[str, ...] = setting((), help="symbols; all if not given", metavar="SYMBOL,…")
    types: tuple[str, ...] = setting(
        (), help="data types, such as trade,book_change,trade_bar_1m", metavar="TYPE,…"
    )
    from_: str = setting("", help="first minute, UTC", metavar="TIME")
    to: str = setting("", help="end, not included, UTC", metavar="TIME")
    to_tables: str = setting(
        "", help="folder or URL of the tables; may be left out with --to-bus", metavar="PATH"
    )
    bronze_only: bool = setting(False, help="leave Silver to `lake silver`")
    force: bool = setting(
        False, help="replace what is there: these exchanges, days, symbols and types"
    )
    dry_run: bool = setting(
        False, help="list what would be done, and what a few minutes tell of its size; do nothing"
    )
    yes: bool = setting(False, help=YES_HELP)
    attempts: int = setting(3, help="tries for each day", minimum=1, maximum=100)
    symbol_buckets: int = setting(
        1,
        help="tasks that a day's symbols are spread over; each fetches slices of its own",
        minimum=1,
    )

    @property
    def asks(self) -> bool:
        """Whether it replaces rows without a `--yes`."""
        return self.force and bool(self.to_tables) and not (self.dry_run or self.yes)

    def validate(self) -> None:
        """Refuse a backfill of nothing."""
        for name in ("exchange", "types", "from_", "to"):
            if not getattr(self, name):
                raise ConfigError(self.flag(name), None, "is needed")
        if self.to_tables:
            check_place(self.flag("to_tables"), self.to_tables)
        if self.force and self.bronze_only:
            raise ConfigError(
                self.flag("force"),
                True,
                "replaces Silver as well, which --bronze-only leaves alone",
            )


@dataclass(frozen=True, kw_only=True)
class VerifyConfig(TablesConfig, title="Verify"):
    """What is compared with a fresh replay: all that backfills have finished, or some of it."""

    exchange: tuple[str, ...] = setting((), help="exchanges; all if not given", metavar="NAME,…")
    from_: str = setting("", help="first minute, UTC; the first there is", metavar="TIME")
    to: str = setting("", help="end, not included, UTC; the last there is", metavar="TIME")


@dataclass(frozen=True, kw_only=True)
class QuarantineConfig(TablesConfig, title="Quarantine"):
    """Which tables."""

    release: bool = setting(
        False, help="try it all again, and bring what is sound by now into Bronze and Silver"
    )
    limit: int = setting(50, help="reasons that are listed", minimum=1)


@dataclass(frozen=True, kw_only=True)
class StreamConfig(Section, title="Stream"):
    """What is read, and how it is brought in."""

    from_bus: str = setting("", help="bus to read from", choices=tuple(STREAMS))
    to_tables: str = setting("", help="folder or URL of the tables", metavar="PATH")
    once: bool = setting(False, help="end when all that is there now has been brought in")
    bronze_only: bool = setting(False, help="leave Silver to `lake silver`")
    checkpoint: str | None = setting(
        None, help="where the stream keeps its place; under the tables if not given", metavar="PATH"
    )
    starting: str = setting(
        "earliest",
        help="where a new checkpoint begins",
        choices=("earliest", "latest"),
    )
    on_data_loss: str = setting(
        "fail",
        help="what to do when data was trimmed before it was read",
        choices=("fail", "skip"),
    )
    max_events_per_batch: int = setting(_BATCH, help="bound of a batch", minimum=1)
    restarts: int = setting(
        5,
        help="times in a row that a stream which failed is started again; lost data, and what only "
        "people can mend, ends it at once",
        minimum=0,
    )
    metrics_port: int | None = setting(
        None, help="answer Prometheus here; 0 for any port", minimum=0, maximum=65_535
    )
    metrics_host: str = setting("127.0.0.1", help="address of the metrics")
    interval_s: float = setting(
        5, help="seconds between the starts of batches", minimum=0, maximum=_DAY_S
    )

    def validate(self) -> None:
        """Refuse a stream from or to nowhere."""
        for name in ("from_bus", "to_tables"):
            if not getattr(self, name):
                raise ConfigError(self.flag(name), None, "is needed")
        check_place(self.flag("to_tables"), self.to_tables)
        if self.checkpoint is not None:
            check_place(self.flag("checkpoint"), self.checkpoint)


@dataclass(frozen=True, kw_only=True)
class SilverConfig(TablesConfig, title="Silver"):
    """Which tables, and whether they are rebuilt."""

    rebuild: bool = setting(
        False, help="rebuild the days that Bronze has events of; all other rows are listed and kept"
    )
    drop_what_bronze_lacks: bool = setting(
        False, help="with --rebuild: also drop the rows whose event Bronze does not have"
    )
    dry_run: bool = setting(False, help="with --rebuild: only list what would be done")
    yes: bool = setting(False, help=YES_HELP)

    @property
    def asks(self) -> bool:
        """Whether it replaces rows without a `--yes`."""
        return self.rebuild and not (self.dry_run or self.yes)

    def validate(self) -> None:
        """Refuse flags of a rebuild without one."""
        super().validate()
        for name in ("drop_what_bronze_lacks", "dry_run"):
            if getattr(self, name) and not self.rebuild:
                raise ConfigError(self.flag(name), None, f"needs {self.flag('rebuild')}")


@dataclass(frozen=True, kw_only=True)
class ShowConfig(TablesConfig, title="Show"):
    """What is shown."""

    limit: int = setting(10, help="rows", minimum=1, maximum=MOST_ROWS)
    where: str | None = setting(None, help="which rows, in SQL", metavar="SQL")


@dataclass(frozen=True, kw_only=True)
class MaintainConfig(TablesConfig, title="Maintain"):
    """What is done to which tables; all of it to all of them, unless some are named."""

    only: tuple[str, ...] = setting((), help="tables, such as trades,events", metavar="NAME,…")
    compact: bool = setting(False, help="join small files, ordered by symbol and time")
    vacuum: bool = setting(False, help="delete files that no longer belong to the tables")
    statistics: bool = setting(False, help="print rows, files and bytes")
    retain_hours: int = setting(
        _WEEK_HOURS, help="age of files that vacuum may delete", minimum=_WEEK_HOURS
    )
