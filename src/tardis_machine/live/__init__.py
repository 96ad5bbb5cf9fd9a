"""Live streams: connections to exchanges, and their messages normalized as they arrive."""
