"""Hostile input: the corpus as it is, and a short attack with it; `fuzz.py` goes on for longer."""

import logging
from collections.abc import Iterator
from random import Random

import pytest

from tests.kernel import fuzz

ATTACKS = {"ndjson": 400, "levels": 150, "table": 300, "lines": 60}


@pytest.fixture(autouse=True, scope="module")
def _quiet() -> Iterator[None]:
    """Thousands of lines that cannot be normalized need not be told."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_kernels_agree_on_the_corpus(target: str) -> None:
    inputs = fuzz.corpus(target)
    assert len(inputs) > 1
    for data in inputs:
        for seed in range(3):
            fuzz.TARGETS[target](data, Random(seed))


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_kernels_agree_on_damaged_input(target: str) -> None:
    count = ATTACKS[target]
    assert fuzz.attack(target, Random(20240301), lambda done: done >= count) == count
