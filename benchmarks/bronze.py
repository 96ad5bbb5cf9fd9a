"""Bronze: envelopes per second for each payload, beside what Protobuf alone takes.

    python -m benchmarks.bronze [--messages 20000] [--rounds 11]

`encode` is the publisher's path: normalized NDJSON in batches of 64 KB to finished envelopes with
event ids. `decode` is the way back to messages. The yardstick is upb filling one reused message
with constants, every field of a real envelope of that payload, and serializing it; it reads no
JSON, formats no number and makes no id. All three are run in turns, CPU time is taken, and the best
round counts. `json` is what the messages themselves take to be read and printed, without Bronze.

A second table has the whole way of a program: history replayed from its cache and encoded batch by
batch, on each kernel, in microseconds of CPU time an event.
"""

import argparse
import platform
import random
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import google.protobuf
from google.protobuf.message import Message as ProtobufMessage

from benchmarks.generate import DIRECTORY, WORKLOADS, Workload, generate
from benchmarks.generate import START as REPLAYED
from tardis_machine import messages
from tardis_machine.bronze import Context, Encoder, Origin, decode
from tardis_machine.generated.lakehouse.bronze.v1 import normalized_event_pb2 as pb
from tardis_machine.history import History
from tardis_machine.messages import (
    BookChange,
    BookLevel,
    BookSnapshot,
    BookSnapshotLevel,
    BookTicker,
    DerivativeTicker,
    Liquidation,
    Message,
    Milliseconds,
    OptionSummary,
    Time,
    Trade,
    TradeBar,
)
from tardis_machine.replays import replay_normalized
from tests.kernel.implementations import chosen, encoders, require_both

BATCH: Final = 64 * 1024
START: Final = int(datetime(2024, 3, 1, tzinfo=UTC).timestamp() * 1_000_000)
CONTEXT: Final = Context(
    producer_id="tm-01",
    origin=Origin.REPLAY,
    ingest_us=START,
    request_id="01HQV5Z8Y6W3R2K1",
    transport="http",
    route="/replay-normalized",
)
MINUTES: Final = 5
PER_MINUTE: Final = 20_000
SYMBOLS: Final = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")


