"""What mappers call: normalized messages in, NDJSON and computed messages out."""

from tardis_machine.engine.datatypes import DataType, DataTypeError, parse, parse_all
from tardis_machine.engine.implementations import create
from tardis_machine.engine.levels import (
    FLAT,
    PAIRS,
    Keyed,
    Layout,
    Levels,
    Objects,
    Positions,
    RowLayout,
    Sided,
    Signed,
)
from tardis_machine.engine.protocol import (
    AMOUNTS_FIRST,
    ASK_FIRST,
    BID_FIRST,
    COMMON_ORDER,
    KEEP_OR_LOCAL,
    LATEST_KNOWN,
    LOCAL_TIME,
    BookTickerKeys,
    Emitter,
    Id,
    Taken,
    Written,
)
from tardis_machine.messages.types import Side

__all__ = [
    "AMOUNTS_FIRST",
    "ASK_FIRST",
    "BID_FIRST",
    "COMMON_ORDER",
    "FLAT",
    "KEEP_OR_LOCAL",
    "LATEST_KNOWN",
    "LOCAL_TIME",
    "PAIRS",
    "BookTickerKeys",
    "DataType",
    "DataTypeError",
    "Emitter",
    "Id",
    "Keyed",
    "Layout",
    "Levels",
    "Objects",
    "Positions",
    "RowLayout",
    "Side",
    "Sided",
    "Signed",
    "Taken",
    "Written",
    "create",
    "parse",
    "parse_all",
]
