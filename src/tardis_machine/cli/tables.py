"""What a command on the tables is, and how it opens them."""

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
    """One of the lake's commands."""

    does: str
    sections: tuple[type[Section], ...]
    run: Callable[[Loaded, Sequence[str]], int]
    example: str
    arguments: str = ""
    asks: Callable[[Loaded], bool] = lambda _: False
    """Whether it deletes or replaces rows with these settings, and `--yes` is not among them."""


def open_tables(loaded: Loaded, root: str, **settings: str) -> "Tables":
    """Open the tables in a session as the flags say; `settings` are defaults of the command."""
    from tardis_machine.lake.session import on_s3, session  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.tables import EVENTS, Tables  # noqa: PLC0415

    config = loaded[SparkConfig]
    chosen = {**settings, **config.spark}
    if _CATALOG not in chosen:
        # Made as Spark starts, else where the command runs, and left there empty.
        chosen.setdefault("spark.sql.warehouse.dir", f"file://{tempfile.gettempdir()}")
    spark = session(master=config.master, settings=chosen, s3=on_s3(root))
    tables = Tables(spark, root)
    if is_url(root):
        tables.exists(EVENTS)  # raises where there can be none
    return tables


def asked_times(config: VerifyConfig | DaysConfig) -> tuple[int | None, int | None]:
    """Read --from and --to, either of which may be left out; raises ConfigError."""
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


def open_filled(loaded: Loaded, config: TablesConfig, **settings: str) -> "Tables":
    """Open tables of which there are some; raises ConfigError.

    For commands that begin nothing: without any, the path is misspelt.
    """
    tables = open_tables(loaded, config.tables, **settings)
    expect_some(tables, config)
    return tables


def expect_some(tables: "Tables", config: TablesConfig) -> None:
    """Refuse a path without tables by its flag."""
    from tardis_machine.lake.catalog import TABLES  # noqa: PLC0415 - needs the extra

    if not any(tables.exists(table) for table in TABLES.values()):
        raise ConfigError(
            config.flag("tables"),
            config.tables,
            "has no tables; expected a folder or URL that `lake backfill` or `lake stream` fills",
        )
