"""What the server holds: flows, a full journal, stalled buses, hand-over, dead letters, metrics."""

import asyncio
import base64
import errno
import fcntl
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from tardis_machine.bronze.decoder import decode
from tardis_machine.config import ConfigError, to_dict
from tardis_machine.journal import Directory, Flow, JournalFullError, WhenFull
from tardis_machine.journal.ring import Mover
from tardis_machine.messages import ErrorMessage
from tardis_machine.publish.accounts import Account, BusSnapshot, Snapshot, Statistics
from tardis_machine.publish.buses.console import ConsoleConfig
from tardis_machine.publish.buses.file import FileConfig
from tardis_machine.publish.buses.nats import NatsConfig
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.publish.outbox import Outbox
from tardis_machine.publish.process import Drain, Process, Settings
from tardis_machine.server.metrics import Metrics
from tests.publish.promises import (
    arrived_by_key,
    assert_all_arrived,
    assert_balanced,
    events_of,
    ids_by_key,
    written,
)
from tests.support.brokers import Broker, nats_broker
from tests.support.command import ASCII, Run
from tests.support.events import lines
from tests.support.outbox import Start, respond, write
from tests.support.ports import free_ports as unused_ports
from tests.support.servers.nats import NatsServer
from tests.support.waiting import until

SMALLEST = {"max_bytes": 1 << 20}


@pytest.fixture
def file(tmp_path: Path) -> FileConfig:
    return FileConfig(path=tmp_path / "events.ndjson")


@pytest.fixture
def nats_alone(start_nats: Callable[..., NatsServer], name: str) -> Broker:
    """A NATS server for this test alone, and a window that is small beside the smallest journal."""
    broker = nats_broker(start_nats(), name)
    assert isinstance(broker.config, NatsConfig)
    broker.config = replace(broker.config, max_batch_size=250)
    return broker


def metric(metrics: Metrics, name: str, bus: str) -> float | None:
    return metrics.registry.get_sample_value(f"tardis_machine_publish_{name}", {"bus": bus})


async def test_batches_of_a_response_arrive_with_their_context(
    publish: Start, file: FileConfig
) -> None:
    outbox = await publish({"file": file}, producer_id="desk-1", publish_source="mine")
    ndjson = lines(250)
    await write(respond(outbox), ndjson)
    report = await outbox.stop()
    assert report.pending == 0
    assert written(file) == [event.event_id for event in events_of(ndjson)]
    assert file.path is not None
    positions = []
    for line in file.path.read_bytes().splitlines():
        envelope = decode(base64.b64decode(json.loads(line)["value"])).envelope
        context = envelope.context
        assert (context.producer_id, context.source) == ("desk-1", "mine")
        assert (context.request_id, context.session_id) == ("request-1", "session-1")
        assert (context.transport, context.route) == ("http", "/replay-normalized")
        positions.append(envelope.position)
    assert positions == list(range(250))


async def test_the_console_prints_symbols_that_its_encoding_lacks(
    publish: Start, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """It took them for trouble that passes, and tried for ever."""
    for name, value in ASCII.items():
        monkeypatch.setenv(name, value)
    outbox = await publish({"console": ConsoleConfig(output="stdout")}, drain_timeout_s=20.0)
    await write(respond(outbox), lines(1).replace(b'"S0"', '"币安人生USDT"'.encode()))
    assert (await outbox.stop()).pending == 0
    assert r'"symbol":"\u5e01\u5b89\u4eba\u751fUSDT"' in capfd.readouterr().out


def say(pid: int | None, line: bytes) -> None:
    """Write a line to the pipe through which a publisher reports to its server."""
    process = Path(f"/proc/{pid}")
    reports = process.joinpath("cmdline").read_text().split("\0")[-3]
    with process.joinpath("fd", reports).open("wb") as pipe:
        pipe.write(line)


@pytest.mark.parametrize(
    "line",
    [
        b'{"buses":[]}',
        b"x" * (3 << 20),
        b'{"buses":{"\xff":1}}',
        b'{"other":' + b"[" * 100_000,
        b"",
    ],
    ids=["another version's", "too long", "not UTF-8", "too deep", "empty"],
)
async def test_publisher_is_supervised_after_a_report_that_is_not_understood(
    publish: Start, file: FileConfig, caplog: pytest.LogCaptureFixture, line: bytes
) -> None:
    outbox = await publish({"file": file})
    await until(lambda: outbox._snapshot is not None)
    first = outbox.publisher_pid
    assert first is not None
    await asyncio.to_thread(say, first, line + b"\n")
    await until(lambda: "publisher is not understood" in caplog.text)
    os.kill(first, signal.SIGKILL)
    await until(lambda: outbox.publisher_pid != first and not outbox.unhealthy())
    await write(respond(outbox), lines(50))
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=50, delivered=50)


