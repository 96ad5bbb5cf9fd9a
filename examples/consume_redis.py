"""Read Bronze events from a Redis stream, as a member of a group that remembers its place."""

import argparse

import redis

from tardis_machine.bronze import NormalizedEvent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="redis://localhost:6379")
    parser.add_argument("--stream", default="bronze")
    parser.add_argument("--count", type=int, help="stop after about so many events")
    arguments = parser.parse_args()
    event = NormalizedEvent()
    handled = 0
    with redis.Redis.from_url(arguments.url) as client:
        try:
            client.xgroup_create(arguments.stream, "example", id="0", mkstream=True)
        except redis.ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):  # it is there from the last time
                raise
        while arguments.count is None or handled < arguments.count:
            answer = client.xreadgroup(
                "example", "one", {arguments.stream: ">"}, count=100, block=1000
            )
            for _, entries in answer:
                for _, fields in entries:
                    event.ParseFromString(fields[b"value"])
                    print(f"{event.exchange} {event.symbol} {event.WhichOneof('payload')}")
                client.xack(arguments.stream, "example", *(entry for entry, _ in entries))
                handled += len(entries)


if __name__ == "__main__":
    main()