class Feed:
    """Messages such as an exchange sends: few symbols, prices that wander, amounts that vary."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._local = START
        self._price = 61130.0

    def common(self) -> dict[str, Any]:
        self._local += self._random.randrange(50, 5000)
        return {
            "symbol": self._random.choice(SYMBOLS),
            "exchange": "binance-futures",
            "timestamp": Milliseconds.of(self._local - 3000),
            "local_timestamp": Time(self._local),
        }

    def price(self) -> float:
        self._price += self._random.choice((-0.1, 0.0, 0.0, 0.1))
        return round(self._price, 1)

    def amount(self) -> float:
        return round(self._random.expovariate(2) + 0.001, 3)

    def levels(self, count: int) -> list[tuple[float, float]]:
        return [
            (round(self.price() + index / 10, 1), self._random.choice((0.0, self.amount())))
            for index in range(count)
        ]

    def trade(self) -> Message:
        return Trade(
            id=str(self._random.randrange(4_000_000_000, 5_000_000_000)),
            price=self.price(),
            amount=self.amount(),
            side=self._random.choice(("buy", "sell")),
            **self.common(),
        )

    def book_change(self) -> Message:
        bids, asks = (
            [BookLevel(price=price, amount=amount) for price, amount in self.levels(10)]
            for _ in range(2)
        )
        return BookChange(is_snapshot=False, bids=bids, asks=asks, **self.common())

    def book_snapshot(self) -> Message:
        bids, asks = (
            [BookSnapshotLevel(price=price, amount=amount) for price, amount in self.levels(50)]
            for _ in range(2)
        )
        return BookSnapshot(
            name="book_snapshot_50_0ms",
            depth=50,
            interval=0.0,
            bids=bids,
            asks=asks,
            **self.common(),
        )

    def quote(self) -> Message:
        bid, ask = (BookSnapshotLevel(price=self.price(), amount=self.amount()) for _ in range(2))
        return BookSnapshot(
            name="quote", depth=1, interval=0.0, bids=[bid], asks=[ask], **self.common()
        )

    def book_ticker(self) -> Message:
        return BookTicker(
            ask_amount=self.amount(),
            ask_price=self.price(),
            bid_price=self.price(),
            bid_amount=self.amount(),
            **self.common(),
        )

    def derivative_ticker(self) -> Message:
        return DerivativeTicker(
            last_price=self.price(),
            open_interest=1e5 + self.amount(),
            funding_rate=round(self._random.gauss(0, 1e-4), 8),
            funding_timestamp=Milliseconds(START + 28_800_000_000),
            index_price=self.price(),
            mark_price=self.price(),
            **self.common(),
        )

    def liquidation(self) -> Message:
        return Liquidation(price=self.price(), amount=self.amount(), side="buy", **self.common())

    def option_summary(self) -> Message:
        return OptionSummary(
            option_type="call",
            strike_price=70000.0,
            expiration_date=Milliseconds(START + 86_400_000_000),
            best_bid_price=round(self.amount(), 4),
            best_bid_amount=self.amount(),
            best_bid_iv=50.1,
            best_ask_price=round(self.amount(), 4),
            best_ask_amount=self.amount(),
            best_ask_iv=52.3,
            last_price=self.amount(),
            open_interest=self.amount(),
            mark_price=self.amount(),
            mark_iv=51.2,
            delta=0.51234,
            gamma=0.00012,
            vega=12.34567,
            theta=-23.45678,
            rho=1.23456,
            underlying_price=self.price(),
            underlying_index="SYN.BTC-28JUN24",
            **self.common(),
        )

    def trade_bar(self) -> Message:
        return TradeBar(
            name="trade_bar_10s",
            interval=10_000.0,
            kind="time",
            open=self.price(),
            high=self.price(),
            low=self.price(),
            close=self.price(),
            volume=self.amount(),
            buy_volume=self.amount(),
            sell_volume=self.amount(),
            trades=17,
            vwap=self.price() + 0.123456789,
            open_timestamp=Milliseconds.of(self._local),
            close_timestamp=Milliseconds.of(self._local),
            **self.common(),
        )


def yardstick(value: bytes) -> Callable[[int], None]:
    """Make the loop one would write by hand to fill and serialize this very envelope."""
    before = ["m0 = NormalizedEvent()"]
    inside: list[str] = []
    _assign(pb.NormalizedEvent.FromString(value), "m0", before, inside)
    lines = ["def run(count):", *(f"    {line}" for line in before), "    for _ in range(count):"]
    lines += [f"        {line}" for line in (*inside, "m0.SerializeToString()")]
    scope: dict[str, Any] = {"NormalizedEvent": pb.NormalizedEvent}
    exec("\n".join(lines), scope)
    run: Callable[[int], None] = scope["run"]
    return run


def _assign(message: ProtobufMessage, name: str, before: list[str], inside: list[str]) -> None:
    for field, value in message.ListFields():
        target = f"{name}.{field.name}"
        if field.type != field.TYPE_MESSAGE:
            inside.append(f"{target} = {value!r}")
        elif field.message_type.GetOptions().map_entry:
            inside.extend(f"{target}[{key!r}] = {item!r}" for key, item in value.items())
        elif field.is_repeated:
            inside.append(f"del {target}[:]")
            for item in value:
                inside.append(f"item = {target}.add()")
                _assign(item, "item", before, inside)
        else:
            part = f"m{len(before)}"
            before.append(f"{part} = {target}")
            _assign(value, part, before, inside)


def batches(ndjson: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(ndjson):
        end = ndjson.find(b"\n", min(start + BATCH, len(ndjson)) - 1) + 1
        yield ndjson[start:end]
        start = end


def measure(works: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Give the best CPU time of each; in turns, so that all have the same machine."""
    best = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            best[name] = min(best[name], time.process_time() - start)
    return best


