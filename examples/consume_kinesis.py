"""Read Bronze events from a Kinesis stream, shard by shard, in the order of their positions."""

import argparse
import time
from typing import Any

import boto3

from tardis_machine.bronze import NormalizedEvent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stream", default="bronze")
    parser.add_argument("--region")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--count", type=int, help="stop after so many events")
    arguments = parser.parse_args()
    kinesis = boto3.client(
        "kinesis", region_name=arguments.region, endpoint_url=arguments.endpoint_url
    )
    iterators: dict[str, Any] = {
        shard["ShardId"]: kinesis.get_shard_iterator(
            StreamName=arguments.stream,
            ShardId=shard["ShardId"],
            ShardIteratorType="TRIM_HORIZON",
        )["ShardIterator"]
        for shard in kinesis.list_shards(StreamName=arguments.stream)["Shards"]
    }
    seen: set[str] = set()
    while iterators and (arguments.count is None or len(seen) < arguments.count):
        for shard, iterator in list(iterators.items()):
            answer = kinesis.get_records(ShardIterator=iterator, Limit=1000)
            events = [NormalizedEvent.FromString(record["Data"]) for record in answer["Records"]]
            # Order holds between calls of the publisher; who needs it inside one sorts.
            for event in sorted(events, key=lambda event: event.position):
                if event.event_id not in seen:
                    seen.add(event.event_id)
                    print(f"{event.exchange} {event.symbol} {event.WhichOneof('payload')}")
            if answer.get("NextShardIterator") is None:  # the shard was split or merged
                del iterators[shard]
            else:
                iterators[shard] = answer["NextShardIterator"]
        time.sleep(0.2)  # a shard takes five reads a second


if __name__ == "__main__":
    main()
