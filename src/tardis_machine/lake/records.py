"""A record as every source gives it, and columns as Spark writes them."""

from collections.abc import Mapping
from typing import Final

RECORD: Final[dict[str, str]] = {
    "bus": "STRING",
    "destination": "STRING",
    "partition": "INT",
    "offset": "BIGINT",
    "timestamp": "TIMESTAMP",
    "key": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING, value: BINARY>>",
    "value": "BINARY",
}
"""What every source gives."""

KEPT: Final[dict[str, str]] = {name: kind for name, kind in RECORD.items() if name != "headers"}
"""What tables keep of a record. Headers repeat what the envelope has; and a column of lists makes
Spark measure the whole Arrow batch anew with each row that it adds."""


def schema_of(columns: Mapping[str, str]) -> str:
    """Write columns as Spark does."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
