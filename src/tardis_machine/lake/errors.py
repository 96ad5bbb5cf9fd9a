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


class OtherStreamsError(LakeError):
    """A checkpoint with a place in streams that are not read now."""

    def __init__(self, bus: str, known: str, read: str) -> None:
        self.bus = bus
        self.known = known
        self.read = read
        super().__init__(
            f"the checkpoint has its place in {bus} stream {known}, which is not among those that "
            f"are read now: {read}. It belongs to the streams it was made with: use another "
            "--checkpoint, which begins at --starting; or --on-data-loss skip to go on with it and "
            "leave what is not read any more"
        )

    def __reduce__(self) -> tuple[type["OtherStreamsError"], tuple[str, str, str]]:
        """Keep it picklable, as `DataLossError` is."""
        return type(self), (self.bus, self.known, self.read)
