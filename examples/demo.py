"""The whole way of the data on one machine: replay → NATS JetStream → Spark → pictures.

`make demo` runs this on the bundled sample, which is synthetic: generated, no exchange ever sent
it. Every number it prints is checked against the
others, and it fails when they disagree.
"""

import argparse
import asyncio
import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tardis_machine.cli import main as tardis_machine
from tardis_machine.history import sample
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.session import session
from tardis_machine.lake.tables import EVENTS, SILVER, Tables
from tardis_machine.messages import decode_lines, payload_case

EXCHANGE, SYMBOL, BARS = "binance-futures", "BTCUSDT", "trade_bar_1s"
HTTP = {
    "bitmex": ["trade", "book_change", "derivative_ticker", "liquidation", "book_ticker", BARS],
    "deribit": ["trade", "book_change", "derivative_ticker", "option_summary", "book_ticker"],
}
WEBSOCKET = {EXCHANGE: ["trade", "book_change", "quote", "book_snapshot_10_1s", BARS]}
BOOKS = "book_snapshot_10_1s"
TITLE = "synthetic sample data"
CONTROL = ("disconnect", "error")
PATIENCE_S = 120
NATS_SERVER = Path(sysconfig.get_path("scripts"), "nats-server")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="for its files")
    parser.add_argument("--keep", action="store_true", help="leave everything up until Ctrl-C")
    arguments = parser.parse_args()
    output: Path = arguments.output
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began = time.monotonic()
    with ExitStack() as running:
        starting = threading.Thread(target=session)
        starting.start()  # Spark takes its time: meanwhile the server serves
        running.callback(stop_spark)

        nats_port, port = free_ports()
        step("1  An event bus: a real NATS server with JetStream, from its package")
        nats = [NATS_SERVER, "-a", "127.0.0.1", "-p", nats_port, "-js", "-sd"]
        running.enter_context(process([*nats, output / "nats"], output / "nats.log"))
        flags = ["--nats-servers", f"nats://127.0.0.1:{nats_port}", "--nats-subject", "demo.events"]
        flags += ["--nats-stream", "demo"]

        step("2  The server: synthetic sample data, every message also published")
        serve = ["tardis-machine", "--sample-data", "--port", port, *flags, "--nats-create"]
        serve += ["--journal-dir", output / "journal"]
        server = running.enter_context(process(serve, output / "server.log"))
        health = get(port, "/health-check")
        said(f"{sample.SAMPLE.description()}; {json.loads(health)['status']}", serve)

        step("3  Replays, over HTTP and WebSocket")
        started = time.monotonic()
        served = over_http(port) + asyncio.run(over_websocket(port + 1))
        for case, count in sorted(served.items()):
            said(f"{count:>9,} {case}")
        total = served.total()
        said(f"{total:>9,} messages in {time.monotonic() - started:.1f} s", curl(port))

        step("4  Published, as Bronze envelopes")
        started = time.monotonic()
        account = published(port, total)
        control = account["accepted"] - total
        said(
            f"accepted {account['accepted']:,} ({control} of them control events), delivered "
            f"{account['delivered']:,}, dead-lettered {account['dead_lettered']:,}, dropped "
            f"{account['dropped']:,}, {time.monotonic() - started:.1f} s after the last response"
        )
        agree("messages accepted and delivered", account["accepted"], account["delivered"])
        stored = asyncio.run(stored_in_stream(flags[1], "demo"))
        agree("messages delivered and in the stream", account["delivered"], stored)

        step("5  The lakehouse: Spark streams the bus into Bronze and Silver tables")
        starting.join()
        started = time.monotonic()
        tables_path = output / "tables"
        lake = ["tardis-machine", "lake", "stream", "--from-bus", "nats", *flags]
        lake += ["--to-tables", tables_path]
        run_lake([*lake, "--once"])
        said(f"{time.monotonic() - started:.1f} s", [*lake, "--once"])
        tables = Tables(session(), str(tables_path.absolute()))
        rows = bronze_rows(tables)
        agree("messages in the stream and Bronze rows", stored, rows.total())
        agree("control events accepted and in Bronze", control, sum(rows[c] for c in CONTROL))
        for case in sorted(rows):
            silver = tables.read(SILVER[case]).count()
            said(f"{silver:>9,} {SILVER[case].path}")
            agree(f"Silver rows and {case} messages", silver, served[case] or rows[case])
        show = ["tardis-machine", "lake", "show", "trades", "--tables", tables_path]
        said("a readable sample of any of them", show)

        step("6  Gold: bars and books made from Silver, which are those that the server sent")
        started = time.monotonic()
        gold = ["tardis-machine", "lake", "gold", "--tables", tables_path]
        gold += ["--bars", BARS, "--books", BOOKS]
        run_lake(gold)
        said(f"{time.monotonic() - started:.1f} s", gold)
        bars = agree_with_silver(tables, "bars", "tradeBar", BARS, ["close", "volume", "vwap"])
        books = agree_with_silver(tables, "books", "bookSnapshot", BOOKS, ["depth"])
        said(f"{bars:>9,} bars and {books:,} books of the server are in Gold as it sent them")

        step("7  The quality of it all")
        quality = ["tardis-machine", "lake", "quality", "--tables", tables_path]
        quality += ["--picture", output / "quality.svg", "--picture-title", TITLE]
        run_lake(quality)
        said("each data type of each exchange; minute by minute in the picture", quality)

        step("8  A picture")
        plot = ["tardis-machine", "lake", "plot", "--tables", tables_path, "--exchange", EXCHANGE]
        plot += ["--symbol", SYMBOL, "--bars", BARS, "--picture", output / "session.png"]
        plot += ["--picture-title", TITLE]
        run_lake(plot)
        said(f"{SYMBOL} on {EXCHANGE}, synthetic, from Gold", plot)

        print(f"\nAll numbers agree. {time.monotonic() - began:.0f} s in all.")
        if arguments.keep:
            keep(running, server, port, [*lake, "--interval-s", "5"], output)
        else:
            print("Nothing was left running. `make demo KEEP=1` leaves it up to talk to.")


