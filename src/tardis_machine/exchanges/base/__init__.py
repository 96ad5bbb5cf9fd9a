"""What exchange modules are written with: channels, fields, books, dialects."""