async def test_supervision_that_fails_is_an_alarm_until_it_is_begun_again(
    publish: Start, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = await publish({"file": file})
    supervisor = outbox._supervisor
    assert supervisor is not None

    def fail(_: Snapshot) -> None:
        raise KeyError("a defect of ours")

    with monkeypatch.context() as broken:
        broken.setattr(supervisor._failure_backoff, "next_pause_s", lambda: 3600.0)
        broken.setattr(supervisor, "_on_snapshot", fail)
        await until(lambda: not supervisor.watching)
    assert outbox.unhealthy() == ["publisher: its supervision failed, and is begun again"]
    supervisor._resume()
    await until(lambda: not outbox.unhealthy())
    await write(respond(outbox), lines(50))
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=50, delivered=50)


async def test_supervision_that_is_cancelled_is_begun_again_and_restarts_publishers(
    publish: Start, file: FileConfig, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    outbox = await publish({"file": file}, metrics=metrics)
    await until(lambda: outbox._snapshot is not None)
    supervisor = outbox._supervisor
    assert supervisor is not None
    assert supervisor._task is not None
    first = outbox.publisher_pid
    supervisor._task.cancel()
    await until(lambda: outbox.publisher_pid != first and not outbox.unhealthy())
    assert "publisher supervision failed" in caplog.text
    name = "tardis_machine_publish_supervision_failures_total"
    assert metrics.registry.get_sample_value(name) == 1
    second = outbox.publisher_pid
    assert second is not None
    os.kill(second, signal.SIGKILL)
    await until(lambda: outbox.publisher_pid != second and not outbox.unhealthy())
    await write(respond(outbox), lines(50))
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=50, delivered=50)


async def test_drain_delivers_though_the_supervision_had_just_failed(
    publish: Start, file: FileConfig
) -> None:
    outbox = await publish({"file": file})
    await until(lambda: outbox._snapshot is not None)
    await write(respond(outbox), lines(50))
    supervisor = outbox._supervisor
    assert supervisor is not None
    assert supervisor._task is not None
    supervisor._task.cancel()
    await until(lambda: supervisor.failures == 1)
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=50, delivered=50)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody is asked to give way")
async def test_no_thread_of_the_publisher_takes_a_processor_by_waking_up(
    publish: Start, file: FileConfig
) -> None:
    """The thread that empties the ring did, a thousand times a second, and it was the server's."""
    outbox = await publish({"file": file})
    await until(lambda: outbox._snapshot is not None)
    await write(respond(outbox), lines(50))
    threads = list(map(int, os.listdir(f"/proc/{outbox.publisher_pid}/task")))  # noqa: PTH208 - no disk
    assert len(threads) > 2
    assert {os.sched_getscheduler(each) for each in threads} == {os.SCHED_BATCH}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert (await outbox.stop()).pending == 0


_DYING_PUBLISHERS = """
import asyncio, os, threading, uvloop
from tardis_machine.publish.process import Settings
from tardis_machine.publish.supervisor import Supervisor

stolen, ends = 0, False

def work():
    global stolen
    while not ends:
        fd = os.open(os.devnull, os.O_RDONLY)
        try:
            os.fstat(fd)
            os.close(fd)
        except OSError:
            stolen += 1

async def listen():
    supervisor = Supervisor(Settings({}, {}, "", ""), lambda snapshot: None)
    for _ in range(2000):
        supervisor._reports, writing = os.pipe()
        os.close(writing)
        await supervisor._listen()

threads = [threading.Thread(target=work) for _ in range(3)]
for thread in threads:
    thread.start()
uvloop.run(listen())
ends = True
for thread in threads:
    thread.join()
print(stolen)
"""


