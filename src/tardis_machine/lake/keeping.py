"""A stream kept running: started again after what passes, ended by what does not."""

import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from tardis_machine.backoff import Backoff
from tardis_machine.lake import streaming
from tardis_machine.lake.errors import LakeError

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

_POLL_S: Final = 0.5
_SHORTEST_S: Final = 1.0
_LONGEST_S: Final = 60.0
_FINAL: Final = (
    "--on-data-loss",
    "--checkpoint",
    "OutOfMemoryError",
    "Java heap space",
    "ConfigError",
    "[UNRESOLVED_COLUMN",
)
"""What is said of trouble that starting again does not mend."""


def keep(
    start: Callable[[], "StreamingQuery"],
    stopping: threading.Event,
    *,
    restarts: int,
    started_again: Callable[[], None] = lambda: None,
) -> None:
    """Run a stream to its end, or until told to stop; raises LakeError.

    After a failure it is started again, so many times in a row: it goes on at its checkpoint. A
    batch that is done makes it a new row. What starting again cannot mend is raised at once.
    """
    backoff = Backoff(_SHORTEST_S, _LONGEST_S)
    while True:
        query = start()
        first = _batch(query)
        try:
            while not streaming.wait(query, _POLL_S):
                if stopping.is_set():
                    log.info("stopping")
                    query.stop()
                    return
        except LakeError as error:
            if _batch(query) != first:
                backoff.reset()
            if backoff.failures >= restarts or any(word in str(error) for word in _FINAL):
                raise
            pause_s = backoff.next_pause_s()
            reason = str(error).splitlines()[0]
            log.warning("stream failed", extra={"error": reason, "again_in_s": round(pause_s, 1)})
            if stopping.wait(pause_s):
                return
            started_again()
        else:
            return


def _batch(query: "StreamingQuery") -> int | None:
    """Tell which batch was last finished."""
    progress = query.lastProgress
    return None if progress is None else int(progress["batchId"])
