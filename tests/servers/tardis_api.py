"""A local server that speaks the Tardis.dev historical API."""
