"""Where tables can be, and what is refused."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tardis_machine.cli.lake import main
from tardis_machine.config import ConfigError
from tardis_machine.lake.errors import LakeError
from tardis_machine.lake.tables import SILVER, Tables


@pytest.mark.parametrize("command", [["show", "trades"], ["quality"], ["maintain"]])
@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("rel:x", r"'rel:x': is neither a folder nor a URL: .*; a folder of that name is \./rel:x"),
        ("s3a:lake", r"is neither a folder nor a URL: expected .*s3a://bucket/lake"),
        ("s3a://", r"is neither a folder nor a URL"),
        ("file", r"is a file: expected a folder, such as /data/lake"),
        ("file/below/it", r"is below .*/file, which is a file"),
    ],
)
def test_what_can_hold_no_tables_is_refused_before_spark_starts(
    command: list[str], place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").touch()
    with pytest.raises(ConfigError, match=rf"--tables .*{said}"):
        main([*command, "--tables", place])


@pytest.mark.parametrize("flag", ["--to-tables", "--manifest", "--checkpoint"])
def test_what_can_hold_nothing_is_refused_by_its_flag(flag: str) -> None:
    own = ["--exchange", "bitmex", "--types", "trade", "--from", "2024-03-01", "--to", "2024-03-02"]
    command = ["backfill", *own]
    if flag == "--checkpoint":
        command = ["stream", "--from-bus", "redis", "--redis-stream", "s", "--to-tables", "tables"]
    with pytest.raises(ConfigError, match=rf"{flag} 'rel:x': is neither a folder nor a URL"):
        main([*command, flag, "rel:x"])


def test_tables_of_odd_paths_are_where_they_are_said_to_be(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for place, folder in (("./odd:name", "odd:name"), ("~/own", "own"), ("sub/a:b", "sub/a:b")):
        tables = Tables(spark, place)
        tables.create(SILVER["trade"])
        assert tables.read(SILVER["trade"]).count() == 0
        assert (tmp_path / folder / "silver" / "trades" / "_delta_log").is_dir()
    with pytest.raises(LakeError, match=r"nowhere://x/y: Spark has no file system"):
        main(["show", "trades", "--tables", "nowhere://x/y"])
