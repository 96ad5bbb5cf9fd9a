"""Waiting on an event loop for what other threads do."""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wake(waiter: "asyncio.Future[None]") -> None:
    """Let whoever awaits it go on; it may have been woken, or have given up, before."""
    if not waiter.done():
        waiter.set_result(None)


async def settled(waiting: "concurrent.futures.Future[object]") -> None:
    """Wait until a future of another thread is done, whatever its outcome; never cancel it."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish(_: "concurrent.futures.Future[object]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
            loop.call_soon_threadsafe(wake, done)

    waiting.add_done_callback(finish)
    await done


async def in_thread(call: Callable[[], T], name: str) -> T:
    """Return the result of a call, made by a daemon thread: no exit waits for one that hangs."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()
    done.set_running_or_notify_cancel()

    def run() -> None:
        try:
            done.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            done.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await asyncio.wrap_future(done)
