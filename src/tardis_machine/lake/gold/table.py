"""What a Gold table is: its columns, the tables it is made from, and how its rows are made."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple

from tardis_machine.lake.gold.parts import Part, condition, of_origin, whole_days
from tardis_machine.lake.tables import Table, Tables

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

KEY: Final[dict[str, str]] = {
    "name": "STRING",
    "exchange": "STRING",
    "day": "DATE",
    "symbol": "STRING",
}
"""The columns that Gold tables with variants begin with."""


class Job(NamedTuple):
    """Some parts of a Gold table that are made anew."""

    tables: Tables
    variant: str
    parts: tuple[Part, ...]
    now_us: int

    def rows(self, table: Table) -> "DataFrame":
        """Read what a source has of these parts, of the origin that was chosen."""
        return self.tables.read(table).where(of_origin(self.parts))

    def rows_of_all_symbols(self, table: Table) -> "DataFrame":
        """Read the same of a source whose rows concern an exchange as a whole."""
        return self.tables.read(table).where(whole_days(self.parts))

    def rows_of_any_origin(self, table: Table) -> "DataFrame":
        """Read all that a source has of these parts."""
        return self.tables.read(table).where(condition(self.parts))


class GoldTable(NamedTuple):
    """A Gold table. A day that its sources no longer have stays as it is."""

    table: Table
    sources: tuple[Table, ...]
    """What its rows are about: one table, or several of which every origin counts."""
    rows: Callable[[Job], "DataFrame"]
    beside: tuple[Table, ...] = ()
    """What else its rows depend on."""
    closes_days: bool = False
    """Whether a day's end itself has a row, even if nothing changed since."""

    @property
    def name(self) -> str:
        """Such as `bars`."""
        return self.table.path.rpartition("/")[2]

    @property
    def watched(self) -> tuple[Table, ...]:
        """The tables whose changes are its own."""
        return (*self.sources, *self.beside)


def gold(
    name: str, columns: Mapping[str, str], comments: Mapping[str, str], *, varied: bool = True
) -> Table:
    """Describe a Gold table: with variants, each of them has its own files."""
    return Table(
        f"gold/{name}",
        dict(columns),
        partitioned_by=("name", "exchange", "day") if varied else ("exchange", "day"),
        statistics=("symbol", "local_ts"),
        comments=comments,
    )
