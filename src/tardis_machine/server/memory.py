"""Memory that was freed is used again, instead of being given back and asked for anew."""

import ctypes
import os
import sys
from typing import Final

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 << 20
_LARGE_BYTES: Final = 8 << 20


def keep_freed() -> bool:
    """Have the C library keep some of what is freed; False where that is not its way.

    A replay frees and takes a quarter to a whole megabyte, hundreds of times a second. Left alone
    the library gives it back to the system as often, which clears every page before it is had
    again. Whoever has set that up by the library's own variables has it as it was set.
    """
    if sys.platform != "linux" or any(
        name.startswith("MALLOC_") or name == "GLIBC_TUNABLES" for name in os.environ
    ):
        return False
    try:
        tune = ctypes.CDLL(None).mallopt
    except AttributeError:  # musl has none
        return False
    return bool(tune(_M_TRIM_THRESHOLD, _KEPT_BYTES) and tune(_M_MMAP_THRESHOLD, _LARGE_BYTES))
