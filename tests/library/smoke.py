"""What the library does on every system, without a test runner: `python -m tests.library.smoke`."""

import tardis_machine
from tardis_machine import Trade, replay, replay_normalized
from tardis_machine.replays import NormalizedReplay

START, END = "2024-03-01", "2024-03-01T00:01"


def main() -> None:
    """Import every name but the server's, and replay the bundled, synthetic sample data."""
    assert all(getattr(tardis_machine, name) for name in NAMES)
    trades = list(_trades())
    table = _trades().to_arrow()
    messages = list(replay("bitmex", START, END, ["trade"], sample=True))
    assert len(trades) == table.num_rows > 50 < len(messages)
    print(f"{len(trades)} trades")


def _trades() -> NormalizedReplay[Trade]:
    return replay_normalized("bitmex", data_types=["trade"], from_=START, to=END, sample=True)


NAMES = [name for name in tardis_machine.__all__ if name != "TardisMachine"]

if __name__ == "__main__":
    main()
