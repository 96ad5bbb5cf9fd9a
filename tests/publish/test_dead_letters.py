"""Dead letters: bounded, private, synced once a batch, and never lost by sending them again."""

import base64
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tardis_machine.config import ConfigError
from tardis_machine.publish import dead_letters
from tardis_machine.publish.buses.file import FileConfig
from tardis_machine.publish.config import PublishConfig
from tardis_machine.publish.dead_letters import DeadLetter, DeadLetters, DeadLettersFullError, read
from tardis_machine.publish.resend import Resent, resend
from tests.support.arrivals import from_stream
from tests.support.command import Launch, Run
from tests.support.events import CONTEXT, events
from tests.support.ports import free_ports
from tests.support.servers.nats import NatsServer
from tests.support.waiting import wait_until


def letters(of: DeadLetters, count: int, *, start: int = 0) -> list[DeadLetter]:
    return [of.of_event(CONTEXT, event, "there", "no") for event in events(count, start=start)]


def positions(path: Path) -> list[int]:
    return [letter.position for letter in read(path) if isinstance(letter, DeadLetter)]


def test_a_batch_is_synced_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[tuple[str, int]] = []
    fdatasync = os.fdatasync

    def observed(fd: int) -> None:
        fdatasync(fd)
        synced.append((str(Path(f"/proc/self/fd/{fd}").readlink()), os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fdatasync", observed)
    dead = DeadLetters(tmp_path, "kafka")
    assert dead.add(letters(dead, 50)) == 50
    assert synced == [(str(dead.path), dead.path.stat().st_size)]
    assert positions(dead.path) == list(range(50))


def test_only_the_owner_may_read_them(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path / "dead-letters", "kafka")
    dead.add(letters(dead, 1))
    assert stat.S_IMODE(dead.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(dead.path.parent.stat().st_mode) == 0o700


def test_they_are_bounded_and_say_so(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path, "kafka", 4_000)
    written = dead.add(letters(dead, 100))
    assert 0 < written < 100
    assert dead.path.stat().st_size <= 4_000
    with pytest.raises(DeadLettersFullError, match="--dead-letter-max-bytes") as raised:
        dead.add(letters(dead, 1))
    assert (raised.value.size, raised.value.limit) == (dead.path.stat().st_size, 4_000)
    dead.path.rename(dead.path.with_name("kafka.ndjson.resending"))
    with pytest.raises(DeadLettersFullError):
        dead.add(letters(dead, 1))


def test_what_cannot_be_measured_stops_nobody(tmp_path: Path) -> None:
    """It is told of when a letter is to be written; until then there is none."""
    taken = tmp_path / "taken"
    taken.touch()
    dead = DeadLetters(taken, "kafka", 4_000)
    assert dead.size() == 0
    with pytest.raises(OSError, match="exists"):
        dead.add(letters(dead, 1))


def test_a_letter_larger_than_the_bound_is_kept_alone(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path, "kafka", 10)
    assert dead.add(letters(dead, 2)) == 1
    assert positions(dead.path) == [0]


def test_a_torn_last_line_costs_only_itself(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path, "file")
    dead.add(letters(dead, 2))
    os.truncate(dead.path, dead.path.stat().st_size - 10)
    dead.add(letters(dead, 1, start=7))
    assert positions(dead.path) == [0, 7]
    file = FileConfig(path=tmp_path / "events")
    sent, torn = resend(tmp_path, {"file": file}, PublishConfig())
    assert (sent.delivered, sent.left) == (2, 0)
    assert (torn.unreadable, torn.left) == (1, 1)
    assert not dead.path.exists()
    [line] = (tmp_path / "file.ndjson.unreadable").read_bytes().splitlines()
    assert line.startswith(b'{"bus":"file"')


@pytest.mark.parametrize(
    "damage",
    [
        {"value": "abc"},
        {"value": "not base 64"},
        {"value": base64.b64encode(b"no envelope").decode()},
        {"value": ""},
        {"value": "", "line": "{}\n{}"},
        {"event_id": "0" * 32},
        {"position": -1},
    ],
)
def test_a_letter_that_is_damaged_inside_does_not_hold_the_others(
    tmp_path: Path, damage: dict[str, Any]
) -> None:
    dead = DeadLetters(tmp_path, "file")
    whole = letters(dead, 3)
    dead.add([whole[0], msgspec.structs.replace(whole[1], **damage), whole[2]])
    sent = resend(tmp_path, {"file": FileConfig(path=tmp_path / "events")}, PublishConfig())
    assert [(each.delivered, each.unreadable) for each in sent] == [(2, 0), (0, 1)]
    assert not list(tmp_path.glob("file.ndjson.resending"))
    assert len((tmp_path / "file.ndjson.unreadable").read_bytes().splitlines()) == 1


def test_a_line_is_what_ends_with_a_line_feed(tmp_path: Path) -> None:
    """JSON may hold what other people take for line ends."""
    dead = DeadLetters(tmp_path, "file")
    [letter] = letters(dead, 1)
    dead.add([msgspec.structs.replace(letter, value="", line='{"type":"\u2028\x85"}')])
    [sent] = resend(tmp_path, {"file": FileConfig(path=tmp_path / "events")}, PublishConfig())
    assert (sent.refused, sent.unreadable) == (1, 0)


def test_letters_of_another_bus_are_left_as_they_are(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path, "kafka")
    dead.add(letters(dead, 3))
    with pytest.raises(ConfigError, match="is for kafka"):
        list(resend(tmp_path, {"file": FileConfig(path=tmp_path / "events")}, PublishConfig()))
    [kept] = tmp_path.glob("kafka.ndjson*")
    assert positions(kept) == [0, 1, 2]


def test_of_a_file_for_several_buses_nothing_is_sent_until_all_are_there(tmp_path: Path) -> None:
    """Its first letters would be sent at each attempt anew."""
    events_path = tmp_path / "events"
    dead = DeadLetters(tmp_path, "file")
    dead.add(letters(dead, 2))
    of_other = [msgspec.structs.replace(each, bus="kafka") for each in letters(dead, 2, start=2)]
    dead.add([*of_other, *letters(dead, 1, start=4)])
    with pytest.raises(ConfigError, match="is for kafka"):
        list(resend(tmp_path, {"file": FileConfig(path=events_path)}, PublishConfig()))
    assert not events_path.exists()
    [kept] = tmp_path.glob("file.ndjson*")
    assert positions(kept) == [0, 1, 2, 3, 4]


def test_two_runs_do_not_send_the_same_letters(tmp_path: Path) -> None:
    dead = DeadLetters(tmp_path, "file")
    dead.add(letters(dead, 3))
    buses = {"file": FileConfig(path=tmp_path / "events")}
    first = resend(tmp_path, buses, PublishConfig())
    assert next(first).delivered == 3
    with pytest.raises(ConfigError, match="another process"):
        list(resend(tmp_path, buses, PublishConfig()))
    assert list(first) == []


@pytest.mark.parametrize("step", ["open_private", "write_all"])
def test_a_letter_that_is_written_while_others_are_sent_again_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Its file is taken away when it has been opened, or when it is locked to be written to."""
    dead = DeadLetters(tmp_path, "file")
    dead.add(letters(dead, 3))
    buses = {"file": FileConfig(path=tmp_path / "events")}
    sent: list[Resent] = []
    run = threading.Thread(target=lambda: sent.extend(resend(tmp_path, buses, PublishConfig())))
    take = getattr(dead_letters, step)

    def take_after_the_run_has_begun(*arguments: Any) -> Any:
        opened = take(*arguments) if step == "open_private" else None
        if run.ident is None:
            run.start()
            wait_until(lambda: not dead.path.exists(), "the letters are not in work")
            run.join(0.5 if step == "write_all" else None)  # it waits for whoever writes
            assert run.is_alive() is (step == "write_all")
        return opened if step == "open_private" else take(*arguments)

    monkeypatch.setattr(dead_letters, step, take_after_the_run_has_begun)
    assert dead.add(letters(dead, 2, start=3)) == 2
    run.join()
    left = positions(dead.path) if dead.path.exists() else []
    assert sum(each.delivered for each in sent) + len(left) == 5
    assert left == ([3, 4] if step == "open_private" else [])


def test_a_killed_run_loses_no_letter(
    tmp_path: Path, launch: Launch, run: Run, start_nats: Callable[..., NatsServer]
) -> None:
    """What it had in work is finished by the next run, beside what has been written since."""
    dead = DeadLetters(tmp_path, "nats")
    dead.add(letters(dead, 5))
    work = tmp_path / "nats.ndjson.resending"

    def flags(server: Any) -> tuple[str, ...]:
        command = ("publish", "--dead-letters", str(tmp_path), "--nats-servers", str(server))
        return (*command, "--nats-subject", "dead", "--nats-stream", "dead", "--nats-create")

    [nobody] = free_ports(1)
    killed = launch(*flags(f"nats://127.0.0.1:{nobody}"))
    wait_until(work.exists, "the letters are not in work")
    killed.stop(signal.SIGKILL)
    assert positions(work) == list(range(5))
    dead.add(letters(dead, 5, start=5))
    server = start_nats()
    done = run(*flags(server.url))
    assert done.returncode == 0, done.stderr
    assert not work.exists()
    assert not dead.path.exists()
    arrived = {arrival.headers["event-id"] for arrival in from_stream(server.url, "dead")}
    assert arrived == {event.event_id for event in events(10)}


@pytest.mark.parametrize(
    ("flag", "lock"), [("--dead-letters", ".resend.lock"), ("--journal-dir", "publisher.lock")]
)
def test_what_cannot_be_opened_is_refused_by_its_flag(
    tmp_path: Path, run: Run, flag: str, lock: str
) -> None:
    """As on a file system that is read-only, or in a directory of somebody else."""
    (tmp_path / lock).mkdir()
    (tmp_path / "file.ndjson").touch()
    done = run("publish", "--file-path", str(tmp_path / "events"), flag, str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.startswith(f"tardis-machine publish: {flag} '{tmp_path}': cannot be read")
    assert "Is a directory" in done.stderr
