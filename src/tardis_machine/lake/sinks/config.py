"""The settings of a backfill to buses; those of each bus are the publisher's."""

from dataclasses import dataclass

from tardis_machine.config import Section, setting
from tardis_machine.lake.places import check_place
from tardis_machine.publish.buses import BUSES


@dataclass(frozen=True, kw_only=True)
class BusesConfig(Section, title="Buses"):
    """Which buses history is sent to, and how."""

    to_bus: tuple[str, ...] = setting(
        (),
        help="buses that it is sent to, with the publisher's flags of each",
        choices=tuple(BUSES),
        metavar="BUS,…",
    )
    bus_max_rate: float | None = setting(
        None, help="events a second that each bus gets at most", minimum=1
    )
    bus_max_dead_letters: int = setting(
        10_000, help="dead letters of one task, above which its day fails", minimum=0
    )
    manifest: str | None = setting(
        None,
        help="folder or URL where it is written down what was sent; that of the tables if not "
        "given",
        metavar="PATH",
    )

    def validate(self) -> None:
        """Refuse a manifest that cannot be."""
        if self.manifest is not None:
            check_place(self.flag("manifest"), self.manifest)
