"""`tardis-machine lake`: backfill, verify, stream, silver, quarantine, show, maintain."""

import logging
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Final

from tardis_machine import log as logs
from tardis_machine.cli import gold
from tardis_machine.cli.config import sections as server_sections
from tardis_machine.cli.consent import confirm, expect_terminal
from tardis_machine.cli.tables import Command, expect_tables, open_existing, open_tables, time_range
from tardis_machine.config import ConfigError, Loaded, load, options
from tardis_machine.extras import require
from tardis_machine.history import claim_cache_dir
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.lake.config import (
    BackfillConfig,
    MaintainConfig,
    QuarantineConfig,
    ShowConfig,
    SilverConfig,
    SparkConfig,
    StreamConfig,
    VerifyConfig,
)
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.sinks.config import BusesConfig
from tardis_machine.lake.sources import STREAMS
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.config import PublishConfig
from tardis_machine.signals import stop_event

if TYPE_CHECKING:
    from tardis_machine.lake.rebuild import Part
    from tardis_machine.lake.tables import Tables
    from tardis_machine.lake.units import Unit
    from tardis_machine.lake.verify import Difference

log = logging.getLogger(__name__)

_PROG: Final = "tardis-machine lake"
_EXECUTOR_CACHE: Final = 20 << 30
_LISTENER_S: Final = 30.0


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run the command that the first argument names; return its exit code."""
    words = list(arguments)
    name = words.pop(0) if words and not words[0].startswith("-") else None
    if name is None and words and words[0] in {"-h", "--help"}:
        print(_usage())
        return 0
    if name not in COMMANDS:
        first = f"a command comes before {words[0]}: " if name is None and words else ""
        raise ConfigError("lake", name, f"{first}expected one of {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    positional = _pop_positional(words) if command.arguments else []
    sections = (*command.sections, SparkConfig)
    loaded = load(
        sections,
        words,
        environ,
        prog=f"{_PROG} {name}{command.arguments}",
        description=command.does,
        epilog=f"Example:\n  {command.example}",
        also=[section for section in server_sections() if section not in sections],
    )
    config = loaded[SparkConfig]
    logs.configure(config.log_format, debug=config.debug)
    # py4j logs the stack of a batch that failed. The command prints its reason in one line instead.
    logging.getLogger("py4j").setLevel(logging.WARNING if config.debug else logging.CRITICAL)
    # Spark logs each error that it raises, with the JVM's stack.
    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL)
    for warning in loaded.warnings:
        log.warning(warning)
    if command.asks(loaded):
        expect_terminal([*_PROG.split(), *arguments], sections)
    for module in ("pyspark", "pyarrow", "ptars"):
        require(module, extra="spark")
    if config.debug:
        return command.run(loaded, positional)
    logging.getLogger().addFilter(_is_not_from_py4j)
    with _spark_errors_in_one_line():
        return command.run(loaded, positional)


def _pop_positional(words: list[str]) -> list[str]:
    """Remove and return the argument that is no flag (`TABLE`), before the flags or after them."""
    if words and not words[0].startswith("-"):
        return [words.pop(0)]
    if len(words) < 2 or words[-1].startswith("-"):
        return []
    flag, equals, _ = words[-2].partition("=")
    return [] if flag.startswith("-") and not equals else [words.pop()]


def _is_not_from_py4j(record: logging.LogRecord) -> bool:
    """Return false for records of Py4J's gateway: its logs of an interrupt have a stack.

    The root logger calls this for each record that is logged to it directly. The gateway does so:
    the level of the logger `py4j` does not apply.
    """
    return record.module != "java_gateway"


@contextmanager
def _spark_errors_in_one_line() -> Iterator[None]:
    """Raise LakeError with the reason of a Spark error, without the stacks of Python and JVM."""
    from py4j.protocol import Py4JError  # noqa: PLC0415 - needs the extra
    from pyspark.errors import PySparkException  # noqa: PLC0415

    from tardis_machine.lake.running import reason_of  # noqa: PLC0415
    from tardis_machine.lake.session import died  # noqa: PLC0415

    try:
        yield
    except (PySparkException, Py4JError) as error:
        reason = died(error) or f"Spark: {reason_of(error)}"
        raise LakeError(f"{reason} (--debug prints all of it)") from error


def _backfill(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.cli import backfill  # noqa: PLC0415 - needs the extra

    return backfill.run(
        loaded,
        partial(_open_tables_for_replay, loaded),
        partial(_source_options, loaded[HistoryConfig]),
    )


def _verify(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine import exchanges  # noqa: PLC0415 - takes a moment
    from tardis_machine.lake import manifest, verify  # noqa: PLC0415 - needs the extra

    config = loaded[VerifyConfig]
    _check_names(config.flag("exchange"), config.exchange, exchanges.names())
    selection = verify.Wanted(config.exchange, *time_range(config))
    tables = _open_tables_for_replay(loaded, config.tables)
    expect_tables(tables, config)
    units = verify.units(manifest.finished(tables), selection)
    differences = verify.verify(
        tables, units, _source_options(loaded[HistoryConfig], tables), _print_verified
    )
    differing = [d for d in differences if not isinstance(d.expected, str)]
    failed = len(differences) - len(differing)
    also = f", {failed} could not be replayed" if failed else ""
    print(f"{len(units)} units compared, {len(differing)} data types differ{also}")
    for difference in differing:
        print(f"redo: {difference.command} --to-tables {shlex.quote(tables.root)}")
    return 1 if differences else 0


def _quarantine(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import quarantine  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.release import release  # noqa: PLC0415

    config = loaded[QuarantineConfig]
    tables = open_existing(loaded, config)
    if config.release:
        outcome = release(tables)
        print(f"{outcome.released:,} released, {outcome.left:,} left")
        for exchange, day in outcome.redo:
            print(f"lines of {exchange} {day} come in by `lake backfill --force --yes` of that day")
        return 0
    groups = quarantine.held(tables)
    print(f"{sum(group.records for group in groups):,} records in quarantine")
    for group in groups[: config.limit]:
        where = f"{group.exchange or ''} {group.day or ''}".strip()
        print(f"{group.records:>10,}  {group.stage:<10} {where:<24} {group.reason}")
    if len(groups) > config.limit:
        print(f"and {len(groups) - config.limit} more reasons: --limit")
    return 0


def _stream(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import streaming  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.keeping import keep  # noqa: PLC0415
    from tardis_machine.lake.metrics import StreamMetrics  # noqa: PLC0415
    from tardis_machine.lake.sources import expect_client, records  # noqa: PLC0415
    from tardis_machine.lake.sources.streams import Asked  # noqa: PLC0415

    config = loaded[StreamConfig]
    bus = BUSES[config.from_bus]
    settings = loaded[bus.config_type]
    if not settings.enabled:
        flags = " and ".join(settings.flag(name) for name in bus.config_type.needs)
        raise ConfigError("--from-bus", config.from_bus, f"needs {flags}")
    expect_client(config.from_bus, settings)
    tables = open_tables(loaded, config.to_tables)
    checkpoint = config.checkpoint or streaming.default_checkpoint(tables.root, config.from_bus)
    stream_options = Asked(
        config.starting,
        config.max_events_per_batch,
        config.on_data_loss == "skip",
        checkpoint,
    )
    rows = records(tables.spark, config.from_bus, settings, stream_options)
    metrics = StreamMetrics()
    if config.metrics_port is not None:
        metrics.serve(config.metrics_host, config.metrics_port)
    listener = metrics.listener()
    tables.spark.streams.addListener(listener)
    start = partial(
        streaming.start,
        tables,
        rows,
        checkpoint,
        once=config.once,
        interval_s=config.interval_s,
        bronze_only=config.bronze_only,
        wrote=metrics.wrote,
    )
    try:
        with stop_event() as stop:
            keep(start, stop, restarts=config.restarts, started_again=metrics.restarts.inc)
    finally:
        metrics.wait_for_end(_LISTENER_S)
        tables.spark.streams.removeListener(listener)
    return 0


def _silver(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import streaming  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.keeping import keep  # noqa: PLC0415
    from tardis_machine.lake.tables import EVENTS  # noqa: PLC0415

    config = loaded[SilverConfig]
    tables = open_tables(loaded, config.tables)
    if config.rebuild:
        return _rebuild(tables, config)
    if not tables.exists(EVENTS):
        print(f"there are no events in {tables.root} yet")
    else:
        checkpoint = streaming.default_checkpoint(tables.root, "silver")
        with stop_event() as stop:
            keep(partial(streaming.start_silver, tables, checkpoint), stop, restarts=0)
    return 0


def _rebuild(tables: "Tables", config: SilverConfig) -> int:
    from tardis_machine.lake.rebuild import compare, rebuild  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.tables import SILVER  # noqa: PLC0415

    parts = compare(tables)
    silver = [part for part in parts if part.case in SILVER]
    fate = "dropped" if config.drop_what_bronze_lacks else "kept"
    for (table, exchange), group in groupby(
        sorted(silver, key=lambda part: (part.table, part.exchange)),
        lambda part: (part.table, part.exchange),
    ):
        day_parts = list(group)
        if days := [part for part in day_parts if part.events]:
            print(f"{table} {exchange}: {_days(days)} to rebuild")
        if days := [part for part in day_parts if part.lacking]:
            rows = sum(part.lacking for part in days)
            print(
                f"{table} {exchange}: {rows:,} rows that Bronze lacks to be {fate}, {_days(days)}"
            )
    if config.dry_run:
        print("Nothing was done.")
        return 0
    if not config.yes and not confirm("Rebuild these days?"):
        return 1
    rebuild(tables, parts, drop_what_bronze_lacks=config.drop_what_bronze_lacks)
    return 0


def _days(parts: "Sequence[Part]") -> str:
    days = sorted(part.day_text for part in parts)
    return f"{len(days):,} days, {days[0]} to {days[-1]}"


def _show(loaded: Loaded, names: Sequence[str]) -> int:
    from tardis_machine.lake import show  # noqa: PLC0415 - needs the extra

    if not any(names):
        raise ConfigError("TABLE", None, "is needed, such as trades")
    config = loaded[ShowConfig]
    _check_names("TABLE", names, show.names())
    tables = open_tables(loaded, config.tables)
    rows = show.frame(tables, names[0])
    if not config.where:
        print(show.text(rows, config.limit))
        return 0
    try:
        print(show.matching(rows, config.where, config.limit))
    except LakeError as error:
        raise ConfigError(config.flag("where"), config.where, str(error)) from None
    return 0


def _maintain(loaded: Loaded, _: Sequence[str]) -> int:
    from tardis_machine.lake import maintain  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.catalog import TABLES  # noqa: PLC0415

    config = loaded[MaintainConfig]
    _check_names(config.flag("only"), config.only, list(TABLES))
    tables = open_existing(loaded, config)
    everything = not (config.compact or config.vacuum or config.statistics)
    for name, table in maintain.existing(tables, config.only).items():
        if config.compact or everything:
            maintain.compact(tables, table)
        if config.vacuum or everything:
            maintain.vacuum(tables, table, config.retain_hours)
        if config.statistics or everything:
            size = maintain.size(tables, name)
            print(f"{name:<24}{size.rows:>14,} rows {size.files:>8,} files {size.bytes:>16,} bytes")
    return 0


def _check_names(flag: str, names: Sequence[str], allowed: Sequence[str]) -> None:
    """Raise ConfigError for a name that is not allowed; called before Spark starts."""
    for name in names:
        if name not in allowed:
            raise ConfigError(flag, name, f"expected one of {', '.join(allowed)}")


def _open_tables_for_replay(loaded: Loaded, root: str) -> "Tables":
    """Open the tables in a session that has the Spark data source `tardis`."""
    from tardis_machine.lake.sources import tardis  # noqa: PLC0415 - needs the extra

    _export_secrets(loaded[HistoryConfig])
    tables = open_tables(loaded, root)
    tardis.register(tables.spark)
    return tables


def _source_options(history: HistoryConfig, tables: "Tables") -> dict[str, str]:
    """Return the options of the data source `tardis`: endpoint, cache and the cache's limit.

    On a cluster the cache is limited by default, since executors' disks may not be monitored.
    """
    cache_limit = history.cache_max_bytes
    master = tables.spark.conf.get("spark.master", None) or ""
    if master.startswith("local") and not history.sample_data:
        # An invalid directory fails here once, not in each task.
        claim_cache_dir(history.cache_dir, history.flag("cache_dir"))
    if cache_limit is None and not master.startswith("local"):
        cache_limit = _EXECUTOR_CACHE
    return {
        **({"cacheDir": str(history.cache_dir)} if history.cache_dir else {}),
        **({"cacheMaxBytes": str(cache_limit)} if cache_limit else {}),
        **({"apiWaitS": str(history.api_wait_s)} if history.api_wait_s is not None else {}),
        "endpoint": history.endpoint,
        "sampleData": str(history.sample_data).lower(),
    }


def _export_secrets(history: HistoryConfig) -> None:
    """Set the environment variables of secrets, which Spark's local workers inherit."""
    for option in options(HistoryConfig):
        value = getattr(history, option.name)
        if option.setting.secret and value is not None:
            os.environ.pop(f"{option.variable}_FILE", None)
            os.environ[option.variable] = value


