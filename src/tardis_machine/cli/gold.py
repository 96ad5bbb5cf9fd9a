"""`tardis-machine lake` commands on Gold: gold, quality, plot, register, drop-days."""

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Final

from tardis_machine.cli.consent import confirm
from tardis_machine.cli.tables import Command, open_existing, open_tables, time_range
from tardis_machine.config import ConfigError, Loaded
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold_config import (
    DaysConfig,
    DropDaysConfig,
    GoldConfig,
    PlotConfig,
    QualityConfig,
    RegisterConfig,
)
from tardis_machine.signals import stop_event

if TYPE_CHECKING:
    from tardis_machine.lake.gold.refresh import Refreshed, Wanted
    from tardis_machine.lake.gold.report import Span
    from tardis_machine.lake.retention import Dropped

_HIVE: Final = {"spark.sql.catalogImplementation": "hive"}


def _gold(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake.gold.refresh import refresh  # noqa: PLC0415 - needs the extra

    config = loaded[GoldConfig]
    requested = _requested(config)
    tables = open_tables(loaded, config.tables)
    if not config.every_s:
        refresh(tables, requested, _print_refreshed)
        return 0
    with stop_event() as stop:
        while not stop.is_set():
            refresh(tables, requested, _print_refreshed)
            stop.wait(config.every_s)
    return 0


def _requested(config: GoldConfig) -> "list[Wanted]":
    """Return the tables of --only (default: all) with each of their variants."""
    from tardis_machine.lake.gold import GOLD  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.gold.refresh import Wanted  # noqa: PLC0415

    for name in config.only:
        if name not in GOLD:
            expected = f"expected some of {', '.join(GOLD)}"
            raise ConfigError(config.flag("only"), name, expected)
    variants = {
        "bars": config.bars,
        "books": config.books,
        "top_of_book": config.books,
        "quality": ("",),
    }
    return [
        Wanted(gold, variant)
        for name, gold in GOLD.items()
        if name in (config.only or GOLD)
        for variant in variants.get(name, config.intervals)
    ]


def _quality(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import manifest, plot  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.gold import report  # noqa: PLC0415
    from tardis_machine.lake.gold.quality import QUALITY  # noqa: PLC0415

    config = loaded[QualityConfig]
    span = _span(config)
    if config.picture:
        plot.matplotlib()
    tables = open_existing(loaded, config)
    if not tables.exists(QUALITY.table):
        raise LakeError(
            f"there is no table {tables.path(QUALITY.table)} yet: `lake gold --tables "
            f"{shlex.quote(config.tables)}` makes it from Silver"
        )
    print("\n".join(report.summary(tables, span, config.limit)))
    for count in report.broken(tables, span):
        print(f"disconnects: {count.exchange} {count.disconnects:,} ({count.origin})")
    missing = report.missing(manifest.finished(tables), span)
    for unit in missing[: config.limit]:
        print(f"missing: {unit}")
    if len(missing) > config.limit:
        print(f"and {len(missing) - config.limit} more: --limit")
    if config.picture:
        plot.quality(tables, span, picture=config.picture, title=config.picture_title)
        print(f"drawn: {config.picture}")
    return 0


def _plot(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import plot  # noqa: PLC0415 - needs the extra

    config = loaded[PlotConfig]
    span = _span(config)
    plot.matplotlib()
    tables = open_tables(loaded, config.tables)
    drawn = plot.market(
        tables,
        config.symbol,
        span,
        bars=config.bars,
        picture=config.picture,
        title=config.picture_title,
        limit=config.limit,
    )
    print(f"{config.picture}: {', '.join(drawn)}")
    return 0


def _register(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import catalog  # noqa: PLC0415 - needs the extra

    config = loaded[RegisterConfig]
    tables = open_existing(loaded, config, **_HIVE)
    for name in catalog.register(tables, config.database):
        print(name)
    if not catalog.is_lasting(tables):
        print(
            "the catalog is lost when this session ends, since it is in memory: "
            "--spark spark.sql.catalogImplementation=hive keeps it",
            file=sys.stderr,
        )
    return 0


def _drop_days(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake.retention import drop_days  # noqa: PLC0415 - needs the extra

    config = loaded[DropDaysConfig]
    first_kept = config.first_kept(datetime.now(UTC).date())
    tables = open_existing(loaded, config)
    drop = partial(drop_days, tables, config.layers, first_kept, config.exchange)
    if config.dry_run or not config.yes:
        planned = drop(dry_run=True)
        _print_dropped(planned, "would lose")
        if config.dry_run or not planned:
            return 0
        if not confirm("Drop these days?"):
            return 1
    dropped = drop()
    _print_dropped(dropped, "lost")
    if dropped:
        print("`lake maintain --vacuum` deletes their files when they are a week old")
    return 0


def _print_dropped(dropped: "Sequence[Dropped]", verb: str) -> None:
    for table in dropped:
        print(
            f"{table.table} {verb} {table.days:,} days of exchanges, {table.first} to {table.last}"
        )


def _span(config: DaysConfig) -> "Span":
    from tardis_machine.lake.gold.report import Span  # noqa: PLC0415 - needs the extra

    return Span(config.exchange, *time_range(config))


def _print_refreshed(outcome: "Refreshed") -> None:
    print(
        f"{outcome.wanted.made:<32}{outcome.days:>6,} days {outcome.rows:>12,} rows "
        f"{outcome.seconds:>7.1f} s",
        flush=True,
    )


COMMANDS: Final[dict[str, Command]] = {
    "gold": Command(
        "Updates Gold from Silver: bars, books, series and quality of the days that changed.",
        (GoldConfig,),
        _gold,
        "tardis-machine lake gold --tables /data/lake --bars trade_bar_1m,trade_bar_60m",
    ),
    "quality": Command(
        "Reports data quality: rows, gaps, disconnects, latency, duplicates, missing days.",
        (QualityConfig,),
        _quality,
        "tardis-machine lake quality --tables /data/lake --picture quality.svg",
    ),
    "plot": Command(
        "Draws a symbol from Gold: bars, volume, spread, basis, liquidations.",
        (PlotConfig,),
        _plot,
        "tardis-machine lake plot --tables /data/lake --exchange bitmex --symbol XBTUSD"
        "\n    --from 2024-03-01 --to 2024-03-02 --picture xbtusd.png",
    ),
    "register": Command(
        "Registers the tables in a catalog, such as a Hive metastore or Unity.",
        (RegisterConfig,),
        _register,
        "tardis-machine lake register --tables /data/lake --database md",
    ),
    "drop-days": Command(
        "Drops days that are no longer kept, once or as a retention.",
        (DropDaysConfig,),
        _drop_days,
        "tardis-machine lake drop-days --tables /data/lake --keep-days 90 --layers bronze --yes",
        asks=lambda loaded: loaded[DropDaysConfig].asks,
    ),
}
