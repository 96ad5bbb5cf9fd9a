"""What a command on the tables is, and how it opens them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tardis_machine.config import Loaded, Section
from tardis_machine.lake.config import SparkConfig

if TYPE_CHECKING:
    from tardis_machine.lake.tables import Tables


class Command(NamedTuple):
    """One of the lake's commands."""

    does: str
    sections: tuple[type[Section], ...]
    run: Callable[[Loaded, Sequence[str]], int]
    example: str
    arguments: str = ""


def open_tables(loaded: Loaded, root: str, **settings: str) -> "Tables":
    """Open the tables in a session as the flags say; `settings` are defaults of the command."""
    from tardis_machine.lake.session import on_s3, session  # noqa: PLC0415 - needs the extra
    from tardis_machine.lake.tables import Tables  # noqa: PLC0415

    config = loaded[SparkConfig]
    spark = session(master=config.master, settings={**settings, **config.spark}, s3=on_s3(root))
    return Tables(spark, root)
