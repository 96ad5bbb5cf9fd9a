"""Declaration of the lake's commands, and how they open tables."""

import tempfile
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.config import ConfigError, Loaded, Section
from tardis_machine.lake.config import SparkConfig, TablesConfig, VerifyConfig
from tardis_machine.lake.gold_config import DaysConfig
from tardis_machine.lake.places import is_url

if TYPE_CHECKING:
    from tardis_machine.lake.tables import Tables

_CATALOG: Final = "spark.sql.catalogImplementation"


class Command(NamedTuple):
    """A command of `tardis-machine lake`.

    `main` calls `run` once, with the configuration and the arguments that are no flags, after the
    settings are valid and the extra is installed. `run` returns the exit code. An error that it
    raises is printed in a line; the exit code is 1 then.
    """

    does: str
    sections: tuple[type[Section], ...]
    run: Callable[[Loaded, Sequence[str]], int]
    example: str
    arguments: str = ""
    asks: Callable[[Loaded], bool] = lambda _: False
    """Whether the command has to ask, since it deletes or replaces rows and lacks `--yes`."""


def open_tables(loaded: Loaded, root: str, **settings: str) -> "Tables":
    """Start a Spark session and open the tables; --spark overrides the command's `settings`."""
    from tardis_machine.lake.session import on_s3, session  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.tables import EVENTS, Tables  # noqa: PLC0415

    config = loaded[SparkConfig]
    chosen = {**settings, **config.spark}
    if _CATALOG not in chosen:
        # Spark creates this folder at its start, by default in the working directory.
        chosen.setdefault("spark.sql.warehouse.dir", f"file://{tempfile.gettempdir()}")
    spark = session(master=config.master, settings=chosen, s3=on_s3(root))
    tables = Tables(spark, root)
    if is_url(root):
        tables.exists(EVENTS)  # raises if the URL cannot be read
    return tables


def time_range(config: VerifyConfig | DaysConfig) -> tuple[int | None, int | None]:
    """Return --from and --to in microseconds, or None for one that is not set.

    Raise ConfigError if one is not a time, or --to is not after --from.
    """
    start, end = (
        _time(config.flag(name), getattr(config, name)) if getattr(config, name) else None
        for name in ("from_", "to")
    )
    if start is not None and end is not None and end <= start:
        raise ConfigError(
            config.flag("to"),
            config.to,
            f"expected a time after {config.flag('from_')} {config.from_}",
        )
    return start, end


def _time(flag: str, text: str) -> int:
    from tardis_machine.replays.requests import OptionsError, parse_time  # noqa: PLC0415 - takes a moment

    try:
        return parse_time(text, flag)
    except OptionsError:
        raise ConfigError(
            flag, text, "expected a day or time, such as 2024-03-01 or 2024-03-01T12:30"
        ) from None


def open_existing(loaded: Loaded, config: TablesConfig, **settings: str) -> "Tables":
    """Open tables that exist; raise ConfigError if the folder or URL has none.

    For commands that create no table: without any, the path is probably misspelt.
    """
    tables = open_tables(loaded, config.tables, **settings)
    expect_tables(tables, config)
    return tables


def expect_tables(tables: "Tables", config: TablesConfig) -> None:
    """Raise ConfigError if the folder or URL has no table."""
    from tardis_machine.lake.catalog import TABLES  # noqa: PLC0415 - needs the extra

    if not any(tables.exists(table) for table in TABLES.values()):
        raise ConfigError(
            config.flag("tables"),
            config.tables,
            "has no tables; expected a folder or URL that `lake backfill` or `lake stream` fills",
        )
