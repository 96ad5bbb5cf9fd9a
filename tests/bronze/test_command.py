"""`tardis-machine bronze` in pipes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tardis_machine.bronze.frames import read_frames
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tests.support.messages import BAR, DISCONNECT, QUOTE, TRADE

COMMAND = [str(Path(sys.executable).parent / "tardis-machine"), "bronze"]
NDJSON = b"".join(line + b"\n" for line in (TRADE, TRADE, QUOTE, BAR, DISCONNECT))


def run(*arguments: str, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([*COMMAND, *arguments], input=given, capture_output=True, check=False)


def test_there_and_back() -> None:
    encoded = run("encode", given=NDJSON)
    assert (encoded.returncode, encoded.stderr) == (0, b"")
    decoded = run("decode", given=encoded.stdout)
    assert (decoded.returncode, decoded.stderr, decoded.stdout) == (0, b"", NDJSON)


def test_envelopes_are_length_delimited() -> None:
    stdout = run("encode", given=NDJSON).stdout
    events = [pb.NormalizedEvent.FromString(frame.value) for frame in read_frames([stdout])]
    assert [event.position for event in events] == [0, 1, 2, 3, 4]
    assert len({event.event_id for event in events}) == 5


def test_the_whole_envelope() -> None:
    encoded = run(
        "encode",
        *("--source", "desk", "--producer-id", "p1", "--origin", "replay", "--request-id", "r1"),
        *("--ingest-time", "2024-03-02T00:00:00.000001Z", "--meta", "a=b=c", "--meta", "d="),
        given=NDJSON,
    )
    lines = run("decode", "--envelope", given=encoded.stdout).stdout.splitlines()
    envelope = json.loads(lines[0])
    assert envelope.pop("message") == json.loads(TRADE)
    assert len(envelope.pop("eventId")) == 32
    assert envelope == {
        "position": 0,
        "payloadCase": "trade",
        "source": "desk",
        "producerId": "p1",
        "origin": "replay",
        "exchange": "bitmex",
        "symbol": "XBTUSD",
        "localTimestamp": "2024-03-01T00:00:00.123456Z",
        "ingestTimestamp": "2024-03-02T00:00:00.000001Z",
        "meta": {"request_id": "r1", "a": "b=c", "d": ""},
    }
    assert json.loads(lines[4])["payloadCase"] == "disconnect"


def test_a_bad_line_is_reported_with_its_number() -> None:
    done = run("encode", given=TRADE + b'\n\n{"type":"trade"}\n' + BAR + b"\nnonsense\n")
    assert done.returncode == 1
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("tardis-machine bronze encode: line 3: cannot encode trade: ")
    assert second.startswith("tardis-machine bronze encode: line 5: cannot encode message: ")
    assert run("decode", given=done.stdout).stdout == TRADE + b"\n" + BAR + b"\n"


def test_a_flood_of_bad_lines_is_summed_up() -> None:
    done = run("encode", given=b"nonsense\n" * 1000)
    lines = done.stderr.decode().splitlines()
    assert done.returncode == 1
    assert len(lines) == 21
    assert lines[-1] == "tardis-machine bronze encode: and 980 more, 1000 in all"


def test_a_bad_record_is_reported_with_its_position() -> None:
    good = run("encode", given=TRADE).stdout
    done = run("decode", given=good + b"\x03abc" + good)
    assert done.returncode == 1
    assert done.stdout == (TRADE + b"\n") * 2
    where = f"tardis-machine bronze decode: record 2 at byte {len(good)}: not a NormalizedEvent"
    assert done.stderr.decode().startswith(where)


@pytest.mark.parametrize("end", [b"\x80", b"\x05abc", b"\xff" * 9])
def test_a_stream_that_breaks_off_is_reported(end: bytes) -> None:
    good = run("encode", given=TRADE).stdout
    done = run("decode", given=good + end)
    assert (done.returncode, done.stdout) == (1, TRADE + b"\n")
    assert done.stderr.startswith(b"tardis-machine bronze decode: after record 1: ")
    assert f"at byte {len(good)}" in done.stderr.decode()


def test_nothing_gives_nothing() -> None:
    for command in ("encode", "decode"):
        done = run(command)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["encode", "--meta", "novalue"],
        ["encode", "--origin", "elsewhere"],
        ["encode", "--ingest-time", "today"],
    ],
)
def test_a_wrong_flag_is_exit_code_2(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_help_teaches_by_example() -> None:
    assert b"tardis-machine bronze decode < trades.bronze" in run("--help").stdout
    assert b"Example" in run("encode", "--help").stdout
    assert b"Example" in run("decode", "--help").stdout


@pytest.mark.parametrize("command", ["encode", "decode"])
def test_a_reader_that_leaves_is_no_traceback(command: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(NDJSON * 2000)
    if command == "decode":
        source.write_bytes(run("encode", given=source.read_bytes()).stdout)
    with (
        source.open("rb") as stdin,
        subprocess.Popen(
            [*COMMAND, command], stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(1)
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


@pytest.mark.parametrize("command", ["encode", "decode"])
def test_a_full_disk_is_said_in_a_line(command: str) -> None:
    given = TRADE if command == "encode" else run("encode", given=TRADE).stdout
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*COMMAND, command], input=given, stdout=full, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 1
    assert done.stderr == b"tardis-machine bronze: No space left on device\n"


def test_a_slow_pipe_is_answered_as_it_comes() -> None:
    later = TRADE.replace(b"00.123456Z", b"01.123456Z")
    with subprocess.Popen(
        [*COMMAND, "encode"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(TRADE + b"\n" + later + b"\n")
        process.stdin.flush()
        # the second local time may still go on, the first is complete
        assert process.stdout.read(1)
        process.stdin.close()
        assert process.stdout.read()
    assert process.returncode == 0


MEASURE = """
import sys, tracemalloc
from tardis_machine.cli import bronze
tracemalloc.start()
code = bronze.main(sys.argv[1:])
print(tracemalloc.get_traced_memory()[1], file=sys.stderr)
sys.exit(code)
"""


def peak_memory(command: str, source: Path, sink: Path) -> int:
    """Return the bytes of Python objects at once: unlike a process's pages, the same every time."""
    with source.open("rb") as stdin, sink.open("wb") as stdout:
        done = subprocess.run(
            [sys.executable, "-c", MEASURE, command],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            check=True,
        )
    return int(done.stderr)


@pytest.mark.memory
def test_memory_does_not_grow_with_the_stream(tmp_path: Path) -> None:
    sizes = {"short": 5_000, "long": 10_000}
    peaks: dict[str, list[int]] = {}
    for name, count in sizes.items():
        source, middle, sink = (tmp_path / f"{name}.{n}" for n in range(3))
        source.write_bytes(
            b"".join(TRADE.replace(b".123456Z", b".%06dZ" % n) + b"\n" for n in range(count))
        )
        peaks[name] = [peak_memory("encode", source, middle), peak_memory("decode", middle, sink)]
        assert sink.read_bytes() == source.read_bytes()
    more = (tmp_path / "long.1").stat().st_size - (tmp_path / "short.1").stat().st_size
    for short, long in zip(peaks["short"], peaks["long"], strict=True):
        assert long - short < more / 4
