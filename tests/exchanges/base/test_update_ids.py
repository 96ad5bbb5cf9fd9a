import pytest

from tardis_machine.exchanges import BookGapError
from tardis_machine.exchanges.base.update_ids import UpdateIds


def test_updates_that_follow_one_another_pass() -> None:
    ids = UpdateIds("books", checks_ids=True)
    assert ids.follow("A", 1, 2)  # before its snapshot: whether to use it is the mapper's to say
    ids.start("A", 10)
    assert ids.follow("A", 10, 12)
    assert ids.follow("A", 12, 12)
    assert ids.follow("A", 12, 15)


def test_a_lost_update_is_an_error_once_and_keeps_the_book_out_until_its_snapshot() -> None:
    ids = UpdateIds("books", checks_ids=True)
    ids.start("A", 10)
    ids.start("B", 20)
    with pytest.raises(
        BookGapError, match="books: an update of A follows 11, the last was 10"
    ) as e:
        ids.follow("A", 11, 12)
    assert e.value.symbol == "A"
    assert not ids.follow("A", 12, 13)
    assert ids.follow("B", 20, 21)
    ids.start("A", 13)
    assert ids.follow("A", 13, 14)


def test_historic_books_are_taken_as_they_are() -> None:
    ids = UpdateIds("books", checks_ids=False)
    ids.start("A", 10)
    assert ids.follow("A", 99, 100)
