"""Gold: what is asked of the data most, kept up with Silver; a module and a line here each."""

from typing import Final

from tardis_machine.lake.gold.bars import BARS
from tardis_machine.lake.gold.books import BOOKS
from tardis_machine.lake.gold.derivatives import DERIVATIVES
from tardis_machine.lake.gold.liquidation_totals import LIQUIDATION_TOTALS
from tardis_machine.lake.gold.option_surface import OPTION_SURFACE
from tardis_machine.lake.gold.quality import QUALITY
from tardis_machine.lake.gold.table import GoldTable
from tardis_machine.lake.gold.top_of_book import TOP_OF_BOOK

GOLD: Final[dict[str, GoldTable]] = {
    each.name: each
    for each in (
        BARS,
        BOOKS,
        TOP_OF_BOOK,
        DERIVATIVES,
        LIQUIDATION_TOTALS,
        OPTION_SURFACE,
        QUALITY,
    )
}
"""By name."""
