"""Read Bronze events from Kafka: the value of a record is a NormalizedEvent."""

import argparse

from confluent_kafka import Consumer, KafkaException

from tardis_machine.bronze import NormalizedEvent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--brokers", default="localhost:9092")
    parser.add_argument("--topic", default="bronze")
    parser.add_argument("--count", type=int, help="stop after so many events")
    arguments = parser.parse_args()
    consumer = Consumer(
        {
            "bootstrap.servers": arguments.brokers,
            "group.id": "example",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([arguments.topic])
    seen: set[str] = set()
    event = NormalizedEvent()
    try:
        while arguments.count is None or len(seen) < arguments.count:
            record = consumer.poll(1.0)
            if record is None:
                continue
            if record.error():
                raise KafkaException(record.error())
            event.ParseFromString(record.value())
            # Delivery is at least once; whoever must not count twice looks at the id. (A process
            # that runs for long keeps the ids of its window only, or leaves this to Silver.)
            if event.event_id in seen:
                continue
            seen.add(event.event_id)
            case = event.WhichOneof("payload")
            if case == "trade":
                trade = event.trade
                print(f"{event.exchange} {event.symbol} {trade.price_str} x {trade.qty_str}")
            else:
                print(f"{event.exchange} {event.symbol} {case}")
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
