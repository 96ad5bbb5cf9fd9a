import asyncio
import time

from tardis_machine.live.inbox import Inbox


async def test_frames_are_processed_in_order_and_flushed_at_the_end_of_a_step() -> None:
    inbox = Inbox(1 << 20)
    seen: list[str] = []
    for number in range(5):
        inbox.put(
            lambda local, frame: seen.append(f"{local} {frame.decode()}"),
            lambda: seen.append("flush"),
            str(number),
            b"frame",
        )
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert [each for each in seen if each != "flush"] == [f"{n} frame" for n in range(5)]
    assert seen[-1] == "flush"


async def test_frames_of_later_steps_are_flushed() -> None:
    inbox = Inbox(1 << 20)
    waiting: list[bytes] = []
    sent: list[bytes] = []

    def take(_: str, frame: bytes) -> None:
        time.sleep(0.006)  # longer than a step
        waiting.append(frame)

    def flush() -> None:
        sent.extend(waiting)
        waiting.clear()

    for number in range(3):
        inbox.put(take, flush, "", b"%d" % number)
    while len(sent) < 3:
        await asyncio.sleep(0)
        assert not (waiting and inbox.size == 0)
    assert sent == [b"0", b"1", b"2"]


async def test_readers_wait_while_the_inbox_is_over_its_limit() -> None:
    inbox = Inbox(8)
    inbox.put(lambda _, __: None, lambda: None, "", b"123456789")
    waiting = asyncio.ensure_future(inbox.wait_for_space())
    assert inbox.size == 9
    await waiting
    assert inbox.size == 0
