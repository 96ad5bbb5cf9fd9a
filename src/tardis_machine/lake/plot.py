"""Pictures of what is in Gold."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from tardis_machine.extras import require
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold import GOLD
from tardis_machine.lake.gold.report import Span, minutes
from tardis_machine.lake.spans import literal
from tardis_machine.lake.tables import Tables

if TYPE_CHECKING:
    import pandas as pd
    from pyspark.sql import DataFrame

_RISING: Final = "#1a9850"
_FALLING: Final = "#d73027"
_CALM: Final = "#4575b4"
_MOST_STREAMS: Final = 12
_POINTS: Final = 2000
_MINUTE_US: Final = 60_000_000
_INCHES: Final = (12.0, 2.4)


Draw = Callable[[Any, "pd.DataFrame"], None]
"""Draws rows on axes."""


class _Panel(NamedTuple):
    """A part of a picture: its height, what draws it, and what is drawn."""

    height: float
    draw: Draw
    frame: "pd.DataFrame"


def market(
    tables: Tables, symbol: str, span: Span, *, bars: str, picture: str, title: str, limit: int
) -> list[str]:
    """Draw a symbol: its bars, and spread, basis and liquidations where Gold has them.

    Tells which tables are in the picture.
    """
    matplotlib()
    drawn: dict[str, list[_Panel]] = {}
    for name, panels in _MARKET.items():
        gold = GOLD[name].table
        if not tables.exists(gold):
            continue
        time = "event_ts" if "event_ts" in gold.columns else "start_ts"
        own = f"symbol = {literal(symbol)} AND {span.condition(time)}"
        rows = tables.read(gold).where(own)
        if name == "bars":
            rows = rows.where(f"name = {literal(bars)}")
        frame = _frame(rows.withColumnRenamed(time, "time"), name, limit)
        if not frame.empty:
            drawn[name] = [_Panel(height, draw, frame) for height, draw in panels]
    if "bars" not in drawn:
        raise LakeError(
            f"Gold has no {bars} of {symbol} on {', '.join(span.exchanges)} in that time: "
            f"`lake gold --bars {bars}` makes them from Silver's trades"
        )
    shown = f"{symbol}, {', '.join(span.exchanges)}: {bars}"
    _draw(
        [panel for its_panels in drawn.values() for panel in its_panels],
        _titled(title, shown),
        picture,
    )
    return list(drawn)


def quality(tables: Tables, span: Span, *, picture: str, title: str) -> None:
    """Draw rows, latency and silences of the busiest streams over time."""
    matplotlib()
    from pyspark.sql import functions as f  # noqa: PLC0415 - an optional dependency

    found = minutes(tables, span)
    us = f.unix_micros("start_ts")
    [(first, last)] = found.agg(f.min(us), f.max(us)).collect()
    if first is None:
        raise LakeError("Gold says nothing of the quality in that time: `lake gold` finds it out")
    # So many minutes are one point that a picture can show them all.
    width = _MINUTE_US * -(-(last - first + _MINUTE_US) // (_MINUTE_US * _POINTS))
    totals = found.groupBy("exchange", "data_type").agg(f.sum("rows").alias("total"))
    busiest = totals.orderBy(f.desc("total")).limit(_MOST_STREAMS).drop("total")
    rows = (
        found.join(f.broadcast(busiest), ["exchange", "data_type"])
        .groupBy("exchange", "data_type", f.timestamp_micros(us - us % width).alias("time"))
        .agg(
            (f.sum("rows") * _MINUTE_US / width).alias("rows"),
            f.max("latency_p99_ms").alias("latency"),
            f.max("largest_gap_s").alias("gap"),
            f.max("disconnects").alias("disconnects"),
        )
    )
    frame = rows.orderBy("time").toPandas()
    panels = [
        _Panel(2, _streams("rows", "rows a minute"), frame),
        _Panel(1.5, _streams("latency", "latency, p99 ms"), frame),
        _Panel(1, _streams("gap", "longest silence, s"), frame),
    ]
    shown = "what the tables have, and when; dotted: disconnects"
    _draw(panels, _titled(title, shown), picture)


def _titled(title: str, shown: str) -> str:
    return f"{title}: {shown}" if title else shown


def matplotlib() -> Any:
    """Give matplotlib, set to draw into files, or say which extra has it."""
    module = require("matplotlib", extra="plot")
    module.use("agg")
    return module


def _frame(rows: "DataFrame", name: str, limit: int) -> "pd.DataFrame":
    """Fetch rows in order of time; too many for a picture are refused."""
    numbers = [
        f"CAST({column} AS DOUBLE) AS {column}" if kind.startswith("decimal") else column
        for column, kind in rows.dtypes
        if not kind.startswith("array")
    ]
    frame = rows.selectExpr(*numbers).orderBy("time").limit(limit + 1).toPandas()
    if len(frame) > limit:
        raise LakeError(
            f"more than {limit:,} rows of {name} are in that time: narrow it by --from and --to, "
            "choose coarser bars, or raise --limit"
        )
    return frame


def _prices(axes: Any, bars: "pd.DataFrame") -> None:
    colors = (bars.close >= bars.open).map({True: _RISING, False: _FALLING})
    axes.vlines(bars.time, bars.low, bars.high, colors=colors, linewidth=0.8)
    axes.vlines(bars.time, bars.open, bars.close, colors=colors, linewidth=2.5)
    axes.plot(bars.time, bars.vwap, color=_CALM, linewidth=0.7, label="vwap")
    axes.legend(loc="upper right", frameon=False)
    axes.set_ylabel("price")


def _volumes(axes: Any, bars: "pd.DataFrame") -> None:
    width = (bars.time - bars.start_ts).max()
    axes.bar(bars.time, bars.buy_volume, width, color=_RISING, label="buys")
    axes.bar(bars.time, -bars.sell_volume, width, color=_FALLING, label="sells")
    axes.set_ylabel("volume")
    axes.legend(loc="upper right", ncols=2, frameon=False)


def _spreads(axes: Any, tops: "pd.DataFrame") -> None:
    axes.step(tops.time, tops.spread_bps, where="post", linewidth=0.8, color=_CALM)
    axes.set_ylabel("spread, bps")
    axes.set_ylim(bottom=0)


def _bases(axes: Any, series: "pd.DataFrame") -> None:
    axes.step(series.time, series.basis_bps, where="post", linewidth=0.8, color=_CALM)
    axes.set_ylabel("basis, bps")


def _liquidations(axes: Any, totals: "pd.DataFrame") -> None:
    axes.vlines(totals.time, 0, totals.buy_amount, color=_RISING, linewidth=2, label="bought")
    axes.vlines(totals.time, 0, -totals.sell_amount, color=_FALLING, linewidth=2, label="sold")
    axes.set_ylabel("liquidated")
    axes.legend(loc="upper right", ncols=2, frameon=False)


_MARKET: Final[dict[str, list[tuple[float, Draw]]]] = {
    "bars": [(3, _prices), (1, _volumes)],
    "top_of_book": [(1, _spreads)],
    "derivatives": [(1, _bases)],
    "liquidation_totals": [(1, _liquidations)],
}
"""The tables of a market's picture, each with its panels."""


