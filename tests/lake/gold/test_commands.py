"""The commands around Gold."""

import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.extras import MissingExtraError
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.gold import report
from tardis_machine.lake.gold.report import Missing, Span
from tardis_machine.lake.tables import MANIFEST, Tables
from tardis_machine.lake.units import Done, Unit
from tardis_machine.lake.verify import Difference, Sum
from tests.lake.days import DAY_US, MINUTE_US, START_US

Said = pytest.CaptureFixture[str]


def test_gold_says_what_it_did(sampled: Tables, capsys: Said) -> None:
    arguments = ["--only", "bars,liquidation_totals", "--bars", "trade_bar_1m"]
    assert main(["gold", "--tables", sampled.root, *arguments]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["bars/trade_bar_1m", "liquidation_totals/1m"]
    assert all(" 0 days " in line for line in lines)


@pytest.mark.parametrize(
    ("flag", "value", "said"),
    [
        ("--bars", "trade", "expected a data type like trade_bar_1m"),
        ("--books", "trade_bar_1m", "expected a data type like book_snapshot_10_1s"),
        ("--intervals", "7m", "no interval that a day is made of"),
        ("--only", "bar", "expected some of bars, books"),
    ],
)
def test_what_gold_cannot_make_is_refused(flag: str, value: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"{flag} '{value}'.*{said}"):
        main(["gold", "--tables", "lake", flag, value])


def test_quality_is_reported_and_drawn(sampled: Tables, tmp_path: Path, capsys: Said) -> None:
    picture = tmp_path / "quality.svg"
    drawn = ["--picture", str(picture), "--picture-title", "synthetic sample data"]
    assert main(["quality", "--tables", sampled.root, *drawn]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["exchange", "data"]
    [trades] = [line.split() for line in lines if line.startswith("bitmex") and " trade " in line]
    assert trades[:7] == ["bitmex", "trade", "replay", "1", "2", "3", "288"]
    assert "disconnects: deribit 1 (replay)" in lines
    assert "<!-- synthetic sample data: what the tables have" in picture.read_text()
    narrow = ["--exchange", "bitmex", "--from", "2024-03-01", "--to", "2024-03-01T00:01"]
    assert main(["quality", "--tables", sampled.root, *narrow]) == 0
    assert "deribit" not in capsys.readouterr().out


def test_a_symbol_is_drawn(sampled: Tables, tmp_path: Path, capsys: Said) -> None:
    picture = tmp_path / "XBTUSD.png"
    command = ["plot", "--tables", sampled.root, "--exchange", "bitmex", "--symbol"]
    assert main([*command, "XBTUSD", "--picture", str(picture)]) == 0
    said = capsys.readouterr().out
    assert said.endswith("bars, top_of_book, derivatives, liquidation_totals\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(LakeError, match=r"Gold has no trade_bar_1m of NONE on bitmex"):
        main([*command, "NONE", "--picture", str(picture)])
    with pytest.raises(LakeError, match=r"more than 10 rows of top_of_book"):
        main([*command, "XBTUSD", "--limit", "10", "--picture", str(picture)])
    with pytest.raises(LakeError, match=r"--picture .*plot.odd"):
        main([*command, "XBTUSD", "--picture", str(tmp_path / "plot.odd")])
    with pytest.raises(ConfigError, match=r"--exchange 'a,b': expected one"):
        main(["plot", "--tables", "lake", "--symbol", "X", "--exchange", "a,b"])


def test_without_matplotlib_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for command in (
        ["quality", "--picture", "a.svg"],
        ["plot", "--exchange", "a", "--symbol", "b"],
    ):
        with pytest.raises(MissingExtraError, match=r"pip install 'tardis-machine\[plot\]'"):
            main([*command, "--tables", "lake"])


def test_units_that_miss_are_between_those_that_are_there() -> None:
    def done(data_type: str, start: int, end: int, layer: str = "silver") -> Done:
        return Done("bitmex", START_US + start, START_US + end, layer, data_type, None)

    lines = [
        done("trade", 3 * DAY_US, 4 * DAY_US),
        done("trade", 0, DAY_US),
        done("trade", DAY_US, DAY_US + MINUTE_US),
        done("trade", DAY_US, 3 * DAY_US, "bronze"),
        done("book_change", 0, DAY_US),
        done("disconnect", 0, DAY_US),
        done("disconnect", 3 * DAY_US, 4 * DAY_US),
    ]
    missing = Missing("bitmex", "trade", START_US + DAY_US + MINUTE_US, START_US + 3 * DAY_US)
    assert report.missing(lines, Span()) == [missing]
    assert str(missing) == "bitmex trade 2024-03-02T00:01 to 2024-03-04T00:00"
    assert report.missing(lines, Span(exchanges=["deribit"])) == []
    assert report.missing(lines, Span(end=START_US + DAY_US)) == []


@pytest.mark.parametrize(
    "command",
    [
        ["verify"],
        ["maintain"],
        ["quarantine"],
        ["quality"],
        ["register", "--database", "md"],
        ["drop-days", "--before", "2024-03-02", "--yes"],
    ],
    ids=lambda command: command[0],
)
def test_a_path_without_tables_is_refused(command: list[str], tables: Tables) -> None:
    with pytest.raises(ConfigError, match=rf"--tables '{tables.root}': has no tables"):
        main([*command, "--tables", tables.root])


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ["--from", "2024-03-02", "--to", "2024-03-01"],
            r"--to '2024-03-01': .* --from 2024-03-02",
        ),
        (
            ["--from", "2024-03-02", "--to", "2024-03-02"],
            r"--to '2024-03-02': expected a time after",
        ),
        (
            ["--from", "yesterday"],
            r"--from 'yesterday': expected a day or time, such as 2024-03-01",
        ),
        (["--to", "2024-03-32"], r"--to '2024-03-32': expected a day or time"),
    ],
)
@pytest.mark.parametrize(
    "command",
    [["verify"], ["quality"], ["plot", "--exchange", "bitmex", "--symbol", "XBTUSD"]],
    ids=lambda command: command[0],
)
def test_times_of_which_there_are_none_are_refused(
    command: list[str], flags: list[str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        main([*command, "--tables", "lake", *flags])


def test_quality_that_nobody_made_yet_says_who_does(tables: Tables) -> None:
    tables.create(MANIFEST)
    with pytest.raises(LakeError, match=rf"quality yet: `lake gold --tables {tables.root}` makes"):
        main(["quality", "--tables", tables.root])


def test_a_day_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--before '2024-03-01T00:00': expected a day such as"):
        main(["drop-days", "--tables", "lake", "--before", "2024-03-01T00:00"])


@pytest.mark.parametrize(
    ("given", "most"),
    [
        ("drop-days --keep-days 800000", "36500"),
        ("gold --every-s 1e10", "31536000"),
        ("show trades --limit 2147483648", "1000000000"),
        ("quality --limit 2147483648", "1000000000"),
        ("plot --exchange bitmex --symbol XBTUSD --limit 2147483647", "1000000000"),
    ],
)
def test_more_than_can_be_counted_is_refused(given: str, most: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{given.split()[-2]} .*: expected \d to {most}$"):
        main([*given.split(), "--tables", "lake"])


def test_a_command_comes_before_its_flags() -> None:
    with pytest.raises(ConfigError, match=r"lake: a command comes before --tables: expected one"):
        main(["--tables", "lake", "show", "trades"])


def test_a_path_may_have_no_tables_yet(tables: Tables, capsys: Said) -> None:
    assert main(["silver", "--tables", tables.root]) == 0
    assert capsys.readouterr().out == f"there are no events in {tables.root} yet\n"
    assert main(["gold", "--tables", tables.root, "--only", "liquidation_totals"]) == 0
    assert not Path(tables.root, "silver").exists()


def test_verify_refuses_an_exchange_that_there_is_not() -> None:
    with pytest.raises(ConfigError, match=r"--exchange 'bitmexx': expected one of .*bitmex"):
        main(["verify", "--tables", "lake", "--exchange", "bitmexx"])


def test_what_to_redo_is_told_as_one_types_it(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    tables = Tables(spark, str(tmp_path / "my lake"))
    tables.create(MANIFEST)
    unit = Unit("bitmex", START_US, START_US + MINUTE_US, ("trade",), None)
    found = [Difference(unit, "trade", Sum(1, 1), Sum(2, 2))]
    monkeypatch.setattr("tardis_machine.lake.verify.verify", lambda *_: found)
    assert main(["verify", "--sample-data", "--tables", tables.root]) == 1
    assert capsys.readouterr().out.endswith(f" --to-tables '{tables.root}'\n")


def test_days_are_dropped_only_if_named(sampled: Tables, capsys: Said) -> None:
    command = ["drop-days", "--tables", sampled.root]
    assert main([*command, "--before", "2024-03-02", "--layers", "gold", "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "bars would lose 2 days of exchanges, 2024-03-01 to 2024-03-01" in said
    for wrong in ([], ["--before", "2024-03-02", "--keep-days", "3"]):
        with pytest.raises(ConfigError, match=r"--before.*--keep-days, not both"):
            main([*command, *wrong])
    with pytest.raises(ConfigError, match="--before 'yesterday'"):
        main([*command, "--before", "yesterday"])
