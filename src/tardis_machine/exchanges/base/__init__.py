"""Building blocks of exchange modules: channels, fields, books, dialects."""
