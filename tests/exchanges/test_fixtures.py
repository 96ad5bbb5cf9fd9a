"""Every exchange by its fixtures: each type in each era, several symbols, the bytes that go out."""

import pytest

from tardis_machine import exchanges
from tests.exchanges import fixtures
from tests.vectors import mappers


@pytest.mark.parametrize("exchange", exchanges.names())
def test_messages_become_what_the_fixtures_say(exchange: str) -> None:
    for outcome in mappers.run(fixtures.path(exchange), exchange):
        assert outcome.difference is None, outcome.label
        assert outcome.passed == outcome.total > 0


@pytest.mark.parametrize("exchange", exchanges.names())
def test_each_type_has_a_message_in_each_of_its_eras(exchange: str) -> None:
    missing = []
    for data_type, eras in exchanges.get(exchange).types.items():
        of_type = [run for run in fixtures.runs(exchange) if run.data_type == data_type]
        since = 0
        for era in eras:
            until = era.until or (1 << 62)
            made = [
                run
                for run in of_type
                if since <= ((1 << 61) if run.created is None else fixtures.created(run)) < until
            ]
            if not any(step.out for run in made for step in run.steps):
                missing.append(f"{data_type} since {since}")
            since = until
    assert missing == []


@pytest.mark.parametrize("exchange", exchanges.names())
def test_fixtures_have_more_than_one_symbol(exchange: str) -> None:
    symbols = {
        symbol
        for run in fixtures.runs(exchange)
        for step in run.steps
        for out in step.out
        if (symbol := mappers.symbol_of(out)) is not None
    }
    assert len(symbols) > 1
