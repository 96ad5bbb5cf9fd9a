"""Read Bronze events from an SQS queue, and delete those that were handled."""

import argparse
import base64

import boto3

from tardis_machine.bronze import NormalizedEvent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queue-url", required=True)
    parser.add_argument("--region")
    parser.add_argument("--endpoint-url")
    parser.add_argument("--count", type=int, help="stop after about so many events")
    arguments = parser.parse_args()
    sqs = boto3.client("sqs", region_name=arguments.region, endpoint_url=arguments.endpoint_url)
    event = NormalizedEvent()
    handled = 0
    while arguments.count is None or handled < arguments.count:
        answer = sqs.receive_message(
            QueueUrl=arguments.queue_url, MaxNumberOfMessages=10, WaitTimeSeconds=1
        )
        messages = answer.get("Messages", [])
        for message in messages:
            event.ParseFromString(base64.b64decode(message["Body"]))
            print(f"{event.exchange} {event.symbol} {event.WhichOneof('payload')}")
        if messages:
            sqs.delete_message_batch(
                QueueUrl=arguments.queue_url,
                Entries=[
                    {"Id": str(number), "ReceiptHandle": message["ReceiptHandle"]}
                    for number, message in enumerate(messages)
                ],
            )
        handled += len(messages)


if __name__ == "__main__":
    main()
