"""The journal against a model in memory: nothing is lost, doubled or reordered.

Several servers write, buses come and go with the configuration, every process may die at any
write, and logs of another version lie about.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from tardis_machine.journal import (
    BoundError,
    Directory,
    Entry,
    Gap,
    Log,
    OtherVersionError,
    Provenance,
    Reader,
    Writer,
)
from tardis_machine.journal import entry as entries
from tardis_machine.journal import segment as segments

BUSES = ("kafka", "nats", "redis")
MAX_BYTES = 32 * 1024
STALL_S = 60.0
SERVERS = 3


def _memory() -> str | None:
    """Give a directory in memory, where syncing takes no time, if there is one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


class CrashError(BaseException):
    """The process dies here."""


@contextmanager
def dying(after: int, part: float) -> Iterator[None]:
    """Let a process die at one of its next writes to the disk, with that write done in part."""
    left = after

    def write(fd: int, data: bytes) -> int:
        nonlocal left
        left -= 1
        if left >= 0:
            return os_write(fd, data)
        if left == -1:
            os_write(fd, bytes(data)[: int(len(data) * part)])
        raise CrashError

    def writev(fd: int, parts: Sequence[bytes]) -> int:
        return write(fd, b"".join(parts))

    def at_once(call: Callable[..., Any]) -> Callable[..., Any]:
        def called(*args: Any, **options: Any) -> Any:
            nonlocal left
            left -= 1
            if left < 0:
                raise CrashError
            return call(*args, **options)

        return called

    os_write = os.write
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "write", write)
        patched.setattr(os, "writev", writev)
        for name in ("pwrite", "fsync", "rename", "replace", "unlink", "mkdir", "rmdir"):
            patched.setattr(os, name, at_once(getattr(os, name)))
        yield


@dataclass
class ModelEntry:
    """An entry as the model remembers it."""

    data: bytes
    messages: int
    position: int
    request: str
    segment: int
    end: int
    skippable: bool = False


@dataclass
class ModelLog:
    """A log as a list, and the buses it is for."""

    name: str
    buses: tuple[str, ...]
    entries: list[ModelEntry] = field(default_factory=list)

    @property
    def messages(self) -> int:
        return sum(e.messages for e in self.entries)


@dataclass
class Server:
    """A process that writes."""

    writer: Writer
    log: ModelLog
    positions: dict[str, int] = field(default_factory=dict)


@dataclass
class Bus:
    """How far a bus has read each log, and what it has not acknowledged."""

    readers: dict[str, Reader] = field(default_factory=dict)
    unacknowledged: dict[str, list[Entry | Gap]] = field(default_factory=dict)


