"""Benchmarks: each prints its own table."""
