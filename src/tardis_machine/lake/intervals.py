"""Intervals as one writes them: 10s, 1m, 1h."""

import re
from typing import Final

from tardis_machine.lake.errors import LakeError

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DAY_S: Final = 86_400
_WRITTEN: Final = re.compile(r"([1-9][0-9]{0,5})([smhd])")


def seconds(interval: str) -> int:
    """Read an interval such as 1m; a day is made of whole ones."""
    written = _WRITTEN.fullmatch(interval)
    length = int(written[1]) * _UNITS[written[2]] if written else 0
    if not length or _DAY_S % length:
        raise LakeError(f"{interval!r} is no interval that a day is made of, such as 10s, 1m, 1h")
    return length
