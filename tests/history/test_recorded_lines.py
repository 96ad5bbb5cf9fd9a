import pytest
from hypothesis import given
from hypothesis import strategies as st

from tardis_machine.history import recorded_lines as lines
from tardis_machine.history.recorded_lines import StampRange, first_stamp, last_stamp


def stamp(second: int) -> str:
    return f"2024-03-01T00:{second // 60:02}:{second % 60:02}.0000000Z"


def test_a_local_time_drops_the_seventh_digit() -> None:
    raw = [b"2024-03-01T00:00:01.1234569Z {}", b"2024-03-01T00:00:02.0000000Z []"]
    local = ["2024-03-01T00:00:01.123456Z", "2024-03-01T00:00:02.000000Z"]
    assert lines.locals_of(raw) == local
    assert lines.locals_of([raw[0], b"", raw[1]]) == [local[0], "", local[1]]
    assert lines.locals_of([]) == []


@pytest.mark.parametrize(
    "line",
    [
        b"garbage",
        b"2024-03-01T00:00:01.1234569Z",
        b"2024-03-01T00:00:01.123456Z  {}",
        b"2024-03-01 00:00:01.1234569Z {}",
        b"2024-03-01T00:00:01.123456\xb2Z {}",
        b' {"a":"2024-03-01T00:00:01.1234569Z "}',
    ],
)
def test_what_has_no_local_time(line: bytes) -> None:
    assert lines.locals_of([line]) == [""]


def test_minutes_and_stamps() -> None:
    minute = 1709251200 // 60 + 61
    assert lines.stamp_of(minute) == b"2024-03-01T01:01:00.0000000Z"
    assert lines.minute_of(b"2024-03-01T01:01:59.9999999Z") == minute


def test_lines_are_skipped_but_not_disconnects() -> None:
    block = f"{stamp(1)} a\n\n{stamp(1)} b\n\n{stamp(2)} c\n".encode()
    assert lines.skip(block, 2) == (f"\n{stamp(2)} c\n".encode(), 0)
    assert lines.skip(block, 4) == (b"", 1)
    assert lines.count_stamped([block, block], stamp(1).encode()) == 4


def test_messages_are_selected_and_disconnects_kept() -> None:
    block = f"{stamp(1)} a\n\n{stamp(1)} b\n{stamp(2)} a\n".encode()
    assert lines.select(block, b"a".__eq__) == f"{stamp(1)} a\n\n{stamp(2)} a\n".encode()
    assert lines.select(f"{stamp(1)} b\n".encode(), b"a".__eq__) == b""


def test_stamps_look_past_disconnects() -> None:
    block = f"\n\n{stamp(1)} a\n{stamp(2)} b\n\n".encode()
    assert first_stamp(block) == stamp(1).encode()
    assert last_stamp(block) == stamp(2).encode()
    assert first_stamp(b"\n") == last_stamp(b"\n\n") == b""


def window(data: bytes, start: int, end: int, size: int) -> bytes:
    """Cut in blocks of about `size` bytes, as a file would be."""
    cutter = StampRange(stamp(start).encode(), stamp(end).encode())
    out, rest = [], data
    while rest and not cutter.passed:
        cut = rest.find(b"\n", size) + 1 or len(rest)
        out.append(cutter.cut(rest[:cut]))
        rest = rest[cut:]
    return b"".join(out)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.booleans()), max_size=30),
    st.integers(0, 20),
    st.integers(1, 12),
    st.integers(1, 400),
)
def test_a_window_keeps_its_lines_and_the_disconnects_among_them(
    drawn: list[tuple[int, bool]], start: int, length: int, size: int
) -> None:
    ordered = sorted(drawn)
    end = start + length
    data, expected = [], []
    for index, (second, disconnected) in enumerate(ordered):
        line = f"{stamp(second)} {index}\n"
        data.append(line)
        inside = start <= second < end
        if inside:
            expected.append(line)
        if disconnected:
            data.append("\n")
            following = ordered[index + 1][0] if index + 1 < len(ordered) else None
            # At a border it may belong to either side, so both have it.
            if inside or (following is not None and second < start <= following < end):
                expected.append("\n")
    got = window("".join(data).encode(), start, end, size).decode()
    assert got.split() == "".join(expected).split()
    assert got.strip("\n").count("\n\n") == "".join(expected).strip("\n").count("\n\n")