def test_a_publisher_that_dies_closes_no_file_of_another_thread() -> None:
    """uvloop closes a pipe's number twice, and in between it may be given to somebody else."""
    pytest.importorskip("uvloop")
    command = [sys.executable, "-c", _DYING_PUBLISHERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert (done.returncode, done.stdout.strip()) == (0, "0"), done.stderr


async def test_no_module_of_the_current_folder_is_imported(
    publish: Start, file: FileConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "queue.py").write_text('open("imported", "w")')
    outbox = await publish({"file": file}, drain_timeout_s=5.0)
    await write(respond(outbox), lines(50))
    report = await outbox.stop()
    assert not (tmp_path / "imported").exists()
    assert_balanced(report.buses[0].account, journalled=50, delivered=50)


async def test_only_chosen_flows_are_published(publish: Start, file: FileConfig) -> None:
    outbox = await publish({"file": file}, publish_flows=("ws-replay",))
    settings = {
        "request_id": "", "session_id": "", "transport": "", "route": "", "origin": "replay",
    }  # fmt: skip
    assert outbox.response(flow="http-replay", **settings) is None
    assert outbox.response(flow="ws-replay", **settings) is not None


async def test_hidden_control_events_are_published_and_take_no_position(
    publish: Start, file: FileConfig
) -> None:
    outbox = await publish({"file": file})
    journal = respond(outbox)
    hidden = (
        b'{"type":"disconnect","exchange":"bitmex",'
        b'"localTimestamp":"2024-03-01T00:00:00.500000Z"}\n'
    )
    first, second = lines(2).splitlines(keepends=True)
    await journal.append(first, 1)
    await journal.append_hidden(hidden, 1)
    await journal.append(second, 1)
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=3, delivered=3)
    assert file.path is not None
    found = [
        decode(base64.b64decode(json.loads(line)["value"])).envelope
        for line in file.path.read_bytes().splitlines()
    ]
    assert [(each.payload_case, each.position) for each in found] == [
        ("trade", 0),
        ("disconnect", 1),
        ("trade", 1),
    ]


