"""The lakehouse spine: normalized events as Bronze and Silver Delta tables, on Spark."""

import tardis_machine.posix  # noqa: F401 - raises on other systems