class JournalMachine(RuleBasedStateMachine):
    """Random lives of a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="journal-", dir=_memory()))
        self.now = 0.0
        self.configured: tuple[str, ...] = BUSES
        self.logs: dict[str, ModelLog] = {}
        self.servers: list[Server] = []
        self.ahead: set[tuple[str, str]] = set()
        self.foreign: dict[str, bytes] = {}
        self.serial = 0
        self.directory = Directory(self.path)
        self.buses = {bus: Bus() for bus in BUSES}

    def teardown(self) -> None:
        for server in self.servers:
            server.writer.close()
        for bus in BUSES:
            self._drain(bus)
            self.check_accounts(bus)
        self.check_foreign()
        shutil.rmtree(self.path)

    @initialize()
    def start(self) -> None:
        self.start_server()

    # Servers.

    @precondition(lambda self: len(self.servers) < SERVERS)
    @rule()
    def start_server(self) -> None:
        self._start()

    def _start(self, *, adopt: bool = False) -> None:
        writer = Writer(
            self.path,
            "producer",
            self.configured,
            destinations={bus: f"{bus} there" for bus in self.configured},
            adopt=adopt,
            max_bytes=MAX_BYTES,
            stall_s=STALL_S,
            fsync=None,
            clock=lambda: self.now,
        )
        log = ModelLog(writer.path.name, self.configured)
        assert all(log.name > other for other in self.logs)
        self.logs[log.name] = log
        self.servers.append(Server(writer, log))

    @precondition(lambda self: self.servers)
    @rule(
        which=st.integers(0, SERVERS - 1),
        messages=st.integers(1, 5),
        width=st.integers(0, 700),
        request=st.sampled_from(["a", "b"]),
    )
    def append(self, which: int, messages: int, width: int, request: str) -> None:
        self._append(self._server(which), messages, width, request)

    def _append(self, server: Server, messages: int, width: int, request: str) -> bool:
        self.now += 1.0
        data = self._lines(messages, width)
        position = server.positions.get(request, 0)
        if not server.writer.append(self._provenance(request), data, messages, position):
            # Each living server may take a grain that it has not asked for yet.
            grains = (len(self.servers) + 1) * MAX_BYTES // 256
            assert self._bytes() + len(data) + 200 + grains > MAX_BYTES
            return False
        self._remember(server, data, messages, position, request)
        return True

    def _lines(self, messages: int, width: int) -> bytes:
        lines = []
        for _ in range(messages):
            self.serial += 1
            lines.append(b"%d %s\n" % (self.serial, b"x" * width))
        return b"".join(lines)

    @staticmethod
    def _provenance(request: str) -> bytes:
        return entries.encode_provenance(Provenance("producer", request))

    @staticmethod
    def _remember(server: Server, data: bytes, messages: int, position: int, request: str) -> None:
        server.positions[request] = position + messages
        path = max(server.writer.path.glob("*.seg"))
        server.log.entries.append(
            ModelEntry(data, messages, position, request, int(path.stem), path.stat().st_size)
        )

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, SERVERS - 1))
    def fill_up(self, which: int) -> None:
        for _ in range(100):
            if not self._append(self._server(which), 3, 500, "a"):
                return
        raise AssertionError("the journal never filled up")

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, SERVERS - 1))
    def stop_server(self, which: int) -> None:
        server = self._server(which)
        server.writer.close()
        self.servers.remove(server)

    def _server(self, which: int) -> Server:
        return self.servers[which % len(self.servers)]

    # Buses.

    @rule(bus=st.sampled_from(BUSES), pieces=st.integers(1, 20))
    def read(self, bus: str, pieces: int) -> None:
        state = self.buses[bus]
        for log in self._owed(bus):
            reader = self._reader(bus, log)
            for _ in range(pieces):
                found = reader.read()
                if found is None:
                    break
                state.unacknowledged[log.name].append(found)

    def _owed(self, bus: str) -> list[Log]:
        return [
            log
            for log in self.directory.logs()
            if log.name not in self.foreign and bus in log.buses()
        ]

    def _reader(self, bus: str, log: Log) -> Reader:
        state = self.buses[bus]
        if log.name not in state.readers:
            cursor = log.cursor_state(bus)
            state.readers[log.name] = Reader(log, cursor.segment, cursor.offset, cursor.seen)
            state.unacknowledged[log.name] = []
        return state.readers[log.name]

    @rule(bus=st.sampled_from(BUSES), pieces=st.integers(1, 20))
    def acknowledge(self, bus: str, pieces: int) -> None:
        """Move the cursor over some entries."""
        for log in self._owed(bus):
            waiting = self.buses[bus].unacknowledged.get(log.name, [])
            cursor = log.cursor(bus)
            state = cursor.state
            for found in waiting[:pieces]:
                if isinstance(found, Gap):
                    self._check_gap(log.name, state.seen, found)
                    state.seen += found.messages
                    state.dropped += found.messages
                    state.segment, state.offset = found.segment, found.offset
                    continue
                self._check_entry(log.name, state.seen, found)
                state.seen += found.messages
                state.delivered += found.messages
                state.segment, state.offset = found.segment, found.end
            del waiting[:pieces]
            try:
                cursor.save()
            finally:
                cursor.close()
            log.collect(min(log.cursor_state(b).segment for b in log.buses()))

    def _check_entry(self, name: str, seen: int, found: Entry) -> None:
        expected = self._entry_at(name, seen)
        assert expected is not None
        assert found.data == expected.data
        assert found.messages == expected.messages
        assert found.position == expected.position
        assert entries.decode_provenance(found.provenance).request_id == expected.request

    def _check_gap(self, name: str, seen: int, gap: Gap) -> None:
        """What is missing was skipped on purpose, and the gap names its first and last message."""
        at = seen
        first = self._entry_at(name, at)
        last = first
        while at < seen + gap.messages:
            last = self._entry_at(name, at)
            assert last is not None
            assert last.skippable
            at = self._start_of(name, last) + last.messages
        assert at == seen + gap.messages
        assert gap.reason == "skipped"
        assert first is not None
        assert last is not None
        assert gap.first is not None
        assert gap.last is not None
        assert gap.first.position == first.position + seen - self._start_of(name, first)
        assert gap.last.position == last.position + last.messages - 1
        assert entries.decode_provenance(gap.first.provenance).request_id == first.request
        assert entries.decode_provenance(gap.last.provenance).request_id == last.request

    def _start_of(self, name: str, wanted: ModelEntry) -> int:
        total = 0
        for entry in self.logs[name].entries:
            if entry is wanted:
                return total
            total += entry.messages
        raise AssertionError("unknown entry")

    def _entry_at(self, name: str, seen: int) -> ModelEntry | None:
        total = 0
        for entry in self.logs[name].entries:
            if total + entry.messages > seen:
                return entry
            total += entry.messages
        return None

    # The configuration changes.

    @rule(buses=st.sets(st.sampled_from(BUSES), min_size=1).map(lambda b: tuple(sorted(b))))
    def reconfigure(self, buses: tuple[str, ...]) -> None:
        """Refused while a server lives or a bus that goes has anything left; then taken over."""
        former, self.configured = self.configured, buses
        if self.servers and set(buses) != set(former):
            with pytest.raises(BoundError) as raised:
                self._start()
            assert raised.value.pid == os.getpid()
            self.configured = former
            return
        left = {
            bus: self._left(log, bus)
            for log in self.directory.logs()
            if log.name not in self.foreign
            for bus in log.buses()
            if bus not in buses and self._left(log, bus)
        }
        if len(self.servers) >= SERVERS:
            return
        if not left:
            self._start()
            return
        with pytest.raises(BoundError) as refused:
            self._start()
        assert refused.value.pending.keys() == left.keys()
        self._start(adopt=True)
        self.directory = Directory(self.path)
        for log in self.directory.logs():
            if log.name not in self.foreign:
                self.logs[log.name].buses = tuple(log.buses())
        self.buses = {bus: Bus() for bus in BUSES}

    def _left(self, log: Log, bus: str) -> int:
        if (bus, log.name) in self.ahead:
            return 0
        return self.logs[log.name].messages - log.cursor_state(bus).seen

    # Death.

    @rule(bus=st.sampled_from(BUSES))
    def restart_publisher(self, bus: str) -> None:
        """What was read but not acknowledged is read again."""
        self.buses[bus] = Bus()

    @rule(bus=st.sampled_from(BUSES), data=st.data())
    def tear_cursor(self, bus: str, data: st.DataObject) -> None:
        """A cursor write torn by power loss costs at most that write."""
        logs = self._owed(bus)
        if not logs:
            return
        log = data.draw(st.sampled_from(logs))
        path = log.cursor_path(bus)
        cursor = log.cursor(bus)
        before = cursor.state.place
        cursor.save()
        cursor.close()
        content = bytearray(path.read_bytes())
        start = 512 * (cursor.state.generation % 2)
        content[data.draw(st.integers(start, min(start + 20, len(content) - 1)))] ^= 0xFF
        path.write_bytes(content)
        assert log.cursor_state(bus).place == before or cursor.state.generation == 1

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, SERVERS - 1), data=st.data())
    def lose_power(self, which: int, data: st.DataObject) -> None:
        """The last segment of a server is lost from any byte on; all processes die with it."""
        server = self._server(which)
        log, path = server.log, server.writer.path
        for each in list(self.servers):
            self._kill(each)
        last = max(path.glob("*.seg"))
        size = data.draw(st.integers(0, last.stat().st_size))
        if data.draw(st.booleans()):
            os.truncate(last, size)
        else:
            content = last.read_bytes()
            last.write_bytes(content[:size] + bytes(len(content) - size))
        kept = [e for e in log.entries if e.segment != int(last.stem) or e.end <= size]
        assert kept == log.entries[: len(kept)]
        log.entries = kept
        self.buses = {bus: Bus() for bus in BUSES}
        found = next(each for each in self.directory.logs() if each.name == log.name)
        for bus in found.buses():  # its cursor may point beyond what is left
            if found.cursor_state(bus).seen > log.messages:
                self.ahead.add((bus, log.name))

    @precondition(lambda self: self.servers)
    @rule(
        which=st.integers(0, SERVERS - 1),
        after=st.integers(0, 6),
        part=st.floats(0, 1),
        width=st.integers(0, 2_000),
    )
    def die_appending(self, which: int, after: int, part: float, width: int) -> None:
        """A server dies at any of its writes: what is torn is nobody's, what is whole counts."""
        server = self._server(which)
        data = self._lines(1, width)
        position = server.positions.get("a", 0)
        before = self._size_of(server.writer.path)
        written = False
        with suppress(CrashError), dying(after, part):
            written = server.writer.append(self._provenance("a"), data, 1, position)
        whole = self._size_of(server.writer.path) - before >= len(data) + len(b"producer")
        if written or (whole and part == 1.0):
            self._remember(server, data, 1, position, "a")
        self._kill(server)

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, SERVERS - 1), after=st.integers(0, 8), part=st.floats(0, 1))
    def die_making_room(self, which: int, after: int, part: float) -> None:
        server = self._server(which)
        before = self._segments()
        with suppress(CrashError), dying(after, part):
            server.writer.make_room(forced=True)
        self._kill(server)
        self._forget(before - self._segments())
        for tombstone in self.path.glob("*/*.skip"):
            self._forget({(tombstone.parent.name, int(tombstone.stem))})

    @rule(after=st.integers(0, 8), part=st.floats(0, 1))
    def die_starting(self, after: int, part: float) -> None:
        """A server that dies while it makes its log leaves nothing, or a log without messages."""
        known = {log.name for log in self.directory.logs()}
        servers = len(self.servers)
        with suppress(CrashError), dying(after, part):
            self._start()
        if len(self.servers) > servers:
            self._kill(self.servers[-1])
        for log in self.directory.logs():
            if log.name not in known and log.name not in self.logs:
                self.logs[log.name] = ModelLog(log.name, tuple(log.buses(self.configured)))

    @rule(
        bus=st.sampled_from(BUSES),
        pieces=st.integers(1, 20),
        after=st.integers(0, 8),
        part=st.floats(0, 1),
    )
    def die_publishing(self, bus: str, pieces: int, after: int, part: float) -> None:
        self.read(bus, pieces)
        with suppress(CrashError), dying(after, part):
            self.acknowledge(bus, pieces)
        self.buses = {bus: Bus() for bus in BUSES}

    def _kill(self, server: Server) -> None:
        writer = server.writer
        for fd in (writer._fd, writer._lock):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        writer._fd = -1
        self.servers.remove(server)

    # Room.

    @precondition(lambda self: self.servers)
    @rule(which=st.integers(0, SERVERS - 1))
    def live_makes_room(self, which: int) -> None:
        self._make_room(self._server(which), forced=True)

    @precondition(lambda self: self.servers)
    @rule(
        which=st.integers(0, SERVERS - 1),
        stalled=st.sets(st.sampled_from(BUSES)),
    )
    def wait_for_space(self, which: int, stalled: set[str]) -> None:
        """A minute passes with the journal full; some buses move, the stalled ones do not."""
        server = self._server(which)
        self.fill_up(which)
        server.writer.space.find_stalled()
        self.now += STALL_S
        moving = [bus for bus in self.configured if bus not in stalled]
        for bus in moving:
            self.read(bus, 1)
            self.acknowledge(bus, 1)
        for name, number in self._make_room(server, forced=False):
            there = [e for e in self.logs[name].entries if e.segment <= number]
            log = next(log for log in self.directory.logs() if log.name == name)
            for bus in set(moving) & set(log.buses()):
                assert log.cursor_state(bus).seen >= sum(e.messages for e in there)

    def _make_room(self, server: Server, *, forced: bool) -> set[tuple[str, int]]:
        before = self._segments()
        made = server.writer.make_room(forced=forced)
        removed = before - self._segments()
        assert len(removed) == (1 if made else 0)
        self._forget(removed)
        return removed

    def _forget(self, removed: set[tuple[str, int]]) -> None:
        for name, number in removed:
            for entry in self.logs[name].entries:
                if entry.segment == number:
                    entry.skippable = True

    # Another version.

    @precondition(lambda self: len(self.foreign) < 2)
    @rule(in_meta=st.booleans(), size=st.integers(0, 2_000))
    def find_another_version(self, in_meta: bool, size: int) -> None:
        """A log that a later version has left: it is neither read nor given up nor cut."""
        number = 900_000_000_000 + len(self.foreign)
        log = self.path / f"log-{number}-00000000"
        log.mkdir()
        (log / "lock").touch()
        meta = b'{"producer_id":"p","buses":["kafka"],"pid":1,"version":%d}' % (2 if in_meta else 1)
        (log / "log.json").write_bytes(meta)
        header = segments.segment_header(0, 0)
        magic = header if in_meta else header.replace(b"TMJRNL01", b"TMJRNL02")
        content = magic + os.urandom(size)
        segments.segment_path(log, 0).write_bytes(content)
        self.foreign[log.name] = content

    @invariant()
    def check_foreign(self) -> None:
        for name, content in self.foreign.items():
            assert segments.segment_path(self.path / name, 0).read_bytes() == content
            with pytest.raises(OtherVersionError):
                Log(self.path / name).check_version()

    # What always holds.

    def _segments(self) -> set[tuple[str, int]]:
        return {
            (path.parent.name, int(path.stem))
            for path in self.path.glob("*/*.seg")
            if path.parent.name not in self.foreign
        }

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.glob("*/*.seg"))

    @staticmethod
    def _size_of(log: Path) -> int:
        return sum(path.stat().st_size for path in log.glob("*.seg"))

    @invariant()
    def bounded(self) -> None:
        strange = sum(map(len, self.foreign.values()))
        headers = segments.HEADER_BYTES * len(self._segments())
        assert self._bytes() - strange <= MAX_BYTES + headers

    def _drain(self, bus: str) -> None:
        for _ in range(10_000):
            self.read(bus, 50)
            if not any(self.buses[bus].unacknowledged.values()):
                return
            self.acknowledge(bus, 50)
        raise AssertionError("draining does not end")

    def check_accounts(self, bus: str) -> None:
        for log in self._owed(bus):
            state = log.cursor_state(bus)
            assert log.end().messages <= state.seen
            assert state.seen == state.delivered + state.dropped
            if (bus, log.name) not in self.ahead:
                assert state.seen == self.logs[log.name].messages


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(
    max_examples=100, stateful_step_count=40, deadline=None, report_multiple_bugs=False
)
