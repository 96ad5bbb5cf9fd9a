"""Lives of a journal on a disk of 2 MiB, each a function; run by `test_full_disk` in a process.

Where a file system can be mounted in a namespace of one's own, as most users may on Linux, the
disk is one in memory. Elsewhere the kernel refuses files of more than 256 KiB.
"""

import asyncio
import contextlib
import json
import multiprocessing
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from prometheus_client import CollectorRegistry

from tardis_machine.journal import (
    Directory,
    Entry,
    Flow,
    Gap,
    Provenance,
    Reader,
    Scribe,
    Ticket,
    WhenFull,
    Writer,
)
from tardis_machine.journal.entry import encode_provenance
from tardis_machine.journal.writer import FileLimitError
from tardis_machine.publish.buses.console import ConsoleConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters, read
from tardis_machine.publish.outbox import Outbox
from tests.support.events import CONTEXT, events, lines
from tests.support.outbox import respond, write

_DISK: Final = "2m"
_LARGEST_FILE: Final = 256 * 1024
_MOUNT: Final = 'mount -t tmpfs -o size={size} tmpfs "$1" && exec "$2" -m {module} "$3" "$1"'
_PROVENANCE: Final = encode_provenance(Provenance("p", "r"))
_LINE: Final = b"x" * 3_999 + b"\n"


def run(life: Callable[[Path], object], disk: Path) -> Any:
    """Run one of these functions on a small disk; gives what it returned."""
    command = [sys.executable, "-m", __name__, life.__name__, str(disk)]
    if _can_mount(disk):
        shell = _MOUNT.format(size=_DISK, module=__name__)
        arguments = (str(disk), sys.executable, life.__name__)
        command = [*_UNSHARED, "sh", "-c", shell, "sh", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


_UNSHARED: Final = ("unshare", "--user", "--map-root-user", "--mount")


def _can_mount(disk: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    trial = [*_UNSHARED, "mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(disk)]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


def _writer(disk: Path) -> Writer:
    return Writer(disk / "journal", "p", ["kafka"], max_bytes=4 << 20, fsync=None)


def _append(writer: Writer, number: int) -> bool:
    return writer.append(_PROVENANCE, _LINE, 1, number)


def _read(path: Path) -> list[Entry | Gap]:
    found = []
    for log in Directory(path).logs():
        reader = Reader(log, 0, 0, 0)
        while (each := reader.read()) is not None:
            found.append(each)
    return found


def fill(disk: Path) -> dict[str, object]:
    """Append until the disk refuses; what it took is whole."""
    writer = _writer(disk)
    count = 0
    while _append(writer, count):
        count += 1
    refused_again = not _append(writer, count)
    writer.close()
    positions = [each.position for each in _read(disk / "journal") if isinstance(each, Entry)]
    return {
        "refused_again": refused_again,
        "count": count,
        "whole": positions == list(range(count)),
        "end": Directory(disk / "journal").logs()[0].end().messages,
    }


def live(disk: Path) -> dict[str, object]:
    """Go on without waiting: every message is there, or counted and named."""
    writer = _writer(disk)
    for number in range(2_000):
        while not _append(writer, number):
            assert writer.make_room(forced=True)
    writer.close()
    found = _read(disk / "journal")
    gaps = [each for each in found if isinstance(each, Gap)]
    kept = [each.position for each in found if isinstance(each, Entry)]
    return {
        "skipped": sum(gap.messages for gap in gaps),
        "named": all(gap.first is not None and gap.last is not None for gap in gaps),
        "kept": len(kept),
        "last": kept[-1],
    }


def crowded(disk: Path) -> dict[str, object]:
    """Go on where others have filled the disk, with no more than the segment being written."""
    writer = _writer(disk)
    count = 20
    for number in range(count):
        assert _append(writer, number)
    with (disk / "others").open("wb", buffering=0) as others:
        try:
            while True:
                others.write(bytes(4096))
        except OSError:
            pass
    while _append(writer, count):
        count += 1
    made = writer.make_room(forced=True)
    written = _append(writer, count)
    writer.close()
    found = _read(disk / "journal")
    return {"made": made, "written": written, "all": sum(each.messages for each in found) - count}


def _try_again_and_again(disk: Path, watching: int) -> None:
    writer = _writer(disk)
    assert _append(writer, 0)
    while os.getppid() == watching:
        with contextlib.suppress(FileLimitError):
            assert not writer.append(_PROVENANCE, bytes(2 << 20), 1, 1)


def watched(disk: Path) -> dict[str, object]:
    """Look at a segment from which its writer cuts off, each time, what it could not finish."""
    spawn = multiprocessing.get_context("spawn")
    trying = spawn.Process(target=_try_again_and_again, args=(disk, os.getpid()))
    trying.start()
    try:
        directory = Directory(disk / "journal")
        while not any(log.end().messages for log in directory.logs()):
            assert trying.is_alive()
        for _ in range(500):
            for log in Directory(disk / "journal").logs():
                end = log.end().messages
            found = _read(disk / "journal")
    finally:
        trying.kill()
        trying.join()
    return {"end": end, "read": [each.messages for each in found]}


def limited(disk: Path) -> dict[str, object]:
    """Submit what is larger than a file may be: that response ends, and others go on."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    scribe = Scribe(_writer(disk))

    async def submit(flow: Flow, size: int) -> str:
        try:
            await asyncio.wait_for(_written(scribe.submit(flow, b"x" * size + b"\n", 1, 0)), 30)
        except FileLimitError:
            return "refused"
        return "written"

    async def go_on() -> list[str]:
        paced = [Flow(_PROVENANCE, WhenFull.PACE) for _ in range(3)]
        return [
            await submit(paced[0], 1_000),
            await submit(paced[1], _LARGEST_FILE),
            await submit(paced[1], 1_000),
            await submit(paced[2], 1_000),
            await submit(Flow(_PROVENANCE, WhenFull.ERROR), _LARGEST_FILE),
            await submit(Flow(_PROVENANCE, WhenFull.DROP), _LARGEST_FILE),
        ]

    fates = asyncio.run(go_on())
    scribe.close()
    return {"fates": fates, "lost": scribe.lost, "read": len(_read(disk / "journal"))}


async def _written(ticket: Ticket) -> None:
    await ticket


def letters(disk: Path) -> dict[str, object]:
    """Bury until the disk refuses, which costs no letter that was buried; then make room."""
    dead = DeadLetters(disk / "dead", "kafka")
    batch = [dead.of_event(CONTEXT, event, "there", "no") for event in events(100)]
    written = 0
    try:
        while True:
            written += dead.add(batch)
    except OSError as error:
        refused = os.strerror(error.errno or 0)
    whole = sum(isinstance(each, DeadLetter) for each in read(dead.path))
    dead.path.unlink()
    return {"refused": refused, "lost": written - whole, "again": dead.add(batch)}


def paced(disk: Path) -> dict[str, object]:
    """Publish much more than the disk holds: the response is paced, and all of it arrives."""
    console = ConsoleConfig(output="stderr")

    async def publish() -> dict[str, int]:
        journal = JournalConfig(dir=disk / "journal")
        outbox = Outbox({"console": console}, journal, PublishConfig(), CollectorRegistry())
        await outbox.start()
        await write(respond(outbox), lines(30_000))
        return (await outbox.stop()).buses[0].account.counts()

    return dict(asyncio.run(publish()))


def main() -> None:
    name, disk = sys.argv[1:]
    if not Path(disk).is_mount():
        resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST_FILE, _LARGEST_FILE))
    print(json.dumps(globals()[name](Path(disk))))


if __name__ == "__main__":
    main()