async def test_relative_paths_are_meant_from_where_it_was_made(
    publish: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding program goes to another folder, and its publisher is started again there."""
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path / "here")
    outbox = await publish(
        {"file": FileConfig(path=Path("events.ndjson"))},
        journal={"dir": Path("journal")},
        dead_letter_dir=Path("dead"),
    )
    await write(respond(outbox), lines(100))
    monkeypatch.chdir(tmp_path / "there")
    killed = outbox.publisher_pid
    assert killed is not None
    os.kill(killed, signal.SIGKILL)
    await until(lambda: outbox.publisher_pid != killed)
    journal = respond(outbox)
    await write(journal, lines(100, start=100))
    await journal.append(b"no message\n", 1)
    report = await outbox.stop()
    account = report.buses[0].account
    assert (account.pending, account.dead_lettered) == (0, 1)
    assert len(set(written(FileConfig(path=tmp_path / "here" / "events.ndjson")))) == 200
    assert (tmp_path / "here" / "dead" / "file.ndjson").exists()
    assert not list((tmp_path / "there").iterdir())


async def test_what_the_allow_list_leaves_out_is_filtered(publish: Start, tmp_path: Path) -> None:
    config = FileConfig(path=tmp_path / "trades", include_payloads=("trade",))
    outbox = await publish({"file": config})
    await write(respond(outbox), lines(400))
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=400, filtered=100, delivered=300)


async def test_metrics_tell_the_accounts(publish: Start, file: FileConfig) -> None:
    metrics = Metrics()
    outbox = await publish({"file": file}, metrics=metrics)
    await write(respond(outbox), lines(1_000))
    await until(lambda: metric(metrics, "delivered_total", "file") == 1_000)
    assert metric(metrics, "journalled_total", "file") == 1_000
    assert metric(metrics, "accepted", "file") == 1_000
    for name in ("filtered_total", "pending", "duplicates_total", "retried_total"):
        assert metric(metrics, name, "file") == 0
    for name in ("dead_lettered_total", "dropped_total", "journal_bytes", "bus_stalled"):
        assert metric(metrics, name, "file") == 0
    assert metric(metrics, "bus_healthy", "file") == 1
    assert metric(metrics, "batch_size_sum", "file") == 1_000
    assert metric(metrics, "latency_seconds_count", "file") == 1_000
    assert outbox.unhealthy() == []


async def test_full_journal_paces_and_loses_nothing(publish: Start, nats_alone: Broker) -> None:
    outbox = await publish(nats_alone.buses, journal=SMALLEST)
    nats_alone.server.pause()
    ndjson = lines(12_000)
    assert len(ndjson) > 2 << 20
    load = asyncio.create_task(write(respond(outbox), ndjson))
    await until(lambda: outbox.scribe.waiting > 0)
    assert not load.done()
    nats_alone.server.resume()
    await load
    report = await outbox.stop()
    assert_all_arrived(ndjson, await asyncio.to_thread(nats_alone.arrived))
    assert_balanced(report.buses[0].account, journalled=12_000, delivered=12_000)


async def test_health_names_the_bus_because_of_which_responses_wait(
    publish: Start, nats_alone: Broker, file: FileConfig, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics()
    outbox = await publish({"file": file, **nats_alone.buses}, journal=SMALLEST, metrics=metrics)
    nats_alone.server.pause()
    ndjson = lines(12_000)
    load = asyncio.create_task(write(respond(outbox), ndjson))
    told = "journal: full because of nats, responses that wait: 1"
    await until(lambda: told in outbox.unhealthy())
    room = metrics.registry.get_sample_value("tardis_machine_publish_journal_room_bytes")
    assert room is not None
    assert room < 100_000
    nats_alone.server.resume()
    await load
    await until(lambda: not any(each.startswith("journal") for each in outbox.unhealthy()))
    said = [each for each in caplog.records if "for room in the journal" in each.message]
    assert [(vars(each)["full"], vars(each)["bus"]) for each in said] == [("journal", "nats")] * 2
    report = await outbox.stop()
    assert all(each.account.delivered == 12_000 for each in report.buses)


async def test_error_that_ends_a_response_is_lost_and_counted_when_the_journal_is_full(
    publish: Start, nats_alone: Broker
) -> None:
    """No client waits for it; and it takes no room from messages that are written already."""
    outbox = await publish(nats_alone.buses, journal=SMALLEST)
    nats_alone.server.pause()
    load = asyncio.create_task(write(respond(outbox), lines(12_000)))
    await until(lambda: outbox.scribe.shortage is not None)
    failed = respond(outbox)
    line = lines(4_000)  # surely too large for what is left
    for _ in range(3):
        failed.append_last(line, 4_000)
    await until(lambda: outbox.scribe.lost == 12_000)
    assert outbox.scribe.queued == 1
    nats_alone.server.resume()
    await load
    account = (await outbox.stop()).buses[0].account
    assert_balanced(account, journalled=12_000, delivered=12_000)


async def test_stalled_bus_alone_is_skipped_ahead_and_told(
    publish: Start, nats_alone: Broker, file: FileConfig
) -> None:
    metrics = Metrics()
    outbox = await publish(
        {**nats_alone.buses, "file": file}, journal={**SMALLEST, "stall_s": 3.0}, metrics=metrics
    )
    ndjson = lines(12_000)
    batches = ndjson.splitlines(keepends=True)
    journal = respond(outbox)
    await write(journal, b"".join(batches[:100]))
    await until(lambda: metric(metrics, "pending", "nats") == 0)
    nats_alone.server.pause()
    await write(journal, b"".join(batches[100:]))
    assert "nats: stalled" in outbox.unhealthy() or "nats: unhealthy" in outbox.unhealthy()
    nats_alone.server.resume()
    report = await outbox.stop()
    accounts = {each.bus: each.account for each in report.buses}
    assert_balanced(accounts["file"], journalled=12_000, delivered=12_000)
    assert written(file) == [event.event_id for event in events_of(ndjson)]
    dropped = accounts["nats"].dropped
    assert 0 < dropped < 12_000
    assert_balanced(
        accounts["nats"], journalled=12_000, delivered=12_000 - dropped, dropped=dropped
    )
    arrivals = await asyncio.to_thread(nats_alone.arrived)
    told = [a for a in arrivals if a.headers["payload-case"] == "error"]
    others = [a for a in arrivals if a.headers["payload-case"] != "error"]
    order = arrived_by_key(others)
    for key, ids in ids_by_key(events_of(ndjson)).items():
        kept = set(order[key])
        assert order[key] == [each for each in ids if each in kept]
    positions = {a.envelope.position for a in others}
    missing = sorted(set(range(12_000)) - positions)
    assert len(missing) == dropped
    said = ""
    for arrival in told:
        message = decode(arrival.value).message
        assert isinstance(message, ErrorMessage)
        assert message.exchange == "bitmex"
        said += message.details
    assert f"position {missing[0]} of request request-1" in said
    assert f"to position {missing[-1]} of request request-1" in said


async def test_when_full_error_ends_the_response(publish: Start, nats_alone: Broker) -> None:
    outbox = await publish(
        nats_alone.buses, journal={**SMALLEST, "when_full": "error"}, drain_timeout_s=60.0
    )
    nats_alone.server.pause()
    with pytest.raises(JournalFullError) as raised:
        await write(respond(outbox), lines(12_000))
    assert raised.value.limit == 1 << 20
    nats_alone.server.resume()
    assert (await outbox.stop()).pending == 0


@pytest.mark.parametrize(("flow", "when_full"), [("http-replay", "drop"), ("ws-stream", "pace")])
async def test_live_and_dropping_flows_never_wait(
    publish: Start, nats_alone: Broker, flow: str, when_full: str
) -> None:
    outbox = await publish(
        nats_alone.buses, journal={**SMALLEST, "when_full": when_full}, drain_timeout_s=60.0
    )
    nats_alone.server.pause()
    journal = respond(outbox, flow=flow)
    for start in range(0, 12_000, 100):
        await journal.append(lines(100, start=start), 100)
    nats_alone.server.resume()
    account = (await outbox.stop()).buses[0].account
    assert account.dropped > 0
    assert_balanced(
        account,
        journalled=12_000,
        delivered=12_000 - account.dropped,
        dropped=account.dropped,
    )
    assert outbox.scribe.lost == 0


async def test_a_second_server_takes_over_from_the_first(publish: Start, file: FileConfig) -> None:
    """One publisher per journal directory: it does the work of both, then makes way."""
    first = await publish({"file": file})
    second = await publish({"file": file})
    await write(respond(first), lines(500))
    await write(respond(second), lines(500, start=500))
    await until(lambda: file.path is not None and file.path.exists() and len(written(file)) == 1000)
    assert (await first.stop()).pending == 0
    await write(respond(second), lines(500, start=1_000))
    assert (await second.stop()).pending == 0
    assert sorted(written(file)) == sorted(e.event_id for e in events_of(lines(1_500)))


async def test_what_a_bus_never_accepts_is_kept_and_can_be_sent_again(
    publish: Start,
    start_nats: Callable[..., NatsServer],
    name: str,
    journal_dir: Path,
    run: Run,
) -> None:
    broker = nats_broker(start_nats("max_payload: 2000"), name)
    outbox = await publish(broker.buses)
    levels = [{"price": number, "amount": 1.5} for number in range(1, 300)]
    large = 0
    found = []
    for line in lines(100).splitlines():
        message = json.loads(line)
        if message["type"] == "book_change" and large < 5:
            message["asks"] = levels
            large += 1
        found.append(json.dumps(message).encode() + b"\n")
    ndjson = b"".join(found)
    await write(respond(outbox), ndjson)
    report = await outbox.stop()
    assert_balanced(
        report.buses[0].account, journalled=100, delivered=100 - large, dead_lettered=large
    )
    letters = journal_dir / "dead-letters" / "nats.ndjson"
    reasons = {json.loads(line)["reason"] for line in letters.read_bytes().splitlines()}
    assert len(letters.read_bytes().splitlines()) == large
    assert all("2000" in reason for reason in reasons)

    def resend() -> int:
        return run("publish", "--dead-letters", str(letters.parent), *broker.flags()).returncode

    assert await asyncio.to_thread(resend) == 1
    assert len(letters.read_bytes().splitlines()) == large
    assert isinstance(broker.server, NatsServer)
    broker.server.stop()
    broker.server.configuration.write_text(
        broker.server.configuration.read_text().replace("max_payload: 2000", "")
    )
    broker.server.start()
    assert await asyncio.to_thread(resend) == 0
    assert not letters.exists()
    arrived = {a.headers["event-id"] for a in await asyncio.to_thread(broker.arrived)}
    assert arrived == {event.event_id for event in events_of(ndjson)}


async def test_unencodable_lines_are_dead_letters(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    outbox = await publish({"file": file})
    bad = b'{"type":"trade","exchange":"bitmex"}\n'
    await respond(outbox).append(lines(1) + bad + lines(1, start=1), 3)
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=3, delivered=2, dead_lettered=1)
    [letter] = (journal_dir / "dead-letters" / "file.ndjson").read_bytes().splitlines()
    assert json.loads(letter)["line"] == bad.decode().strip()
    assert json.loads(letter)["position"] == 1


async def test_an_entry_beyond_the_encoder_does_not_stop_the_rest(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    outbox = await publish({"file": file})
    strange = Flow(b"no provenance", WhenFull.PACE)
    await outbox.scribe.submit(strange, lines(2), 2, 0)
    await write(respond(outbox), lines(2, start=2))
    report = await outbox.stop()
    assert_balanced(report.buses[0].account, journalled=4, delivered=2, dead_lettered=2)
    letters = (journal_dir / "dead-letters" / "file.ndjson").read_bytes().splitlines()
    assert [json.loads(letter)["position"] for letter in letters] == [0, 1]


def test_nothing_happens_before_start(journal_dir: Path, file: FileConfig) -> None:
    Outbox({"file": file}, JournalConfig(dir=journal_dir), PublishConfig(), Metrics().registry)
    assert not journal_dir.exists()


async def test_a_directory_belongs_to_one_configuration(
    publish: Start, file: FileConfig, tmp_path: Path, journal_dir: Path
) -> None:
    """Two servers on the default directory: the second would be published to the first's place."""
    first = await publish({"file": file})
    elsewhere = FileConfig(path=tmp_path / "elsewhere.ndjson")
    with pytest.raises(ConfigError, match=r"--journal-dir.*in use by process") as refused:
        await publish({"file": elsewhere})
    assert str(file.path) in str(refused.value)
    await write(respond(first), lines(100))
    assert (await first.stop()).pending == 0
    second = await publish({"file": elsewhere})
    await write(respond(second), lines(100, start=100))
    assert (await second.stop()).pending == 0
    assert written(elsewhere) == [event.event_id for event in events_of(lines(100, start=100))]
    assert written(file) == [event.event_id for event in events_of(lines(100))]
    assert not Directory(journal_dir).logs()


async def test_what_is_left_is_refused_by_name_until_it_is_taken_over(
    publish: Start, file: FileConfig, name: str
) -> None:
    [nobody] = unused_ports(1)
    gone = NatsConfig(
        servers=(f"nats://127.0.0.1:{nobody}",), subject=name, user="u", pass_="hunter2"
    )
    first = await publish({"nats": gone, "file": file}, drain_timeout_s=0.0)
    await write(respond(first), lines(100))
    report = await first.stop()
    assert {each.bus: each.account.pending for each in report.buses}["nats"] == 100
    with pytest.raises(ConfigError, match="100 messages for nats") as refused:
        await publish({"file": file})
    assert f"127.0.0.1:{nobody}" in str(refused.value)
    assert "hunter2" not in str(refused.value)
    assert all("hunter2" not in path.read_text() for path in journal_files(first, "log.json"))
    taken = await publish({"file": file}, journal={"adopt": True})
    await write(respond(taken), lines(100, start=100))
    assert (await taken.stop()).pending == 0
    assert set(written(file)) == {event.event_id for event in events_of(lines(200))}


def journal_files(outbox: Outbox, name: str) -> list[Path]:
    found = list(outbox.scribe.writer.path.parent.glob(f"*/{name}"))
    assert found
    return found


async def test_a_standby_tells_how_the_publisher_at_work_is(publish: Start, name: str) -> None:
    [nobody] = unused_ports(1)
    gone = {"nats": NatsConfig(servers=(f"nats://127.0.0.1:{nobody}",), subject=name)}
    metrics = Metrics()
    impatient = {"retry_max": 1, "retry_max_s": 0.1, "drain_timeout_s": 0.0}
    await publish(gone, **impatient)
    standby = await publish(gone, metrics=metrics, **impatient)
    await write(respond(standby), lines(10))
    await until(lambda: "nats: unhealthy" in standby.unhealthy())
    assert metric(metrics, "bus_healthy", "nats") == 0
    await until(lambda: metric(metrics, "pending", "nats") == 10)


@pytest.mark.parametrize(("log", "left"), [("log-1-gone", 0), ("log-2-there", 5)])
def test_a_standby_whose_own_log_is_delivered_does_not_answer_for_others(
    tmp_path: Path, file: FileConfig, log: str, left: int
) -> None:
    directory = Directory(tmp_path / "journal")
    directory.lock()  # as the publisher at work, which has a log of another server to deliver yet
    (directory.path / "log-2-there").mkdir()
    books = BusSnapshot(Account(journalled=20), Account(journalled=15, delivered=10), Statistics())
    status = Snapshot({"file": books}, time.monotonic())
    directory.write_status(msgspec.json.encode(status))
    settings = Settings({"file": to_dict(file)}, to_dict(PublishConfig()), str(directory.path), log)
    told = [msgspec.json.encode(each) for each in (settings, Drain(0.0))]
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "tardis_machine.publish.process", str(writing)]
    given = b"\n".join(told)
    done = subprocess.run(command, input=given, pass_fds=(writing,), timeout=120, check=False)
    os.close(writing)
    with open(reading, "rb") as reports:  # noqa: PTH123 - a pipe
        last = msgspec.json.decode(reports.readlines()[-1], type=Snapshot)
    directory.unlock()
    assert last.final
    assert last.left == left
    assert last.buses["file"].ended.delivered == 10
    assert done.returncode == bool(left)


