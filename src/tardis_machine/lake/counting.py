"""Counts of rows on their way into a table, taken while they are written."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Observation


class Counted:
    """Gives rows, without those that have a trouble, and tells how many there were of each kind.

    Call it for the rows, each time they are written anew; `counts` are of the last time.
    """

    def __init__(
        self,
        rows: Callable[[], "DataFrame"],
        counts: Mapping[str, str],
        *,
        trouble: str | None = None,
    ) -> None:
        self._rows = rows
        self._trouble = trouble
        self._conditions = dict(counts)
        self._observation: Observation | None = None

    def __call__(self) -> "DataFrame":
        from pyspark.sql import Observation  # noqa: PLC0415 - an optional dependency
        from pyspark.sql import functions as f  # noqa: PLC0415

        self._observation = Observation()
        counts = [
            f.count_if(f.expr(condition)).alias(f"c{number}")
            for number, condition in enumerate(self._conditions.values())
        ]
        rows = self._rows().observe(self._observation, *counts)
        if self._trouble is None:
            return rows
        return rows.where(f.col(self._trouble).isNull()).drop(self._trouble)

    @property
    def counts(self) -> dict[str, int]:
        """How many rows met each condition."""
        if self._observation is None:
            return dict.fromkeys(self._conditions, 0)
        found = self._observation.get
        return {
            name: int(found.get(f"c{number}") or 0) for number, name in enumerate(self._conditions)
        }
