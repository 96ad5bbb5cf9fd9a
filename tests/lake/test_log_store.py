"""Delta's log on this machine: listed from where it is asked for, each commit one writer's."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from tardis_machine.lake.tables import Tables

NAMES = (
    "00000000000000000001.json",
    ".00000000000000000001.json.crc",
    "00000000000000000002.checkpoint.parquet",
    "00000000000000000002.crc",
    "00000000000000000002.json",
    "00000000000000000010.json",
    ".00000000000000000011.json.0815.tmp",
    "_last_checkpoint",
    "a name, with 100 % of its signs",
)


class Store:
    """A store of the JVM, on one folder."""

    def __init__(self, spark: SparkSession, name: str, folder: Path) -> None:
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()
        self._store = getattr(self._jvm, name)(self._configuration)
        self._folder = folder

    def names(self, start: str) -> list[tuple[str, int, bool]]:
        listed = self._store.listFrom(self._path(start), self._configuration)
        found = []
        while listed.hasNext():
            each = listed.next()
            found.append((each.getPath().toString(), each.getLen(), each.isDirectory()))
        return found

    def write(self, name: str, lines: Sequence[str]) -> bool:
        """Write a commit; False if there is one."""
        given = self._jvm.java.util.ArrayList()
        for line in lines:
            given.add(line)
        try:
            self._store.write(self._path(name), given.iterator(), False, self._configuration)
        except Py4JJavaError as error:
            kind = error.java_exception.getClass().getName()
            assert kind == "java.nio.file.FileAlreadyExistsException"
            return False
        return True

    def _path(self, name: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(str(self._folder / name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "50 % of it" / "_delta_log"
    made.mkdir(parents=True)
    return made


@pytest.fixture
def store(spark: SparkSession, folder: Path) -> Store:
    return Store(spark, "tardismachine.lake.LocalLogStore", folder)


@pytest.fixture
def deltas(spark: SparkSession, folder: Path) -> Store:
    """Delta's own."""
    return Store(spark, "io.delta.storage.HDFSLogStore", folder)


def test_it_lists_what_deltas_own_does(store: Store, deltas: Store, folder: Path) -> None:
    for size, name in enumerate(NAMES):
        (folder / name).write_bytes(b"x" * size)
    (folder / "_sidecars").mkdir()
    for start in (*NAMES, "00000000000000000000", "00000000000000000003", "z"):
        assert store.names(start) == deltas.names(start)
    assert len(store.names("0")) == 8


def test_a_folder_that_is_not_there(store: Store, folder: Path) -> None:
    folder.rmdir()
    with pytest.raises(Py4JJavaError, match="FileNotFoundException: No such file or directory"):
        store.names("0")


def test_a_commit_is_read_as_it_was_written(store: Store, folder: Path) -> None:
    assert store.write("1.json", ["{}", '{"ü":1}'])
    assert (folder / "1.json").read_text() == '{}\n{"ü":1}\n'
    assert not store.write("1.json", ["another"])
    assert (folder / "1.json").read_text() == '{}\n{"ü":1}\n'
    assert [each.name for each in folder.iterdir()] == ["1.json"]


def test_of_writers_at_once_one_has_the_commit(store: Store, folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        for number in range(50):
            name = f"{number}.json"
            tries = [pool.submit(store.write, name, [f"by {each}"] * 500) for each in range(4)]
            winners = [each for each, tried in enumerate(tries) if tried.result()]
            assert len(winners) == 1
            assert (folder / name).read_text() == f"by {winners[0]}\n" * 500


def test_tables_here_use_it(spark: SparkSession, tables: Tables) -> None:
    spark.range(3).write.format("delta").save(f"{tables.root}/numbers")
    log = Path(tables.root, "numbers", "_delta_log")
    assert (log / "00000000000000000000.json").exists()
    assert not list(log.glob(".*.json.crc"))  # which Delta's own writes
