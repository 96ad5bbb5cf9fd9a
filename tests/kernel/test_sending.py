"""Frames and raw objects: the kernel's are Python's, whatever the lines look like."""

from hypothesis import example, given
from hypothesis import strategies as st

from tardis_machine.engine.choice import kernel
from tardis_machine.server.frames import Recorded, recorded_frames, text_frames
from tests.kernel.implementations import NAMES, chosen

STAMP = b"2024-03-01T00:00:00.0000001Z "
messages = st.one_of(
    st.binary(max_size=8),
    st.sampled_from([124, 125, 126, 127, 65535, 65536]).map(lambda length: b"x" * length),
)
heads = st.sampled_from([STAMP, STAMP, STAMP, b"", STAMP[:-1], STAMP[:-2] + b"  ", b"Z " + STAMP])
pieces = st.lists(st.tuples(heads, messages).map(b"".join), max_size=6).map(b"\n".join)


def same(function: str, piece: bytes) -> Recorded | bytes:
    """What both kernels make of it."""
    found = []
    for name in NAMES:
        with chosen(name):
            found.append(text_frames(piece) if function == "text" else recorded_frames(piece))
            if function == "text":
                assert text_frames(bytearray(piece)) == found[-1]
    assert found[0] == found[1]
    return found[1]


@given(pieces)
@example(b"")
@example(b"\n")
@example(b"x\n" * 3)
def test_frames_of_lines(piece: bytes) -> None:
    same("text", piece)
    same("text", piece + b"\n")


@given(pieces)
@example(b"")
@example(b"\n")
@example(STAMP + b"{}\n\n" + STAMP + b"{}\nodd\n")
def test_frames_of_recorded_messages(piece: bytes) -> None:
    same("recorded", piece)
    same("recorded", piece + b"\n")


@given(pieces)
@example(b"")
@example(b"\n")
def test_objects_of_recorded_messages(piece: bytes) -> None:
    module = kernel().module
    assert module is not None
    lines = piece.split(b"\n")
    made = module.raw_objects(piece + b"\n")
    if all(line.startswith(STAMP) for line in lines):
        expected = (
            b'{"localTimestamp":"' + line[:28] + b'","message":' + line[29:] + b"}\n"
            for line in lines
        )
        assert made == (b"".join(expected), len(lines))
    else:
        assert made is None
