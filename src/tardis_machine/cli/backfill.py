"""`tardis-machine lake backfill`: days of history written to tables and sent to buses."""

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from tardis_machine.cli.consent import confirm
from tardis_machine.config import ConfigError, Loaded
from tardis_machine.lake import backfill, manifest, planning
from tardis_machine.lake.config import BackfillConfig
from tardis_machine.lake.session import parallelism
from tardis_machine.lake.sinks import backfill as bus_backfill
from tardis_machine.lake.sinks.config import BusesConfig
from tardis_machine.lake.units import BRONZE, LAYERS, Unit, plan
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.buses.base import BusConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.replays.requests import (
    ReplayNormalizedOptions,
    Request,
    replay_normalized_options,
)

if TYPE_CHECKING:
    from tardis_machine.lake.running import Progress, Report
    from tardis_machine.lake.tables import Tables


def run(
    loaded: Loaded,
    open_tables: Callable[[str], "Tables"],
    source_options: Callable[["Tables"], Mapping[str, str]],
) -> int:
    """Write and send the days that tables and buses lack; return 1 if a day failed, else 0.

    `open_tables` is called once, with the folder or URL of the tables. `source_options` is called
    with these tables and returns the options of the Spark data source `tardis`. What either raises
    ends the command.
    """
    config, buses = loaded[BackfillConfig], loaded[BusesConfig]
    root = _root(config, buses)
    configs = _buses(loaded)
    replays = _replays(config)
    tables = open_tables(root)
    history = source_options(tables)
    units: list[Unit] = []
    if config.to_tables:
        layers = (BRONZE,) if config.bronze_only else LAYERS
        units = plan(replays, manifest.finished(tables), layers=layers, force=config.force)
        _print_existing(replays, units)
    # Without --to-tables, the folder holds only the manifest of backfills to the buses.
    targets = [
        bus_backfill.target(tables, bus, bus_config, replays, force=config.force)
        for bus, bus_config in configs.items()
    ]
    for target in targets:
        _print_existing(replays, target.units, f" for {target.bus}")
    if config.dry_run:
        all_units = [*units, *(unit for target in targets for unit in target.units)]
        _print_plan(all_units, history, parallelism(tables.spark))
        return 0
    if config.asks and units:
        _print_units(units)
        if not confirm(f"Replace the rows of these {len(units)} units?"):
            return 1
    failed = False
    if config.to_tables:
        report = backfill.run(
            tables,
            units,
            history,
            attempts=config.attempts,
            buckets=config.symbol_buckets,
            report=_print_progress,
        )
        failed = _print_report(report, "in quarantine")
    if targets:
        terms = bus_backfill.Terms(
            loaded[PublishConfig],
            max_rate=buses.bus_max_rate,
            max_dead_letters=buses.bus_max_dead_letters,
            attempts=config.attempts,
            buckets=config.symbol_buckets,
        )
        report = bus_backfill.run(tables, targets, history, terms, _print_progress)
        failed = _print_report(report, "dead letters") or failed
    return 1 if failed else 0


def _print_units(units: Sequence[Unit]) -> None:
    for unit in units:
        where = ", ".join(layer.partition(":")[0] for layer in unit.layers)
        symbols = "all symbols" if unit.symbols is None else ",".join(unit.symbols)
        print(
            f"{unit.exchange} {unit.start_text} to {unit.end_text} {','.join(unit.data_types)} of "
            f"{symbols}: {where}"
        )


def _print_plan(units: Sequence[Unit], history: Mapping[str, str], tasks: int) -> None:
    _print_units(units)
    seconds = 0.0
    for estimate in planning.estimate(units, history):
        seconds += estimate.seconds
        size = "" if estimate.bytes is None else f"{estimate.bytes / 2**20:,.1f} MiB of history, "
        print(
            f"{estimate.exchange}: {estimate.units} units, {estimate.minutes:,} minutes, about "
            f"{size}{estimate.events:,} events, by {estimate.probed} of its minutes"
        )
    print(
        f"{len(units)} units; replaying them takes about {duration(seconds / tasks)} on {tasks} "
        "cores, and writing or sending comes on top. Nothing was done."
    )


def _root(config: BackfillConfig, buses: BusesConfig) -> str:
    if not config.to_tables and not buses.to_bus:
        raise ConfigError(config.flag("to_tables"), None, "is needed, or --to-bus, or both")
    root = config.to_tables or buses.manifest
    if root is None:
        raise ConfigError(
            buses.flag("manifest"),
            None,
            "is needed without --to-tables: the folder for the list of what was sent",
        )
    if config.to_tables and buses.manifest is not None:
        raise ConfigError(
            buses.flag("manifest"), buses.manifest, "is for --to-bus without --to-tables"
        )
    return root


def _buses(loaded: Loaded) -> dict[str, BusConfig]:
    """Return the settings of the buses of --to-bus; raise ConfigError if one lacks a flag."""
    configs: dict[str, BusConfig] = {}
    for name in loaded[BusesConfig].to_bus:
        kind = BUSES[name].config_type
        configs[name] = loaded[kind]
        if not configs[name].enabled:
            flags = " and ".join(kind.flag(field) for field in kind.needs)
            raise ConfigError("--to-bus", name, f"needs {flags}")
        configs[name].expect_client()
    return configs


def _replays(config: BackfillConfig) -> list[ReplayNormalizedOptions]:
    values = {
        "from": config.from_,
        "to": config.to,
        "dataTypes": config.types,
        "symbols": config.symbols or None,
    }
    fields = {"exchange": "exchange", "from": "from_", "to": "to", "dataTypes": "types"}
    flags = {option: config.flag(field) for option, field in fields.items()}
    return replay_normalized_options(
        [Request({"exchange": exchange, **values}, flags) for exchange in config.exchange]
    )


def _print_existing(
    replays: Sequence[ReplayNormalizedOptions], to_do: Sequence[Unit], where: str = ""
) -> None:
    """Print how many days of the replays are skipped, since no unit is left to do for them."""
    requested = {(unit.exchange, unit.day) for unit in plan(replays)}
    existing = requested - {(unit.exchange, unit.day) for unit in to_do}
    if existing:
        print(f"{len(existing)} of {len(requested)} days are there already{where}")


def _print_report(report: "Report", rejects: str) -> bool:
    """Print the totals and the days that failed; return whether there are any of these."""
    print(
        f"{len(report.finished)} days, {report.events:,} events, {report.rejected:,} {rejects}, "
        f"{report.seconds:.0f} s, {report.events / report.seconds:,.0f} events/s"
    )
    for failed in report.failed:
        unit = failed.unit
        bus = "" if unit.layers[0] in LAYERS else f" to {unit.layers[0].partition(':')[0]}"
        print(f"failed: {unit.exchange} {unit.day_text}{bus}: {failed.error}", file=sys.stderr)
    return bool(report.failed)


def duration(seconds: float) -> str:
    """Return seconds as text: `59 s`, `1 min 01 s`, `2 h 02 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _print_progress(progress: "Progress") -> None:
    rate = progress.events / max(progress.seconds, 1e-3)
    print(
        f"{progress.done}/{progress.total} days done ({progress.unit.exchange} "
        f"{progress.unit.day_text}), {progress.events:,} events, {rate:,.0f} events/s, "
        f"{duration(progress.seconds_left)} left",
        flush=True,
    )
