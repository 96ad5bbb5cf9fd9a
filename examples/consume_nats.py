"""Read Bronze events from NATS JetStream, with a consumer that remembers its place."""

import argparse
import asyncio

import nats
from nats.errors import TimeoutError as NothingYet

from tardis_machine.bronze import NormalizedEvent


async def consume(server: str, stream: str, subject: str, count: int | None) -> None:
    """Print events, and acknowledge those that were handled."""
    client = await nats.connect(server)
    try:
        subscription = await client.jetstream().pull_subscribe(
            subject, durable="example", stream=stream
        )
        event = NormalizedEvent()
        seen = 0
        while count is None or seen < count:
            try:
                messages = await subscription.fetch(100, timeout=1)
            except NothingYet:
                continue
            for message in messages:
                event.ParseFromString(message.data)
                print(f"{event.exchange} {event.symbol} {event.WhichOneof('payload')}")
                await message.ack()
            seen += len(messages)
    finally:
        await client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="nats://localhost:4222")
    parser.add_argument("--stream", default="tardis")
    parser.add_argument("--subject", default=">", help="subjects to read, with wildcards")
    parser.add_argument("--count", type=int, help="stop after about so many events")
    arguments = parser.parse_args()
    asyncio.run(consume(arguments.server, arguments.stream, arguments.subject, arguments.count))


if __name__ == "__main__":
    main()
