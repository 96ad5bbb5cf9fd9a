"""What is remembered by name, and forgotten when a feed makes up too many."""

import pytest

from tardis_machine import bounded
from tardis_machine.bounded import BoundedDefaultDict, BoundedDict, BoundedSet, shortened


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded, "MAX_NAMES", 2)


def test_known_names_may_be_told_again_however_many_there_are() -> None:
    known = BoundedDict[str, int]()
    for name, value in (("a", 1), ("b", 2), ("a", 3)):
        known[name] = value
    assert known == {"a": 3, "b": 2}
    known["c"] = 4
    assert known == {"c": 4}


def test_seen_starts_anew() -> None:
    seen = BoundedSet[str]()
    for name in "abc":
        seen.add(name)
    assert seen == {"c"}


def test_what_was_made_is_dropped_before_it_is_forgotten() -> None:
    dropped: list[str] = []
    made = BoundedDefaultDict[str, str](str.upper, dropped.append)
    assert [made[name] for name in "abac"] == ["A", "B", "A", "C"]
    assert dropped == ["A", "B"]
    assert made == {"c": "C"}


@pytest.mark.parametrize(
    ("text", "kept"),
    [("short", "short"), ("exact", "exact"), ("longer", "long…"), ("/a\udcff", "/a?")],
)
def test_shortened_text_fits_and_can_be_encoded(text: str, kept: str) -> None:
    assert shortened(text, 5) == kept
