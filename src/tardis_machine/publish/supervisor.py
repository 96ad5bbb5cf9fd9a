"""The server's hold on its publisher: started, listened to, started again when it dies."""

import asyncio
import contextlib
import logging
import os
import sys
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec

from tardis_machine.backoff import Backoff
from tardis_machine.bounded import shortened
from tardis_machine.log import Throttle
from tardis_machine.publish.accounts import Snapshot
from tardis_machine.publish.process import Drain, Settings

_log = logging.getLogger(__name__)

_SHORTEST_S: Final = 0.2
_LONGEST_S: Final = 30.0
_STABLE_S: Final = 60.0
_GRACE_S: Final = 5.0
_LINE_BYTES: Final = 1 << 20


class Supervisor:
    """Runs `tardis_machine.publish.process` as a child, in a session of its own.

    A Ctrl-C in the server's terminal is for the server, which then lets the publisher drain; and a
    server that is killed leaves a publisher that finishes its work.
    """

    def __init__(
        self,
        settings: Settings,
        on_snapshot: Callable[[Snapshot], None],
        ring: Callable[[], int] = lambda: -1,
    ) -> None:
        """`ring` gives the end of a pipe that tells of work in the log's ring; -1 for none."""
        self._ring = ring
        self._settings = msgspec.json.encode(settings) + b"\n"
        self._on_snapshot = on_snapshot
        self._decoder = msgspec.json.Decoder(Snapshot)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._resuming: asyncio.TimerHandle | None = None
        self._failure_backoff = Backoff(_SHORTEST_S, _LONGEST_S)
        self._began = 0.0
        self._drained = asyncio.Event()
        self._drain_until: float | None = None
        self._ended = True
        self._wake = asyncio.Event()
        self._final = False
        self._unreadable_said = Throttle()
        self.restarts = 0
        self.failures = 0
        """Times the supervision itself ended unexpectedly, and was begun again."""
        self.reported = False

    @property
    def watching(self) -> bool:
        """Whether the supervision runs: without it a publisher that dies is not started again."""
        return self._task is not None and not self._task.done()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def back(self) -> bool:
        """Tell whether a publisher that had died has reported again since."""
        return self.reported or not self.restarts

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Start the publisher; if cancelled, only once it has been ended again."""
        spawning = asyncio.create_task(self._spawn())
        try:
            await asyncio.shield(spawning)
        except asyncio.CancelledError:
            spawning.add_done_callback(self._discard)
            await asyncio.wait([spawning])
            await self._wait_ended()
            raise
        self._supervise(self._watch())

    def _discard(self, spawning: asyncio.Task[None]) -> None:
        if not spawning.cancelled() and spawning.exception() is None:
            self._kill()
            os.close(self._reports)

    async def drain(self, timeout_s: float, *, ended: bool = True) -> None:
        """Let the publisher deliver what is left in time; start it once more if it died.

        `ended`: the server has ended its log.
        """
        self._ended = ended
        self._drain_until = time.monotonic() + timeout_s
        self._wake.set()
        if self._resuming is not None:
            self._resume()
        elif self.running:
            self._tell_to_drain()
        if not await self._wait_drained(timeout_s + _GRACE_S):
            _log.error("publisher killed: it did not end in time", extra={"pid": self.pid})
            self._kill()
            await self._wait_drained(_GRACE_S)

    async def _wait_drained(self, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._drained.wait()
        return self._drained.is_set()

    def _supervise(self, watching: Coroutine[Any, Any, None]) -> None:
        self._began = time.monotonic()
        self._task = asyncio.create_task(watching, name="publisher-supervisor")
        self._task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Begin the supervision again, unless it ended because the publisher has drained.

        Called by the event loop when the task ends; nothing else would notice that it did.
        """
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is None:
            self._drained.set()
            return
        self.failures += 1
        if time.monotonic() - self._began > _STABLE_S:
            self._failure_backoff.reset()
        pause_s = _SHORTEST_S if self._drain_until else self._failure_backoff.next_pause_s()
        _log.error(
            "publisher supervision failed, it is begun again",
            extra={"reason": repr(error), "in_s": round(pause_s, 2)},
            exc_info=error,
        )
        # By a timer: where the event loop is ending, no task may be begun any more.
        self._resuming = asyncio.get_running_loop().call_later(pause_s, self._resume)

    def _resume(self) -> None:
        """Begin the supervision again with a new publisher, since the old one's pipe is closed."""
        if self._resuming is not None:
            self._resuming.cancel()
            self._resuming = None
        self._supervise(self._replace())

    async def _wait_ended(self) -> int | None:
        """Wait until the publisher has ended, close the pipe to it and return its exit code.

        The event loop may end soon after, and would leave a pipe open that it closes by itself.
        """
        if self._process is None:
            return None
        code = await self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()
            with contextlib.suppress(ConnectionError):
                await self._process.stdin.wait_closed()
        return code

    async def _replace(self) -> None:
        self._kill()
        await self._wait_ended()
        self.restarts += 1
        if await self._spawn_again(0.0, Backoff(_SHORTEST_S, _LONGEST_S)):
            if self._drain_until is not None:
                self._tell_to_drain()
            await self._watch()

    async def _spawn(self) -> None:
        reading, writing = os.pipe()
        ring = self._ring()
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # modules of whatever folder the server runs in are none of ours
                "-m",
                "tardis_machine.publish.process",
                str(writing),
                str(ring),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=(writing,) if ring < 0 else (writing, ring),
                start_new_session=True,
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        self._reports = reading
        self.reported = False
        self._tell(self._settings)
        _log.info("publisher started", extra={"pid": self.pid})

    async def _watch(self) -> None:
        """Listen to one publisher after the other until one has said its last word.

        Its exit code alone proves nothing: a drain has ended when it was reported to have.
        """
        backoff = Backoff(_SHORTEST_S, _LONGEST_S)
        drains = 0
        while True:
            started = time.monotonic()
            await self._listen()
            code = await self._wait_ended()
            draining = self._drain_until is not None
            if draining and (self._final or drains):
                return
            drains += draining
            self.restarts += 1
            if time.monotonic() - started > _STABLE_S:
                backoff.reset()
            pause_s = 0.0 if draining else backoff.next_pause_s()
            _log.error(
                "publisher died, it is started again",
                extra={"exit_code": code, "in_s": round(pause_s, 2)},
            )
            if not await self._spawn_again(pause_s, backoff):
                return
            if self._drain_until is not None:
                self._tell_to_drain()

    async def _spawn_again(self, pause_s: float, backoff: Backoff) -> bool:
        """Start a publisher after a pause, tried until it works; False: no time is left to drain.

        What a process needs may be short just now: descriptors, memory, processes.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            self._wake.clear()
            try:
                await self._spawn()
            except Exception as error:  # noqa: BLE001 - whatever it was, nobody else would try again
                if self._drain_until is not None and time.monotonic() > self._drain_until:
                    return False
                pause_s = _SHORTEST_S if self._drain_until else backoff.next_pause_s()
                _log.error(
                    "publisher cannot be started, it is tried again",
                    extra={"reason": str(error), "in_s": round(pause_s, 2)},
                )
            else:
                return True

    async def _listen(self) -> None:
        """Take snapshots until the publisher closes its end."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=_LINE_BYTES)
        # uvloop closes a pipe's number, and then its file: by then it may be another thread's.
        twice = type(loop).__module__.startswith("uvloop")
        transport, _ = await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader),
            os.fdopen(self._reports, "rb", closefd=not twice),
        )
        try:
            while await self._take_report(reader):
                pass
        finally:
            transport.close()

    async def _take_report(self, reader: asyncio.StreamReader) -> bool:
        """Take one line; skip it with a warning if it is no report. False at the end."""
        try:
            line = await reader.readline()
        except ValueError:  # the reader has thrown away what it had of the line
            self._warn(f"report of more than {_LINE_BYTES} bytes")
            return True
        try:
            snapshot = self._decoder.decode(line) if line else None
        except (ValueError, RecursionError) as error:
            # Damaged, or of a version that was installed meanwhile.
            self._warn(str(error))
            return True
        if snapshot is not None:
            self.reported, self._final = True, snapshot.final
            self._on_snapshot(snapshot)
        return bool(line)

    def _warn(self, reason: str) -> None:
        if self._unreadable_said.allow() is not None:
            _log.warning("publisher is not understood", extra={"reason": shortened(reason)})

    def _tell_to_drain(self) -> None:
        assert self._drain_until is not None
        left_s = max(0.0, self._drain_until - time.monotonic())
        self._tell(msgspec.json.encode(Drain(left_s, self._ended)) + b"\n")

    def _tell(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(ConnectionError, RuntimeError):  # it has just died
            self._process.stdin.write(data)

    def _kill(self) -> None:
        if self.running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
