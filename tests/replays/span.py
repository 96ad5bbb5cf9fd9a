"""The five minutes that tests replay."""

from datetime import UTC, datetime, timedelta

START = datetime(2024, 3, 1, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
END = START + timedelta(minutes=5)