def _print_verified(unit: "Unit", differences: Sequence["Difference"]) -> None:
    by_data_type = {difference.data_type: difference for difference in differences}
    for data_type in unit.data_types:
        where = f"{unit.exchange} {unit.start_text} to {unit.end_text} {data_type}"
        if data_type not in by_data_type:
            print(f"{where}: the same", flush=True)
            continue
        stored, expected = by_data_type[data_type].held, by_data_type[data_type].expected
        if isinstance(expected, str):
            print(f"{where}: cannot be replayed: {expected}", flush=True)
        elif isinstance(stored, str):
            print(f"{where}: cannot be read: {stored}", flush=True)
        else:
            same = " of other content" if stored.rows == expected.rows else ""
            print(f"{where}: {stored.rows:,} rows{same}, {expected.rows:,} replayed", flush=True)


COMMANDS: Final[dict[str, Command]] = {
    "backfill": Command(
        "Writes days of history to Bronze and Silver, or sends them to buses; skips finished days.",
        (
            BackfillConfig,
            HistoryConfig,
            BusesConfig,
            PublishConfig,
            *(bus.config_type for bus in BUSES.values()),
        ),
        _backfill,
        "tardis-machine lake backfill --exchange bitmex --symbols XBTUSD --types trade,book_change"
        "\n    --from 2024-03-01 --to 2024-03-08 --to-tables /data/lake",
        asks=lambda loaded: loaded[BackfillConfig].asks,
    ),
    "verify": Command(
        "Compares finished backfills with a new replay, and prints the commands that repair them.",
        (VerifyConfig, HistoryConfig),
        _verify,
        "tardis-machine lake verify --tables /data/lake --exchange bitmex --from 2024-03-01",
    ),
    "stream": Command(
        "Writes the events of a bus to Bronze and Silver; takes the publisher's flags of that bus.",
        (StreamConfig, *(BUSES[name].config_type for name in STREAMS)),
        _stream,
        "tardis-machine lake stream --from-bus kafka --kafka-brokers localhost:9092"
        "\n    --kafka-topic bronze --to-tables /data/lake",
    ),
    "silver": Command(
        "Brings new events of Bronze into Silver, or rebuilds Silver from Bronze.",
        (SilverConfig,),
        _silver,
        "tardis-machine lake silver --tables /data/lake",
        asks=lambda loaded: loaded[SilverConfig].asks,
    ),
    "quarantine": Command(
        "Lists records that no table could store, with the reason, or tries them again.",
        (QuarantineConfig,),
        _quarantine,
        "tardis-machine lake quarantine --tables /data/lake --release",
    ),
    "show": Command(
        "Prints a readable sample of a table, or of the view book_levels.",
        (ShowConfig,),
        _show,
        "tardis-machine lake show trades --tables /data/lake --where \"symbol = 'XBTUSD'\"",
        arguments=" TABLE",
    ),
    "maintain": Command(
        "Compacts and vacuums the tables and prints their sizes, or does what its flags choose.",
        (MaintainConfig,),
        _maintain,
        "tardis-machine lake maintain --tables /data/lake --compact",
    ),
    **gold.COMMANDS,
}


def _usage() -> str:
    lines = [f"  {name:<12}{command.does}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {_PROG} COMMAND [flags]", "", *lines, "", "Each has --help."])
