"""History: slices of the Tardis API, their cache on disk, and their readers."""

from tardis_machine.history.errors import (
    CacheError,
    CorruptSliceError,
    HistoryError,
    ReaderClosedError,
    RetriesExhaustedError,
)
from tardis_machine.history.filters import Filter, normalize, to_json
from tardis_machine.history.history import History, Source, claim_cache_dir, default_cache_dir
from tardis_machine.history.reader import HistoryReader, Select

__all__ = [
    "CacheError",
    "CorruptSliceError",
    "Filter",
    "History",
    "HistoryError",
    "HistoryReader",
    "ReaderClosedError",
    "RetriesExhaustedError",
    "Select",
    "Source",
    "claim_cache_dir",
    "default_cache_dir",
    "normalize",
    "to_json",
]