def over_http(port: int) -> Counter[str]:
    """Replay over HTTP, and count messages by payload case."""
    served: Counter[str] = Counter()
    for exchange, types in HTTP.items():
        body = get(port, f"/replay-normalized?options={options(exchange, types)}")
        served.update(map(payload_case, decode_lines(body)))
    return served


async def over_websocket(port: int) -> Counter[str]:
    """Replay over the WebSocket: a frame is a message."""
    served: Counter[str] = Counter()
    async with aiohttp.ClientSession() as client:
        for exchange, types in WEBSOCKET.items():
            url = f"http://127.0.0.1:{port}/ws-replay-normalized?options={options(exchange, types)}"
            async with client.ws_connect(url, max_msg_size=0) as websocket:
                frames = [frame.data.encode() async for frame in websocket]
                agree("close code and 1000", websocket.close_code, 1000)
            served.update(map(payload_case, decode_lines(b"\n".join([*frames, b""]))))
    return served


def options(exchange: str, types: Sequence[str]) -> str:
    end = sample.START + timedelta(minutes=sample.MINUTES)
    asked = {
        "exchange": exchange,
        "from": f"{sample.START:%Y-%m-%dT%H:%M}",
        "to": f"{end:%Y-%m-%dT%H:%M}",
        "dataTypes": types,
    }
    return urllib.parse.quote(json.dumps(asked, separators=(",", ":")))


