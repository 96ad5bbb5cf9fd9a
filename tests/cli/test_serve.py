"""The server's command: flags, signals, exit codes."""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tardis_machine import __version__
from tardis_machine.engine.choice import kernel
from tests.cli.requests import get, replay
from tests.support.command import Launch, Run
from tests.support.native import TRADES, replayed
from tests.support.ports import free_port_pair, needs_ipv6


@contextmanager
def hangups(handled: signal.Handlers) -> Iterator[None]:
    """Have processes that are started meanwhile begin so: tests may be run by nohup, too."""
    before = signal.signal(signal.SIGHUP, handled)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_it_serves_until_told_to_stop(launch: Launch, number: int) -> None:
    with hangups(signal.SIG_DFL):
        process = launch("--sample-data", "--port", "0")
    port = process.listening()
    assert process.wait_for("--sample-data is synthetic")
    lines = replay(port).splitlines()
    assert {json.loads(line)["type"] for line in lines} == {"trade"}
    assert process.stop(number) == 0
    assert process.lines[-1].endswith("stopped")


def test_a_hangup_ends_a_cluster_in_good_order(launch: Launch) -> None:
    """As a terminal that is closed tells all of its processes."""
    with hangups(signal.SIG_DFL):
        process = launch("--sample-data", "--cluster-mode", "--port", "0")
    process.wait_for("listening", count=os.cpu_count() or 1)
    assert process.stop(signal.SIGHUP) == 0
    process.wait_for("stopped", count=os.cpu_count() or 1)


def test_a_hangup_that_is_ignored_stays_so(launch: Launch) -> None:
    """As nohup has it."""
    with hangups(signal.SIG_IGN):
        process = launch("--sample-data", "--port", "0")
    port = process.listening()
    process.popen.send_signal(signal.SIGHUP)
    assert replay(port)
    assert process.stop(signal.SIGTERM) == 0


def test_PORT_wins(launch: Launch) -> None:  # noqa: N802 - the variable's name
    port = free_port_pair()
    process = launch("--sample-data", "--port", "0", PORT=str(port), TM_PORT="0")
    assert process.listening() == port


