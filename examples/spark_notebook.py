"""A notebook's worth of Spark: history as a data frame, then as tables. Cells start with # %%."""

# %% A session on this machine, with Delta Lake; in a cluster's notebook use the one that is there.
import tempfile

from pyspark.sql import functions as f

from tardis_machine.cli import main as tardis_machine
from tardis_machine.lake.session import session
from tardis_machine.lake.sources import tardis
from tardis_machine.lake.tables import SILVER, Tables

spark = session()
tardis.register(spark)

# %% History as a data frame: the executors replay it themselves, here the bundled sample,
# which is synthetic.
trades = (
    spark.read.format("tardis")
    .option("exchange", "bitmex,binance-futures")
    .option("dataTypes", "trade")
    .option("from", "2024-03-01T00:00")
    .option("to", "2024-03-01T00:05")
    .option("sampleData", "true")
    .load()
)
minutes = (
    trades.groupBy("exchange", "symbol", f.window("event_ts", "1 minute").start.alias("minute"))
    .agg(
        f.count("*").alias("trades"),
        f.sum("amount").alias("volume"),
        (f.sum(f.col("price") * f.col("amount")) / f.sum("amount")).alias("vwap"),
    )
    .orderBy("exchange", "symbol", "minute")
)
minutes.show(20, truncate=False)

# %% The same as tables, by the command; running it again finds everything there already.
lake = tempfile.mkdtemp(prefix="lake-")
backfill = (
    "lake backfill --exchange bitmex --types trade,book_change,trade_bar_1m --sample-data "
    f"--from 2024-03-01T00:00 --to 2024-03-01T00:05 --to-tables {lake}"
)
assert tardis_machine(backfill.split()) == 0
assert tardis_machine(backfill.split()) == 0

# %% Silver: decimals are exact, times are in microseconds.
tables = Tables(spark, lake)
bars = tables.read(SILVER["tradeBar"]).orderBy("symbol", "event_ts")
bars.select("symbol", "event_ts", "open", "high", "low", "close", "volume").show(truncate=False)
assert tables.read(SILVER["trade"]).count() == trades.where("exchange = 'bitmex'").count()
