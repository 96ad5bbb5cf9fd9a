"""Waiting on an event loop for the work of other threads."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wake(waiter: "asyncio.Future[None]") -> None:
    """Resume the task that awaits a future; do nothing if it is done or was cancelled."""
    if not waiter.done():
        waiter.set_result(None)


async def until_done(future: "concurrent.futures.Future[object]") -> None:
    """Wait until another thread's future has a result or an error; return and raise neither.

    A caller that is cancelled stops waiting; the future is not cancelled.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(_: "concurrent.futures.Future[object]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: no task waits
            loop.call_soon_threadsafe(wake, done)

    future.add_done_callback(finish)
    await done


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of a call made in a daemon thread: a call that hangs delays no exit."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised in the task that awaits
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
