"""`tardis-machine config`: values and where they came from."""

import json
from pathlib import Path

import pytest

from tests.support.command import Run


def test_values_and_origins(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tm.toml"
    file.write_text('debug = true\n[kafka]\ntopic = "bronze"\n')
    done = run(
        *("config", "--json", "--config", str(file), "--port", "9000"),
        TM_API_KEY="s3cret",
        TM_KAFKA_BROKERS="a:1,b:2",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["port"] == {"value": 9000, "from": "flag", "where": "--port"}
    assert found["api_key"] == {"value": "***", "from": "environment", "where": "TM_API_KEY"}
    assert found["debug"] == {"value": True, "from": "file", "where": f"{file} debug"}
    assert found["kafka_topic"]["where"] == f"{file} [kafka] topic"
    assert found["kafka_brokers"]["value"] == ["a:1", "b:2"]
    assert found["host"] == {"value": None, "from": "default", "where": "default"}
    assert "s3cret" not in done.stdout


def test_a_file_may_configure_the_lake_as_well(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tm.toml"
    file.write_text('to_tables = "/data/lake"\nport = 9000\n')
    done = run("config", "--set", "--config", str(file))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["Server:", "port", "9000", str(file), "port"]


def test_only_what_is_set(run: Run) -> None:
    done = run("config", "--set", "--strict", TM_AUTH_TOKEN="s3cret")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert lines == [
        ["Server:"],
        ["auth-token", "***", "TM_AUTH_TOKEN"],
        ["strict", "true", "--strict"],
    ]


def test_a_bad_value_is_an_error(run: Run) -> None:
    done = run("config", TM_PORT="x")
    assert done.returncode == 1
    assert done.stderr == (
        "tardis-machine config: --port 'x' (from TM_PORT): expected a whole number\n"
    )


def test_the_page_of_every_setting(run: Run) -> None:
    done = run("config", "--markdown")
    assert done.returncode == 0
    assert "| `--cache-dir` DIR | `TM_CACHE_DIR` | `cache_dir` |" in done.stdout
    assert "## Kafka" in done.stdout


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_a_password_in_a_url_is_stars(run: Run, form: tuple[str, ...]) -> None:
    done = run("config", *form, TM_ENDPOINT="http://me:s3cret@localhost:1/v1")
    assert done.returncode == 0
    assert "s3cret" not in done.stdout
    assert "http://***@localhost:1/v1" in done.stdout
