"""From the journal to the event buses."""

import tardis_machine.posix  # noqa: F401 - raises on other systems
