"""`tardis-machine`: the server."""

import asyncio
import contextlib
import gc
import logging
import os
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tardis_machine import log as logs
from tardis_machine.cli.config import lake_sections, sections
from tardis_machine.config import ConfigError, Loaded, load
from tardis_machine.engine.choice import kernel
from tardis_machine.history.settings import HistoryConfig
from tardis_machine.journal import Directory
from tardis_machine.live.settings import LiveConfig
from tardis_machine.publish.buses import BUSES
from tardis_machine.publish.config import JournalConfig, PublishConfig
from tardis_machine.server import descriptors
from tardis_machine.server.app import TardisMachine, open_history
from tardis_machine.server.cluster import Worker, run_cluster
from tardis_machine.server.cluster_metrics import ClusterMetrics
from tardis_machine.server.limits import LimitsConfig
from tardis_machine.server.settings import ServerConfig
from tardis_machine.server.sockets import Sockets, listen
from tardis_machine.signals import stop_signals

log = logging.getLogger(__name__)

_DESCRIPTION: Final = """\
Serves normalized and raw market data of Tardis.dev over HTTP and WebSocket, and publishes what
it serves to event buses. Other commands, each with --help: bronze, publish, lake,
exchanges, config, check."""
_EPILOG: Final = """\
Examples:
  tardis-machine --sample-data                 the bundled synthetic sample, offline
  tardis-machine --api-key KEY --cache-dir /data/tardis
  tardis-machine --kafka-brokers localhost:9092 --kafka-topic bronze
  curl -G localhost:8000/replay-normalized --data-urlencode 'options={"exchange":"bitmex",
    "from":"2024-03-01","to":"2024-03-01T00:02","symbols":["XBTUSD"],"dataTypes":["trade"]}'"""


def main(arguments: Sequence[str], environ: Mapping[str, str] | None = None) -> int:
    """Run the server until a signal stops it; return 1 if messages for a bus are pending."""
    loaded = load(
        sections(),
        arguments,
        environ,
        description=_DESCRIPTION,
        epilog=_EPILOG,
        also=lake_sections(),
    )
    config = loaded[ServerConfig]
    logs.configure(config.log_format, debug=config.debug)
    descriptors.raise_limit()
    for warning in (*loaded.warnings, *descriptors.warnings(loaded[LimitsConfig])):
        log.warning(warning)
    config.expect_guard(config.flag)
    publishes = any(loaded[bus.config_type].enabled for bus in BUSES.values())
    if not publishes:
        _warn_about_pending_messages(loaded[JournalConfig])
    history = loaded[HistoryConfig]
    # Settings that the server cannot use are refused before it listens.
    kernel()
    make_server(loaded, history)
    sockets = listen(config.host, config.port)
    if not config.cluster_mode:
        return _run(loaded, history, sockets)
    # This process checks the directories and, with --clear-cache, empties the cache. A worker that
    # restarts would empty it while other workers use it.
    open_history(history).close()
    if publishes:
        loaded[PublishConfig].claim_dead_letters(loaded[JournalConfig].claim())
    history = replace(history, clear_cache=False)
    return run_cluster(
        lambda worker: _run(loaded, history, sockets, worker),
        processes=os.cpu_count() or 1,
        max_restarts=config.cluster_restarts,
    )


def _warn_about_pending_messages(config: JournalConfig) -> None:
    """Log how many messages are left in the journal for each bus, since no bus is configured."""
    left: Counter[str] = Counter()
    # This server does not use the journal: one that cannot be read is no reason to stop.
    with contextlib.suppress(OSError, ConfigError):
        for journal_log in Directory(config.path).logs():
            if journal_log.finished() and journal_log.readable():
                left.update({bus: journal_log.pending(bus) for bus in journal_log.buses()})
    for bus, count in left.items():
        if count:
            extra = {"bus": bus, "messages": count, "journal": str(config.path)}
            log.warning("messages wait in the journal, and no bus is configured", extra=extra)


def make_server(loaded: Loaded, history: HistoryConfig) -> TardisMachine:
    """Return a server with the sections of a configuration; it is not started."""
    buses = {}
    for name, bus in BUSES.items():
        config = loaded[bus.config_type]
        if config.enabled:
            buses[name] = config
    return TardisMachine(
        server=loaded[ServerConfig],
        limits=loaded[LimitsConfig],
        history=history,
        live=loaded[LiveConfig],
        journal=loaded[JournalConfig],
        publish=loaded[PublishConfig],
        **buses,
    )


def _run(
    loaded: Loaded, history: HistoryConfig, sockets: Sockets, worker: Worker | None = None
) -> int:
    if sys.platform == "win32":
        return asyncio.run(_serve(loaded, history, sockets, worker))
    import uvloop  # noqa: PLC0415 - not on Windows

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(loaded, history, sockets, worker))


async def _serve(
    loaded: Loaded, history: HistoryConfig, sockets: Sockets, worker: Worker | None
) -> int:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in stop_signals():
        loop.add_signal_handler(number, stop.set)
    server = make_server(loaded, history)
    cluster_metrics = None if worker is None else ClusterMetrics(worker, server.metrics)
    await server.start(sockets=sockets, cluster_metrics=cluster_metrics)
    # Objects of the start live until the exit. A garbage collection that scans them would delay
    # every client by 14 ms.
    gc.freeze()
    await stop.wait()
    log.info("stopping")
    report = await server.stop()
    if report is None:
        return 0
    for bus in report.buses:
        log.info("drained", extra=bus.counts())
    return 1 if report.pending else 0
