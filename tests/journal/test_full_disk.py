"""A disk that is really full: nothing is torn, nothing lost uncounted, and it goes on."""

from pathlib import Path

import pytest

from tests.journal import small_disk


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    path = tmp_path / "disk"
    path.mkdir()
    return path


def test_it_refuses_what_does_not_fit_and_keeps_what_did(disk: Path) -> None:
    found = small_disk.run(small_disk.fill, disk)
    assert found["count"] > 40
    assert found["end"] == found["count"]
    assert found["whole"]
    assert found["refused_again"]


def test_live_makes_room_on_it(disk: Path) -> None:
    found = small_disk.run(small_disk.live, disk)
    assert found["skipped"] > 0
    assert found["named"]
    assert found["skipped"] + found["kept"] == 2_000
    assert found["last"] == 1_999


def test_live_makes_room_where_others_have_filled_it(disk: Path) -> None:
    found = small_disk.run(small_disk.crowded, disk)
    assert found == {"made": True, "written": True, "all": 1}


def test_whoever_looks_at_what_is_being_cut_off_lives(disk: Path) -> None:
    """A page of a file that is mapped, and gone, is the end of the process."""
    assert small_disk.run(small_disk.watched, disk) == {"end": 1, "read": [1]}


def test_what_is_larger_than_a_file_may_be_ends_its_response_and_no_other(disk: Path) -> None:
    found = small_disk.run(small_disk.limited, disk)
    assert found["fates"] == ["written", "refused", "refused", "written", "refused", "written"]
    assert found["lost"] == 1  # of the one that never waits
    assert found["read"] == 2


def test_dead_letters_are_refused_whole(disk: Path) -> None:
    found = small_disk.run(small_disk.letters, disk)
    assert found["lost"] == 0
    assert found["refused"]
    assert found["again"] == 100


def test_a_replay_larger_than_it_is_paced_and_arrives(disk: Path) -> None:
    found = small_disk.run(small_disk.paced, disk)
    assert found["journalled"] == found["delivered"] == 30_000
    assert found["pending"] == found["dropped"] == 0
