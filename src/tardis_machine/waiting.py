"""Waiting on an event loop for what other threads do."""

import asyncio
import concurrent.futures
import contextlib


async def settled(waiting: "concurrent.futures.Future[object]") -> None:
    """Wait until a future of another thread is done, whatever its outcome; never cancel it."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def wake(_: "concurrent.futures.Future[object]") -> None:
        with contextlib.suppress(RuntimeError):  # the loop may have closed meanwhile
            loop.call_soon_threadsafe(finish)

    waiting.add_done_callback(wake)
    await done
