from pathlib import Path

import pytest

from tests.live.chaos import endure

pytestmark = pytest.mark.faults


async def test_a_failing_exchange_never_shows_a_wrong_book(tmp_path: Path) -> None:
    report = await endure(8, tmp_path, seed=7)
    assert report.judged > 100
    assert report.snapshots > 3
    assert report.disconnects > 0