def benchmark(make: Callable[[], Message], count: int, rounds: int) -> tuple[float, ...]:
    ndjson = messages.encode_lines([make() for _ in range(count)])
    inputs = list(batches(ndjson))
    python, compiled = encoders(CONTEXT)
    values = compiled.encode_lines(ndjson).values()
    assert len(values) == count
    fill = yardstick(values[count // 2])

    def encode_all(encoder: Encoder) -> None:
        for batch in inputs:
            encoder.encode_lines(batch)

    def decode_all() -> None:
        for value in values:
            decode(value)

    def json_all() -> None:
        for batch in inputs:
            messages.encode_lines(messages.decode_lines(batch))

    seconds = measure(
        {
            "python": lambda: encode_all(python),
            "compiled": lambda: encode_all(compiled),
            "yardstick": lambda: fill(count),
            "decode": decode_all,
            "json": json_all,
        },
        rounds,
    )
    return (len(values[0]), *(count / each for each in seconds.values()))


def whole_way(kernel_name: str, workload: Workload) -> tuple[int, float, float]:
    """Replay trades and book changes, and encode them: events, and microseconds for each."""
    cache_dir = generate(workload, DIRECTORY, count=MINUTES, messages=MINUTES * PER_MINUTE)
    with chosen(kernel_name), History(cache_dir=cache_dir) as history:
        encoder = Encoder(CONTEXT)
        encoding = 0.0
        position = 0
        started = time.process_time()
        with replay_normalized(
            workload.exchange,
            from_=REPLAYED,
            to=REPLAYED + timedelta(minutes=MINUTES),
            symbols=workload.symbols,
            data_types=("trade", "book_change"),
            history=history,
        ) as replay:
            for batch in replay.batches():
                began = time.process_time()
                encoder.encode_lines(batch.data, position)
                encoding += time.process_time() - began
                position += batch.count
        took = time.process_time() - started
    return position, took / position * 1e6, encoding / position * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    require_both()
    feed = Feed(seed=1)
    makers: dict[str, tuple[Callable[[], Message], int]] = {
        "trade": (feed.trade, 1),
        "bookChange (10 + 10 levels)": (feed.book_change, 4),
        "bookSnapshot (50 + 50)": (feed.book_snapshot, 20),
        "quote": (feed.quote, 1),
        "bookTicker": (feed.book_ticker, 1),
        "derivativeTicker": (feed.derivative_ticker, 1),
        "liquidation": (feed.liquidation, 1),
        "optionSummary": (feed.option_summary, 2),
        "tradeBar": (feed.trade_bar, 1),
    }
    runtime = f"Python {platform.python_version()}, protobuf {google.protobuf.__version__}"
    print(f"Thousands per second of CPU time; {runtime}\n")
    print("| payload | bytes | Python | share | compiled | share | yardstick | decode | json |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name, (make, heavier) in makers.items():
        size, python, compiled, bare, decoded, json = benchmark(
            make, given.messages // heavier, given.rounds
        )
        encoded = (f"{rate / 1000:.0f} | {rate / bare:.2f}" for rate in (python, compiled))
        rest = (f"{rate / 1000:.0f}" for rate in (bare, decoded, json))
        print(f"| {name} | {size} | {' | '.join(encoded)} | {' | '.join(rest)} |")
    print("\n| replayed and encoded | kernel | events | µs of CPU an event | of these, encoding |")
    print("|---|---|--:|--:|--:|")
    for workload in WORKLOADS:
        for name in ("python", "compiled"):
            whole_way(name, workload)  # the first replay of a file looks for damage, too
            events, whole, encoding = whole_way(name, workload)
            print(f"| {workload.exchange} | {name} | {events} | {whole:.2f} | {encoding:.2f} |")


if __name__ == "__main__":
    main()
