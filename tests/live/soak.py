"""Minutes of a failing exchange: no wrong book, nothing left behind, every event accounted for.

SOAK_S=600 .venv/bin/python -m pytest tests/live/soak.py
"""

import os
from pathlib import Path

import pytest

from tests.live.chaos import endure

_SOAK_S = float(os.environ.get("SOAK_S", "120"))


@pytest.mark.timeout(_SOAK_S * 2 + 300)
async def test_an_exchange_that_keeps_failing(tmp_path: Path) -> None:
    report = await endure(_SOAK_S, tmp_path, seed=int(os.environ.get("SOAK_SEED", "1")))
    print(report)
    assert set(report.faults) == {"_cut", "_close", "_garbage", "_stall", "_complain"}