def _streams(column: str, label: str) -> Draw:
    def draw(axes: Any, frame: "pd.DataFrame") -> None:
        # As many colors as there are streams at most.
        axes.set_prop_cycle(color=matplotlib().colormaps["tab20"].colors)
        for (exchange, data_type), own in frame.groupby(["exchange", "data_type"]):
            axes.plot(
                own.time, own[column], marker=".", linewidth=0.9, label=f"{exchange} {data_type}"
            )
        for time in frame.time[frame.disconnects > 0].unique():
            axes.axvline(time, color="black", linewidth=0.6, linestyle=":")
        axes.set_yscale("symlog")
        axes.set_ylim(bottom=0)
        axes.set_ylabel(label)
        if column == "rows":
            axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize="small")

    return draw


def _draw(panels: list[_Panel], title: str, picture: str) -> None:
    from matplotlib import pyplot as plt  # noqa: PLC0415 - an optional dependency

    heights = [panel.height for panel in panels]
    width, unit = _INCHES
    figure, every = plt.subplots(
        len(panels),
        1,
        sharex=True,
        squeeze=False,
        figsize=(width, unit * sum(heights) ** 0.75),
        height_ratios=heights,
        layout="constrained",
    )
    try:
        for panel, axes in zip(panels, every[:, 0], strict=True):
            panel.draw(axes, panel.frame)
            axes.grid(alpha=0.25)
        every[0, 0].set_title(title)
        last = every[-1, 0]
        last.xaxis.set_major_formatter(_times(last.xaxis.get_major_locator()))
        last.set_xlabel("UTC")
        try:
            figure.savefig(picture, dpi=120)
        except (OSError, ValueError) as error:
            raise LakeError(f"--picture {picture}: {error}") from error
    finally:
        plt.close(figure)


def _times(locator: Any) -> Any:
    return require("matplotlib.dates", extra="plot").ConciseDateFormatter(locator)
