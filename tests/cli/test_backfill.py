"""`lake backfill`: what its command prints."""

import pytest

from tardis_machine.cli.backfill import duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (61, "1 min 01 s"), (7325, "2 h 02 min")]
)
def test_duration_is_written_in_its_two_largest_units(seconds: float, text: str) -> None:
    assert duration(seconds) == text
