"""What trades paid beside the middle of the book, from two tables that are joined by time.

    python examples/tables.py                       # the bundled sample
    python examples/tables.py --parquet trades.parquet   # and keep the trades, batch by batch

The bundled sample is synthetic: generated, no exchange ever sent it. For real data leave
`sample=True` out and set TM_API_KEY; the first day of every month needs no key.
"""

import argparse
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq

from tardis_machine import replay_normalized

ASKED: dict[str, Any] = {
    "exchange": "deribit",
    "from_": "2024-03-01T00:00",
    "to": "2024-03-01T00:05",
    "sample": True,
}


def paid() -> pd.DataFrame:
    """Join each trade with the quote that was known when it arrived."""
    trades = replay_normalized(data_types=["trade"], **ASKED).to_pandas(
        columns=["symbol", "local_timestamp", "side", "price", "amount"]
    )
    quotes = replay_normalized(data_types=["quote"], **ASKED).to_pandas(
        levels="wide", columns=["symbol", "local_timestamp", "bids[0].price", "asks[0].price"]
    )
    quotes["middle"] = (quotes["bids[0].price"] + quotes["asks[0].price"]) / 2
    # Tables are in the order of local time, which is what a join by time needs.
    joined = pd.merge_asof(trades, quotes, on="local_timestamp", by="symbol")
    sign = joined["side"].map({"buy": 1, "sell": -1})
    joined["paid_bp"] = sign * (joined["price"] / joined["middle"] - 1) * 10_000
    return joined.groupby("symbol").agg(trades=("price", "size"), paid_bp=("paid_bp", "mean"))


def keep(path: Path) -> int:
    """Write trades as they are replayed, exact: no more than a batch of them is in memory."""
    batches = replay_normalized(data_types=["trade"], **ASKED).to_arrow_batches(numbers="decimal")
    with pq.ParquetWriter(path, batches.schema) as file:
        return sum(file.write_batch(batch) or batch.num_rows for batch in batches)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--parquet", type=Path, help="where to keep the trades")
    arguments = parser.parse_args()
    print(paid().round(3).to_string())
    if arguments.parquet:
        print(f"{keep(arguments.parquet)} trades in {arguments.parquet}")
