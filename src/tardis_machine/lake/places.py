"""Where tables and checkpoints are: folders, or URLs that Spark has a file system for."""

import re
from pathlib import Path
from typing import Final

from tardis_machine.config import ConfigError

_URL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/+[^/]")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_EXPECTED: Final = "expected a folder, such as /data/lake, or a URL, such as s3a://bucket/lake"


def is_url(place: str) -> bool:
    """Tell a URL from the path of a folder, which may have a colon as well."""
    return _URL.match(place) is not None


def located(place: str) -> str:
    """Give a place as all take it: SQL takes a relative path for the name of a schema."""
    return place.rstrip("/") if is_url(place) else str(Path(place).expanduser().absolute())


def check_place(flag: str, place: str) -> None:
    """Refuse what can be no folder; raises ConfigError."""
    if is_url(place):
        return
    if _SCHEME.match(place):
        folder = "" if place.endswith("/") else f"; a folder of that name is ./{place}"
        raise ConfigError(flag, place, f"is neither a folder nor a URL: {_EXPECTED}{folder}")
    path = Path(located(place))
    for each in (path, *path.parents):
        if each.exists() and not each.is_dir():
            which = "is a file" if each == path else f"is below {each}, which is a file"
            raise ConfigError(flag, place, f"{which}: {_EXPECTED}")
