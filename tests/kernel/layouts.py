"""Layouts of books and tables that mappers pass to an emitter."""

from tardis_machine.engine import FLAT, PAIRS, Keyed, Objects, Positions, Sided, Signed

TABLE = Keyed(
    rows="data",
    action="action",
    snapshot="partial",
    removal="delete",
    selection="filter",
    symbol="symbol",
    id="id",
    side="side",
    price="price",
    amount="size",
    timestamp="timestamp",
    bid="Buy",
)
LAYOUTS = (
    PAIRS,
    FLAT,
    Objects(price="p", amount="q"),
    Positions(price=1, amount=2),
    Positions(price=1, amount=2, action=0, removed="delete"),
    Positions(price=-2, amount=-1),
)
ROW_LAYOUTS = (
    Sided(side="side", price="p", amount="q", bid="b"),
    Sided(side=0, price=1, amount=2, bid="b"),
    Signed(price=0, amount=1),
    Signed(price=0, amount=2, count=1),
)