def published(port: int, expected: int) -> dict[str, int]:
    """Wait until everything was delivered, and give the account of the bus."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        account = {
            sample.name.removeprefix("tardis_machine_publish_").removesuffix("_total"): int(
                sample.value
            )
            for family in text_string_to_metric_families(get(port, "/metrics").decode())
            for sample in family.samples
            if sample.labels == {"bus": "nats"}
        }
        if account.get("accepted", 0) >= expected and not account["pending"]:
            return account
        time.sleep(0.1)
    sys.exit(f"not delivered within {PATIENCE_S} s")


async def stored_in_stream(url: str, stream: str) -> int:
    import nats

    client = await nats.connect(url)
    try:
        info = await client.jetstream().stream_info(stream)
        return int(info.state.messages)
    finally:
        await client.close()


def bronze_rows(tables: Tables) -> Counter[str]:
    counted = tables.read(EVENTS).groupBy("payload_case").count().collect()
    return Counter({row["payload_case"]: row["count"] for row in counted})


def run_lake(command: Sequence[object]) -> None:
    if tardis_machine([str(each) for each in command[1:]]):
        sys.exit(f"{shlex.join(map(str, command))} failed: see above")


def agree_with_silver(
    tables: Tables, name: str, case: str, variant: str, columns: Sequence[str]
) -> int:
    """Find every row that the server computed in Gold, the same; tell how many there were."""
    keys = ["exchange", "symbol", "name", "local_ts", "event_ts"]
    own = [*keys, *(f"CAST({column} AS DOUBLE) AS {column}" for column in columns)]
    sent = tables.read(SILVER[case]).where(f"name = '{variant}'").selectExpr(*own)
    made = tables.read(GOLD[name].table).selectExpr(*own)
    agree(f"{variant} of the server that Gold has not", sent.exceptAll(made).count(), 0)
    return sent.count()


def keep(
    running: ExitStack,
    server: subprocess.Popen[bytes],
    port: int,
    lake: Sequence[object],
    output: Path,
) -> None:
    """Leave everything up, a continuous stream included, until Ctrl-C."""
    stop_spark()
    stream = running.enter_context(process(lake, output / "stream.log"))
    print("\nStill up, until Ctrl-C:")
    said(f"HTTP on {port}, WebSocket on {port + 1}; a replay, published and streamed:", curl(port))
    said(f"metrics: http://127.0.0.1:{port}/metrics")
    said(f"NATS on {lake[lake.index('--nats-servers') + 1]}, stream demo")
    said(f"the Spark stream logs to {output / 'stream.log'}")
    try:
        while server.poll() is None and stream.poll() is None:
            time.sleep(0.5)
        sys.exit("a process ended by itself: see the logs in " + str(output))
    except KeyboardInterrupt:
        print("\nstopping")


def stop_spark() -> None:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    if active is not None:
        active.stop()


@contextmanager
def process(command: Sequence[object], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command, with its output in a file; end it, gently first."""
    given = [str(each) for each in command]
    if given[0] == "tardis-machine":
        given[:1] = [
            sys.executable,
            "-c",
            "import sys; from tardis_machine.cli import main; sys.exit(main())",
        ]
    with (
        log.open("wb") as out,
        subprocess.Popen(
            given, stdout=out, stderr=subprocess.STDOUT, start_new_session=True
        ) as started,
    ):
        try:
            yield started
        finally:
            started.terminate()
            try:
                started.wait(60)
            except subprocess.TimeoutExpired:
                os.killpg(started.pid, signal.SIGKILL)


def get(port: int, path: str) -> bytes:
    """Fetch from the server, waiting for it to come up."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
                body: bytes = response.read()
                return body
        except urllib.error.HTTPError as error:
            sys.exit(f"{path}: {error.code} {error.read().decode(errors='replace')}")
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def free_ports() -> tuple[int, int]:
    """Find a port for NATS, and one for the server whose neighbour is free too."""
    while True:
        with ExitStack() as held:

            def bound(port: int = 0) -> int:
                taken = held.enter_context(socket.socket())
                taken.bind(("127.0.0.1", port))
                number: int = taken.getsockname()[1]
                return number

            try:
                first, second = bound(), bound()
                bound(second + 1)
            except (OSError, OverflowError):
                continue
            return first, second


def curl(port: int) -> list[object]:
    query = "options=" + urllib.parse.unquote(options("bitmex", ["trade", BARS]))
    url = f"http://127.0.0.1:{port}/replay-normalized"
    return ["curl", "-G", url, "--data-urlencode", query]


def agree(what: str, one: object, other: object) -> None:
    if one != other:
        sys.exit(f"DISAGREEMENT: {what}: {one} and {other}")


def step(text: str) -> None:
    print(f"\n{text}", flush=True)


def said(text: str, by_hand: Sequence[Any] = ()) -> None:
    print(f"   {text}", flush=True)
    if by_hand:
        print(f"   $ {shlex.join(map(str, by_hand))}", flush=True)


if __name__ == "__main__":
    main()
