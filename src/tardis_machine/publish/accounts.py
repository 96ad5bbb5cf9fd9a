"""The books of a bus: every journalled message is filtered, delivered, pending, dead or dropped."""

import msgspec

from tardis_machine.journal import CursorState


class Account(msgspec.Struct):
    """What became of the messages in the journal, for one bus.

    journalled = filtered + accepted; accepted = delivered + pending + dead_lettered + dropped.
    A message that has not been looked at yet counts as accepted and pending.
    """

    journalled: int = 0
    filtered: int = 0
    delivered: int = 0
    duplicates: int = 0
    dead_lettered: int = 0
    dropped: int = 0

    @property
    def accepted(self) -> int:
        return self.journalled - self.filtered

    @property
    def pending(self) -> int:
        return self.accepted - self.delivered - self.dead_lettered - self.dropped

    def add(self, state: CursorState, journalled: int, skipped: int = 0) -> None:
        """Add one log: its cursor's counts, its length, and what lies skipped before the cursor.

        A cursor ahead of a log that lost its tail to a power cut says what was journalled.
        """
        self.journalled += max(journalled, state.seen)
        self.filtered += state.filtered
        self.delivered += state.delivered
        self.duplicates += state.duplicates
        self.dead_lettered += state.dead_lettered
        self.dropped += state.dropped + skipped

    def counts(self) -> dict[str, int]:
        """Give every count by name, the sums included."""
        return {
            "journalled": self.journalled,
            "filtered": self.filtered,
            "accepted": self.accepted,
            "delivered": self.delivered,
            "duplicates": self.duplicates,
            "pending": self.pending,
            "dead_lettered": self.dead_lettered,
            "dropped": self.dropped,
        }