def test_a_server_that_stands_still_does_not_hold_its_publisher(
    journal_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may publish for others, and its pipe holds some seconds of reports."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    process = Process(Settings({}, {}, str(journal_dir), "log-000000000001-00000000"), writing)
    reported = Snapshot({}, 0.0)
    for at in range(1_000):
        reported.at = float(at)
        process._write(reported)
    with os.fdopen(reading, "rb") as pipe:
        said = [msgspec.json.decode(pipe.readline(), type=Snapshot).at]
        for at in (1_000.0, 1_001.0):
            process._write(Snapshot({}, at, final=at > 1_000))
        os.close(writing)
        said += [msgspec.json.decode(line, type=Snapshot).at for line in pipe]
    assert said == sorted(said)
    assert len(said) < 500
    assert said[-1] == 1_001


async def test_a_publisher_that_cannot_start_is_unhealthy(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    metrics = Metrics()
    (journal_dir / "publisher.lock").mkdir(parents=True)
    outbox = await publish({"file": file}, metrics=metrics, drain_timeout_s=0.0)
    await until(lambda: metric(metrics, "bus_healthy", "file") == 0)
    for _ in range(50):  # dead, started again, dead again: never healthy in between
        assert any(each.startswith("publisher: ") for each in outbox.unhealthy())
        await asyncio.sleep(0.02)
    (journal_dir / "publisher.lock").rmdir()
    await until(lambda: metric(metrics, "bus_healthy", "file") == 1)
    assert outbox.unhealthy() == []


async def test_what_is_kept_aside_is_told_and_has_a_bound(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    kept = journal_dir / "aside" / "something"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(1000))
    outbox = await publish({"file": file}, journal=SMALLEST)
    await until(lambda: any("1000 bytes kept aside" in each for each in outbox.unhealthy()))
    await outbox.stop()
    kept.write_bytes(bytes(1 << 20))
    with pytest.raises(ConfigError, match="kept aside"):
        await publish({"file": file}, journal=SMALLEST)


@pytest.mark.parametrize("below", ["", "letters"])
async def test_a_place_that_no_dead_letter_can_go_to_is_refused(
    publish: Start, file: FileConfig, tmp_path: Path, below: str
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    with pytest.raises(ConfigError, match=r"--dead-letter-dir .*expected a directory"):
        await publish({"file": file}, dead_letter_dir=taken / below)


async def test_dead_letters_are_bounded_and_the_bus_waits(
    publish: Start, file: FileConfig, journal_dir: Path
) -> None:
    """Nothing is thrown away: when letters were taken away, the rest follows."""
    metrics = Metrics()
    outbox = await publish({"file": file}, metrics=metrics, dead_letter_max_bytes=1 << 20)
    bad = b'{"type":"trade","exchange":"%s"}\n' % (b"x" * 10_000)
    for _ in range(20):
        await respond(outbox).append(bad * 10, 10)
    letters = journal_dir / "dead-letters" / "file.ndjson"
    await until(lambda: metric(metrics, "bus_healthy", "file") == 0)
    size = letters.stat().st_size
    assert 1_000_000 < size <= 1 << 20
    await until(lambda: metric(metrics, "dead_letter_bytes", "file") == size)
    taken = 0
    while taken < 200:
        if letters.exists():
            aside = letters.rename(letters.with_name("taken"))
            taken += aside.read_bytes().count(b"\n")
        await asyncio.sleep(0.1)
    report = await outbox.stop()
    assert taken == 200
    assert_balanced(report.buses[0].account, journalled=200, dead_lettered=200)


async def test_failed_sync_degrades_the_health_until_a_new_segment_is_synced(
    publish: Start, file: FileConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics()
    outbox = await publish({"file": file}, journal={"ring_bytes": 0}, metrics=metrics)

    def unsynced() -> float | None:
        return metrics.registry.get_sample_value("tardis_machine_publish_journal_unsynced")

    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    assert unsynced() == 0
    with monkeypatch.context() as broken:
        broken.setattr(os, "fdatasync", refuse)
        await write(respond(outbox), lines(50))
        await until(lambda: unsynced() == 1)
        assert outbox.unhealthy() == [
            "journal: not synced (Input/output error), power loss may cost messages"
        ]
    await until(lambda: unsynced() == 0)
    assert outbox.unhealthy() == []
    await write(respond(outbox), lines(50, start=50))
    assert (await outbox.stop()).pending == 0
    assert written(file) == [event.event_id for event in events_of(lines(100))]


async def test_failed_sync_in_the_publisher_is_a_state_of_the_server(
    publish: Start, file: FileConfig
) -> None:
    """The publisher syncs what goes through the ring; a new one counts from zero."""
    outbox = await publish({"file": file})
    state = outbox.scribe.writer.syncing
    for failures in (0, 3, 3, 1, 0):
        report = Snapshot({}, 0.0, sync_failures=failures, sync_error="Input/output error")
        outbox._take(report)
    assert state.failures == 2
    assert outbox.unhealthy()
    await until(lambda: not outbox.unhealthy())


def test_publisher_reports_failed_syncs_of_its_server_s_ring(
    journal_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    reading, writing = os.pipe()
    log = "log-000000000001-00000000"
    mover = Mover(journal_dir / log, -1, 0.5)
    process = Process(Settings({}, {}, str(journal_dir), log), writing, mover)
    mover.syncing.fail(OSError(errno.EIO, "Input/output error"))
    process._write(Snapshot({}, 0.0))
    with os.fdopen(reading, "rb") as pipe:
        said = msgspec.json.decode(pipe.readline(), type=Snapshot)
    os.close(writing)
    assert (said.sync_failures, said.sync_error) == (1, "Input/output error")
