"""Waiting on an event loop for what other threads do."""

import asyncio
import concurrent.futures
import contextlib


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
