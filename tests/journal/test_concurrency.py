"""One process writes while another reads: the reader sees every entry, whole, once."""

import multiprocessing
from pathlib import Path

from tardis_machine.journal import Entry, Reader, Writer
from tardis_machine.journal.directory import Directory

ENTRIES = 5_000


def _data(number: int) -> bytes:
    return b"%d " % number + b"x" * (number * 37 % 9_000) + b"\n"


def _write(path: Path) -> None:
    writer = Writer(path, "p", ["bus"], max_bytes=64 << 20, fsync=None, segment_bytes=1 << 18)
    for number in range(ENTRIES):
        assert writer.append(b"", _data(number), 1, number)
    writer.close()


def test_reading_while_another_process_writes(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_write, args=(tmp_path,))
    process.start()
    directory = Directory(tmp_path)
    while not directory.logs():
        assert process.is_alive()
    log = directory.logs()[0]
    reader = Reader(log, 0, 0, 0)
    number = 0
    while True:
        finished = log.finished()
        found = reader.read()
        if found is None:
            if finished:
                break
            continue
        assert isinstance(found, Entry)
        assert found.data == _data(number)
        number += 1
    process.join()
    assert number == ENTRIES
