"""The journal against a model in memory: nothing is lost, doubled or reordered."""

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tardis_machine.journal import Directory, Entry, Gap, Provenance, Reader, Writer
from tardis_machine.journal import entry as entries
from tardis_machine.journal import segment as segments

BUSES = ("kafka", "nats")
MAX_BYTES = 16 * 1024
STALL_S = 60.0


@dataclass
class ModelEntry:
    """An entry as the model remembers it."""

    data: bytes
    messages: int
    position: int
    request: str
    segment: int
    end: int
    skipped: bool = False


@dataclass
class ModelLog:
    """A log as a list."""

    name: str
    entries: list[ModelEntry] = field(default_factory=list)
    alive: bool = True

    @property
    def messages(self) -> int:
        return sum(e.messages for e in self.entries)


@dataclass
class Bus:
    """What a bus got, by log: indexes of messages delivered and dropped, in order."""

    readers: dict[str, Reader] = field(default_factory=dict)
    unacknowledged: dict[str, list[Entry | Gap]] = field(default_factory=dict)


class JournalMachine(RuleBasedStateMachine):
    """Random lives of a journal."""

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="journal-"))
        self.now = 0.0
        self.logs: dict[str, ModelLog] = {}
        self.ahead: set[tuple[str, str]] = set()
        self.serial = 0
        self.directory = Directory(self.path)
        self.buses = {bus: Bus() for bus in BUSES}
        self.writer: Writer | None = None

    def teardown(self) -> None:
        if self.writer is not None:
            self.writer.close()
            self.writer = None
        for log in self.logs.values():
            log.alive = False
        for bus in BUSES:
            self._drain(bus)
            self.check_accounts(bus)
        shutil.rmtree(self.path)

    @initialize()
    def start(self) -> None:
        self._start_writer()

    def _start_writer(self) -> None:
        self.writer = Writer(
            self.path,
            "producer",
            BUSES,
            max_bytes=MAX_BYTES,
            stall_s=STALL_S,
            fsync=None,
            clock=lambda: self.now,
        )
        self.logs[self.writer.path.name] = ModelLog(self.writer.path.name)
        self.positions: dict[str, int] = {}

    @property
    def current(self) -> ModelLog:
        assert self.writer is not None
        return self.logs[self.writer.path.name]

    @rule(
        messages=st.integers(1, 5),
        width=st.integers(0, 700),
        request=st.sampled_from(["a", "b"]),
    )
    def append(self, messages: int, width: int, request: str) -> None:
        assert self.writer is not None
        self.now += 1.0
        lines = []
        for _ in range(messages):
            self.serial += 1
            lines.append(b"%d %s\n" % (self.serial, b"x" * width))
        data = b"".join(lines)
        position = self.positions.get(request, 0)
        provenance = entries.encode_provenance(Provenance("producer", request))
        if not self.writer.append(provenance, data, messages, position):
            assert self._bytes() + len(data) + 200 > MAX_BYTES * 15 // 16
            return
        self.positions[request] = position + messages
        path = max(self.writer.path.glob("*.seg"))
        self.current.entries.append(
            ModelEntry(data, messages, position, request, int(path.stem), path.stat().st_size)
        )

    @rule()
    def fill_up(self) -> None:
        for _ in range(64):
            before = len(self.current.entries)
            self.append(messages=3, width=500, request="a")
            if len(self.current.entries) == before:
                return
        raise AssertionError("the journal never filled up")

    @rule(bus=st.sampled_from(BUSES), pieces=st.integers(1, 20))
    def read(self, bus: str, pieces: int) -> None:
        state = self.buses[bus]
        for log in self.directory.logs():
            reader = self._reader(bus, log.name)
            for _ in range(pieces):
                found = reader.read()
                if found is None:
                    break
                state.unacknowledged[log.name].append(found)

    def _reader(self, bus: str, name: str) -> Reader:
        state = self.buses[bus]
        if name not in state.readers:
            log = next(log for log in self.directory.logs() if log.name == name)
            cursor = log.cursor_state(bus)
            state.readers[name] = Reader(log, cursor.segment, cursor.offset, cursor.seen)
            state.unacknowledged[name] = []
        return state.readers[name]

    @rule(bus=st.sampled_from(BUSES), pieces=st.integers(1, 20))
    def acknowledge(self, bus: str, pieces: int) -> None:
        """Move the cursor over some entries."""
        for log in self.directory.logs():
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
            cursor.save()
            cursor.close()
            log.collect(min(log.cursor_state(b).segment for b in BUSES))

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
        start = seen
        while at < seen + gap.messages:
            last = self._entry_at(name, at)
            assert last is not None
            assert last.skipped
            start = self._start_of(name, last)
            at = start + last.messages
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

    @rule(bus=st.sampled_from(BUSES))
    def restart_publisher(self, bus: str) -> None:
        """What was read but not acknowledged is read again."""
        self.buses[bus] = Bus()

    @rule(bus=st.sampled_from(BUSES), data=st.data())
    def tear_cursor(self, bus: str, data: st.DataObject) -> None:
        """A cursor write torn by power loss costs at most that write."""
        log = data.draw(st.sampled_from(self.directory.logs()))
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

    @rule(data=st.data())
    def crash_server(self, data: st.DataObject) -> None:
        """Power loss at any byte of the last segment; then another server with a new log."""
        assert self.writer is not None
        log, path = self.current, self.writer.path
        os.close(self.writer._fd)
        os.close(self.writer._lock)
        self.writer._fd = -1
        last = max(path.glob("*.seg"))
        size = data.draw(st.integers(0, last.stat().st_size))
        if data.draw(st.booleans()):
            os.truncate(last, size)
        else:
            content = last.read_bytes()
            last.write_bytes(content[:size] + bytes(len(content) - size))
        kept = [e for e in log.entries if e.segment != int(last.stem) or e.end <= size]
        lost = log.entries[len(kept) :]
        assert kept == log.entries[: len(kept)]
        log.entries = kept
        log.alive = False
        if lost:
            # The publisher lost power with it; its cursor may point beyond what is left.
            self.buses = {bus: Bus() for bus in BUSES}
            found = next(entry for entry in self.directory.logs() if entry.name == log.name)
            for bus in BUSES:
                if found.cursor_state(bus).seen > log.messages:
                    self.ahead.add((bus, log.name))
        self._start_writer()

    @rule()
    def live_makes_room(self) -> None:
        self._make_room(forced=True)

    @rule(stalled=st.sampled_from([(), ("kafka",), ("nats",), BUSES]))
    def wait_for_space(self, stalled: tuple[str, ...]) -> None:
        """A minute passes with the journal full; some buses move, the stalled ones do not."""
        assert self.writer is not None
        self.fill_up()
        self.writer.space.stalled()
        self.now += STALL_S
        moving = [bus for bus in BUSES if bus not in stalled]
        for bus in moving:
            self.read(bus, 1)
            self.acknowledge(bus, 1)
        for name, number in self._make_room(forced=False):
            log = next(log for log in self.directory.logs() if log.name == name)
            assert all(log.cursor_state(bus).segment > number for bus in moving)
            assert any(log.cursor_state(bus).segment <= number for bus in stalled)

    def _make_room(self, *, forced: bool) -> set[tuple[str, int]]:
        assert self.writer is not None
        before = self._segments()
        made = self.writer.make_room(forced=forced)
        removed = before - self._segments()
        assert len(removed) == (1 if made else 0)
        for name, number in removed:
            for entry in self.logs[name].entries:
                if entry.segment == number:
                    entry.skipped = True
        return removed

    def _segments(self) -> set[tuple[str, int]]:
        return {(path.parent.name, int(path.stem)) for path in self.path.glob("*/*.seg")}

    def _bytes(self) -> int:
        return sum(path.stat().st_size for path in self.path.glob("*/*.seg"))

    @invariant()
    def bounded(self) -> None:
        assert self._bytes() <= MAX_BYTES + segments.HEADER_BYTES * len(self._segments())

    def _drain(self, bus: str) -> None:
        for _ in range(10_000):
            self.read(bus, 50)
            if not any(self.buses[bus].unacknowledged.values()):
                return
            self.acknowledge(bus, 50)
        raise AssertionError("draining does not end")

    def check_accounts(self, bus: str) -> None:
        for log in self.directory.logs():
            state = log.cursor_state(bus)
            assert log.end().messages <= state.seen
            assert state.seen == state.delivered + state.dropped
            if (bus, log.name) not in self.ahead:
                assert state.seen == self.logs[log.name].messages


TestJournal = JournalMachine.TestCase
TestJournal.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