def test_several_processes_share_the_ports(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0", "--log-format", "json")
    listening = json.loads(process.wait_for('"listening"', count=os.cpu_count() or 1))
    port = int(listening["http"].rpartition(":")[2])
    assert listening["ws"].split(",")[0] == f"127.0.0.1:{port + 1}"
    assert len({replay(port) for _ in range(8)}) == 1
    assert process.stop(signal.SIGTERM) == 0
    events = [json.loads(line)["event"] for line in process.lines]
    assert events.count("stopped") >= (os.cpu_count() or 1)
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", port))


def test_cluster_with_a_long_temporary_directory_serves_metrics(
    launch: Launch, tmp_path: Path
) -> None:
    place = tmp_path / ("x" * 100)
    place.mkdir()
    process = launch("--sample-data", "--cluster-mode", "--port", "0", TMPDIR=str(place))
    port = process.listening(os.cpu_count() or 1)
    assert "0" in scraped(port, "process_resident_memory_bytes")
    assert process.stop(signal.SIGTERM) == 0


@needs_ipv6
def test_cluster_is_reached_over_ipv6_loopback(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    port = process.listening()
    assert f"http=127.0.0.1:{port},[::1]:{port} ws=" in process.wait_for(" listening ")
    with urllib.request.urlopen(f"http://[::1]:{port}/health-check", timeout=60) as response:
        assert response.status == 200
    assert process.stop(signal.SIGTERM) == 0


def test_a_process_that_dies_is_started_anew(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    workers = os.cpu_count() or 1
    port = process.listening(workers)
    children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children").read_text()
    assert len(children.split()) == workers
    os.kill(int(children.split()[0]), signal.SIGKILL)
    process.wait_for("server process died")
    process.wait_for("listening", count=workers + 1)
    assert replay(port)
    assert process.stop(signal.SIGTERM) == 0


def scraped(port: int, name: str) -> dict[str, float]:
    """Return the sums of a metric's values by the label `process`."""
    found: dict[str, float] = {}
    text = get(port, "/metrics").decode()
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                process = sample.labels["process"]
                found[process] = found.get(process, 0.0) + sample.value
    return found


def test_metrics_of_a_cluster_are_those_of_each_process_with_its_number(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    workers = os.cpu_count() or 1
    port = process.listening(workers)
    for number in range(1, 9):
        replay(port)
        assert sum(scraped(port, "tardis_machine_responses_total").values()) == number
    numbers = {str(number) for number in range(workers)}
    assert set(scraped(port, "process_resident_memory_bytes")) == numbers
    assert scraped(port, "tardis_machine_process_restarts_total") == dict.fromkeys(numbers, 0.0)
    headers = re.findall(r"^# (?:HELP|TYPE) \S+", get(port, "/metrics").decode(), re.MULTILINE)
    assert len(headers) == len(set(headers))
    assert process.stop(signal.SIGTERM) == 0


def test_process_that_is_started_again_keeps_its_number_and_counts_anew(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    workers = os.cpu_count() or 1
    port = process.listening(workers)
    before: dict[str, float] = {}
    while before.get("0", 0.0) == 0.0:  # any process may take the next request
        replay(port)
        before = scraped(port, "tardis_machine_responses_total")
    children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    process.wait_for("server process died")
    process.wait_for("listening", count=workers + 1)
    after = scraped(port, "tardis_machine_responses_total")
    assert after | {"0": 0.0} == before | {"0": 0.0}
    assert after.get("0", 0.0) == 0.0
    restarts = {str(number): float(number == 0) for number in range(workers)}
    assert scraped(port, "tardis_machine_process_restarts_total") == restarts
    assert process.stop(signal.SIGTERM) == 0


def test_metrics_of_a_single_process_have_no_label_of_a_process(launch: Launch) -> None:
    process = launch("--sample-data", "--port", "0")
    text = get(process.listening(), "/metrics").decode()
    assert "\nprocess_resident_memory_bytes " in text
    assert 'process="' not in text
    assert process.stop(signal.SIGTERM) == 0


async def test_native_session_of_a_cluster_is_refused_with_the_reason(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    port = process.listening(os.cpu_count() or 1)
    query = "exchange=bitmex&from=2024-03-01&to=2024-03-01T00:01"
    url = f"http://127.0.0.1:{port + 1}/ws-replay?{query}"
    async with aiohttp.ClientSession() as client:
        together = [await client.ws_connect(f"{url}&session=one") for _ in range(2)]
        for messages, code, reason in await asyncio.gather(*map(replayed, together)):
            assert (messages, code) == ([], 1011)
            assert reason.startswith('"session" joins connections of one process')
            assert reason.endswith("start it without --cluster-mode")
        alone = await client.ws_connect(f"{url}&session=")
        await alone.send_json(TRADES)
        messages, code, _ = await replayed(alone)
        assert messages
        assert code == 1000
    assert process.stop(signal.SIGTERM) == 0


def test_a_configuration_that_cannot_work_ends_the_cluster(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    done = run(
        *("--sample-data", "--cluster-mode", "--port", "0"),
        *("--file-path", str(tmp_path / "events"), "--journal-dir", str(file / "journal")),
    )
    assert done.returncode == 1
    assert "--journal-dir" in done.stderr
    assert "Traceback" not in done.stderr
    assert "server process died" not in done.stderr


@pytest.mark.parametrize("mode", ["--cluster-mode", "--no-cluster-mode"])
def test_cache_that_everyone_may_write_to_is_refused_by_its_flag(
    run: Run, tmp_path: Path, mode: str
) -> None:
    tmp_path.chmod(0o777)
    done = run(mode, "--port", str(free_port_pair()), "--cache-dir", str(tmp_path))
    assert done.returncode == 1
    assert f"tardis-machine: --cache-dir '{tmp_path}': everyone may write to it" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_directories_that_a_group_may_write_to_are_named_once_by_a_cluster(
    launch: Launch, tmp_path: Path
) -> None:
    cache, journal = tmp_path / "cache", tmp_path / "journal"
    for path in (cache, journal):
        path.mkdir()
        path.chmod(0o770)
    process = launch(
        *("--cluster-mode", "--port", str(free_port_pair()), "--cache-dir", str(cache)),
        *("--file-path", str(tmp_path / "events"), "--journal-dir", str(journal)),
    )
    process.wait_for("listening", count=os.cpu_count() or 1)
    assert process.stop(signal.SIGTERM) == 0
    named = [line for line in process.lines if "other users may change this directory" in line]
    assert len(named) == 2
    assert "by=--cache-dir" in named[0]
    assert "by=--journal-dir" in named[1]


def test_processes_that_keep_dying_are_not_started_for_ever(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0", "--cluster-restarts", "1")
    process.wait_for("listening", count=os.cpu_count() or 1)
    children = Path(f"/proc/{process.popen.pid}/task/{process.popen.pid}/children")
    for _ in range(2):
        os.kill(int(children.read_text().split()[0]), signal.SIGKILL)
        process.wait_for("server process died")
    process.wait_for("server processes keep dying")
    assert process.popen.wait(timeout=60) == 1


def test_no_process_outlives_the_one_that_watches_it(launch: Launch) -> None:
    process = launch("--sample-data", "--cluster-mode", "--port", "0")
    process.wait_for("listening", count=2)
    process.stop(signal.SIGKILL)
    process.wait_for("stopped", count=2)


def test_a_taken_port_is_an_error(run: Run) -> None:
    port = free_port_pair()
    with socket.create_server(("127.0.0.1", port + 1)):
        done = run("--sample-data", "--port", str(port))
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port + 1}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--prot", "8000"), "--prot: unknown flag, did you mean --port?"),
        (("--port", "70000"), "--port 70000: expected 0 to 65534"),
        (("--endpoint", "nowhere"), "--endpoint 'nowhere'"),
        (("server",), "server: unknown argument"),
    ],
)
def test_what_is_wrong_is_said_with_exit_1(run: Run, arguments: tuple[str, ...], part: str) -> None:
    done = run(*arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("tardis-machine: ")
    assert part in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "variables"), [(("--host", "0.0.0.0"), {}), ((), {"TM_HOST": "0.0.0.0"})]
)
def test_listening_beyond_loopback_without_a_token_is_refused(
    run: Run, arguments: tuple[str, ...], variables: dict[str, str]
) -> None:
    done = run("--sample-data", "--port", "0", *arguments, **variables)
    assert done.returncode == 1
    assert "--host '0.0.0.0': without a token" in done.stderr
    assert "expected --auth-token, or --allow-anonymous" in done.stderr
    assert "Traceback" not in done.stderr


def test_listening_beyond_loopback_is_allowed_explicitly(launch: Launch) -> None:
    process = launch("--sample-data", "--port", "0", "--host", "0.0.0.0", TM_ALLOW_ANONYMOUS="true")
    process.wait_for("listening")
    assert any("without --auth-token" in line for line in process.lines)
    process.stop(signal.SIGTERM)
    guarded = launch("--sample-data", "--port", "0", "--host", "0.0.0.0", TM_AUTH_TOKEN="t")
    guarded.wait_for("listening")
    assert not any("--auth-token" in line for line in guarded.lines)


def open_files(pid: int) -> list[str]:
    """The soft and the hard limit of a process."""
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith("Max open files"))
    return line.split()[3:5]


def test_limit_of_open_files_is_raised(launch: Launch) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(200, before[1]), before[1]))
    try:
        process = launch("--sample-data", "--port", "0")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    process.wait_for("listening")
    soft, hard = open_files(process.popen.pid)
    assert soft == hard == str(before[1])


def test_limits_that_do_not_fit_are_warned_of(launch: Launch) -> None:
    process = launch("--sample-data", "--port", "0", "--max-connections", "1000000000")
    process.wait_for("listening")
    assert any("open files, beyond the process's limit" in line for line in process.lines)


def test_secrets_on_the_command_line_warn_and_are_not_shown(launch: Launch) -> None:
    process = launch("--sample-data", "--port", "0", "--api-key", "s3cret")
    process.wait_for("listening")
    assert any("TM_API_KEY" in line for line in process.lines)
    assert not any("s3cret" in line for line in process.lines)


def test_version_names_the_kernel(run: Run) -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"{__version__} (kernel: {kernel()})\n")


def test_v_prints_the_version_alone(run: Run) -> None:
    done = run("-v")
    assert (done.returncode, done.stdout) == (0, f"{__version__}\n")


def test_runs_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tardis_machine", "--version"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, f"{__version__} (kernel: {kernel()})\n")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_fits_two_screens(run: Run, flag: str) -> None:
    done = run(flag)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 100
    for part in ("--cache-dir", "Server:", "History:", "Examples:", "--kafka-brokers"):
        assert part in done.stdout


def test_help_of_a_group_there_is_not(run: Run) -> None:
    done = run("--help", "nosuch")
    assert done.returncode == 1
    assert "--help 'nosuch': expected one of" in done.stderr


def test_help_of_one_group(run: Run) -> None:
    done = run("--help", "kafka")
    assert done.returncode == 0
    assert "--kafka-brokers HOST:PORT" in done.stdout
    assert "--cache-dir" not in done.stdout
