"""Spark's Python workers on this machine: what all of them import is imported once, then forked."""

import pandas  # noqa: F401, ICN001 - Arrow asks for it when it first meets a list
from pyspark import (
    daemon,
    worker,  # noqa: F401 - what a worker runs
)

from tardis_machine.lake.sources import tardis  # noqa: F401 - what a backfill's tasks run

if __name__ == "__main__":
    daemon.manager()
