"""What goes wrong between Spark and the tables."""

from tardis_machine.errors import TardisMachineError


class LakeError(TardisMachineError):
    """A job that cannot be run as asked."""


class SessionError(LakeError):
    """A Spark session that cannot be had, or lacks what the tables need."""


class DataLossError(LakeError):
    """Data that a stream was about to read is no longer there."""

    def __init__(self, source: str, first: int | str, last: int | str) -> None:
        self.source = source
        self.first = first
        self.last = last
        super().__init__(
            f"{source}: {first} to {last} were trimmed before they were read. What is gone cannot "
            "be had again from this stream; a backfill may have it. To go on with what is left: "
            "--on-data-loss skip"
        )

    def __reduce__(self) -> tuple[type["DataLossError"], tuple[str, int | str, int | str]]:
        """Keep it picklable: it travels from Spark's planning process to the driver."""
        return type(self), (self.source, self.first, self.last)
