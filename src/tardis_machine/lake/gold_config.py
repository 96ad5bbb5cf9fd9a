"""The settings of the lake's commands around Gold."""

from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

from tardis_machine.config import ConfigError, Section, setting
from tardis_machine.engine import DataTypeError, parse
from tardis_machine.engine.datatypes import BookSnapshots, TradeBars
from tardis_machine.lake.config import MOST_ROWS, YES_HELP, TablesConfig
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.intervals import seconds

_LAYERS: Final = ("bronze", "silver", "gold")
_YEAR_S: Final = 31_536_000
_MOST_DAYS: Final = 36_500


@dataclass(frozen=True, kw_only=True)
class GoldConfig(TablesConfig, title="Gold"):
    """What is kept up with Silver."""

    bars: tuple[str, ...] = setting(
        ("trade_bar_1m",), help="bars: any trade_bar_… data type", metavar="TYPE,…"
    )
    books: tuple[str, ...] = setting(
        ("book_snapshot_10_1s",),
        help="books, and the top of each: any book_snapshot_… data type",
        metavar="TYPE,…",
    )
    intervals: tuple[str, ...] = setting(
        ("1m",), help="intervals of the series that a day is made of", metavar="10s,1m,1h,…"
    )
    only: tuple[str, ...] = setting(
        (), help="Gold tables, such as bars,quality; all if not given", metavar="NAME,…"
    )
    every_s: float = setting(
        0,
        help="seconds from one time to the next; once, and then the end, if 0",
        minimum=0,
        maximum=_YEAR_S,
    )

    def validate(self) -> None:
        """Refuse what is no bar, book or interval."""
        super().validate()
        for name, kind, like in (
            ("bars", TradeBars, "trade_bar_1m"),
            ("books", BookSnapshots, "book_snapshot_10_1s"),
        ):
            for each in getattr(self, name):
                if not isinstance(_parsed(each), kind):
                    raise ConfigError(self.flag(name), each, f"expected a data type like {like}")
        for each in self.intervals:
            try:
                seconds(each)
            except LakeError as error:
                raise ConfigError(self.flag("intervals"), each, str(error)) from error


@dataclass(frozen=True, kw_only=True)
class DaysConfig(TablesConfig):
    """Which days."""

    exchange: tuple[str, ...] = setting((), help="exchanges; all if not given", metavar="NAME,…")
    from_: str = setting("", help="first day or minute, UTC; the first there is", metavar="TIME")
    to: str = setting("", help="end, not included, UTC; the last there is", metavar="TIME")


@dataclass(frozen=True, kw_only=True)
class QualityConfig(DaysConfig, title="Quality"):
    """What is reported on."""

    picture: str | None = setting(
        None, help="file to draw it into, such as quality.svg or .png", metavar="PATH"
    )
    picture_title: str = setting(
        "", help="text that the picture's title begins with", metavar="TEXT"
    )
    limit: int = setting(100, help="lines of each part of the report", minimum=1, maximum=MOST_ROWS)


@dataclass(frozen=True, kw_only=True)
class PlotConfig(DaysConfig, title="Plot"):
    """What is drawn."""

    symbol: str = setting("", help="the symbol", metavar="SYMBOL")
    bars: str = setting("trade_bar_1m", help="which bars of Gold", metavar="TYPE")
    picture: str = setting("plot.png", help="file to draw into: .png, .svg, .pdf", metavar="PATH")
    picture_title: str = setting(
        "", help="text that the picture's title begins with", metavar="TEXT"
    )
    limit: int = setting(
        20_000, help="most rows of a table that are drawn", minimum=1, maximum=MOST_ROWS
    )

    def validate(self) -> None:
        """Refuse a picture of nothing, or of several."""
        super().validate()
        if not self.symbol:
            raise ConfigError(self.flag("symbol"), None, "is needed")
        if len(self.exchange) != 1:
            raise ConfigError(self.flag("exchange"), ",".join(self.exchange), "expected one")


@dataclass(frozen=True, kw_only=True)
class RegisterConfig(TablesConfig, title="Register"):
    """Where the tables are made known."""

    database: str = setting(
        "", help="database or schema, with a catalog before it or not: md, main.md", metavar="NAME"
    )

    def validate(self) -> None:
        """Refuse what is no name."""
        super().validate()
        if not self.database:
            raise ConfigError(self.flag("database"), None, "is needed")
        if not all(part.isidentifier() for part in self.database.split(".")):
            raise ConfigError(self.flag("database"), self.database, "expected a name such as md")


@dataclass(frozen=True, kw_only=True)
class DropDaysConfig(TablesConfig, title="Drop days"):
    """Which days go."""

    before: str = setting("", help="the first day that stays, UTC", metavar="YYYY-MM-DD")
    keep_days: int | None = setting(
        None,
        help="days that stay, today among them: for a retention",
        minimum=1,
        maximum=_MOST_DAYS,
    )
    exchange: tuple[str, ...] = setting((), help="exchanges; all if not given", metavar="NAME,…")
    layers: tuple[str, ...] = setting(
        ("bronze", "silver"), help="layers they go from", choices=_LAYERS
    )
    dry_run: bool = setting(False, help="only say what would go")
    yes: bool = setting(False, help=YES_HELP)

    @property
    def asks(self) -> bool:
        """Whether it deletes rows without a `--yes`."""
        return not (self.dry_run or self.yes)

    def validate(self) -> None:
        """Refuse to drop what was not named."""
        super().validate()
        if bool(self.before) == (self.keep_days is not None):
            raise ConfigError(self.flag("before"), None, "is needed, or --keep-days, not both")
        if self.before:
            try:
                date.fromisoformat(self.before)
            except ValueError:
                raise ConfigError(
                    self.flag("before"), self.before, "expected a day such as 2024-01-01"
                ) from None

    def first_kept(self, today: date) -> date:
        """Tell the first day that stays."""
        if self.keep_days is None:
            return date.fromisoformat(self.before)
        return today - timedelta(days=self.keep_days - 1)


SECTIONS: Final[tuple[type[Section], ...]] = (
    GoldConfig,
    QualityConfig,
    PlotConfig,
    RegisterConfig,
    DropDaysConfig,
)


def _parsed(name: str) -> object:
    try:
        return parse(name)
    except DataTypeError:
        return None
