"""Facts of each exchange's live dialect, read from `tests/exchanges/dialects`."""

from pathlib import Path
from typing import Any

import msgspec

from tardis_machine import exchanges

_FILES = sorted((Path(__file__).parents[1] / "exchanges" / "dialects").glob("*.json"))
FACTS: dict[str, dict[str, list[dict[str, Any]]]] = {
    name: facts for file in _FILES for name, facts in msgspec.json.decode(file.read_bytes()).items()
}
"""Cases by exchange and section; `tests/exchanges/test_dialects.py` describes the sections."""
LIVE = [name for name in exchanges.names() if exchanges.get(name).live is not None]
"""The exchanges that can be streamed live."""
