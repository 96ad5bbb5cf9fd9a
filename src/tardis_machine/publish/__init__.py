"""From the journal to the event buses."""
