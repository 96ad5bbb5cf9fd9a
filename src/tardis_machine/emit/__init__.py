"""What mappers call: normalized messages in, NDJSON and computed messages out."""

from tardis_machine.emit.datatypes import DataType, DataTypeError, parse, parse_all
from tardis_machine.emit.levels import PAIRS, Layout, Levels, objects, positions
from tardis_machine.emit.numbers import Number
from tardis_machine.emit.python import Emitter, Taken
from tardis_machine.emit.times import Time

__all__ = [
    "PAIRS",
    "DataType",
    "DataTypeError",
    "Emitter",
    "Layout",
    "Levels",
    "Number",
    "Taken",
    "Time",
    "objects",
    "parse",
    "parse_all",
    "positions",
]
