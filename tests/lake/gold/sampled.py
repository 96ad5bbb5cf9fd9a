"""The Gold tables made of the bundled sample, and the server's messages to compare them with."""

from tardis_machine.history import History
from tardis_machine.history.sample import SAMPLE
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.refresh import Wanted
from tardis_machine.messages import Message, decode_lines
from tardis_machine.replays import NormalizedReplay
from tardis_machine.replays.requests import ReplayNormalizedOptions
from tests.lake.days import MINUTE_US, START_US

EXCHANGES = ("bitmex", "deribit")
TYPES = ("trade", "book_change", "derivative_ticker")
MORE = {"bitmex": ("liquidation",), "deribit": ("option_summary",)}
MADE = {
    "bars": ("trade_bar_1m", "trade_bar_100ticks"),
    "books": ("book_snapshot_10_1s",),
    "top_of_book": ("book_snapshot_10_1s",),
    "derivatives": ("1m",),
    "liquidation_totals": ("1m",),
    "option_surface": ("1m",),
    "quality": ("",),
}
"""Variants by Gold table."""


def sample_replay(exchange: str, *data_types: str, minutes: int = 3) -> ReplayNormalizedOptions:
    """Return a replay of the sample's first minutes."""
    return ReplayNormalizedOptions(
        exchange=exchange,
        from_=START_US,
        to=START_US + minutes * MINUTE_US,
        data_types=data_types,
        with_disconnect_messages=True,
    )


def wanted() -> list[Wanted]:
    """Return the Gold tables and variants that are made of the sample."""
    return [Wanted(GOLD[name], variant) for name, variants in MADE.items() for variant in variants]


def served(exchange: str, data_type: str) -> list[Message]:
    """Return the messages that the server sends for a replay of the sample."""
    with (
        History(source=SAMPLE) as history,
        NormalizedReplay[Message]([sample_replay(exchange, data_type)], history=history) as replay,
    ):
        return decode_lines(b"".join(batch.data for batch in replay.batches()))
