"""Normalized crypto market data from Tardis.dev: served, published and kept in a lakehouse."""

__version__ = "0.1.0"
