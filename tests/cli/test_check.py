"""`tardis-machine check`, on real servers."""

import sys
from pathlib import Path

import pytest

from tardis_machine.cli.check import main
from tests.support.arrivals import topics
from tests.support.servers.kafka import KafkaBroker
from tests.support.servers.nats import NatsServer
from tests.support.servers.tardis_api import TardisApi


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Return the last verdict that was printed on each part."""
    said = capsys.readouterr().out.splitlines()
    return {line.split()[1]: line.split()[0] for line in said}


@pytest.mark.kafka
def test_everything_in_reach(
    kafka: KafkaBroker, nats: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(
        [
            *("--sample-data", "--kafka-brokers", kafka.address, "--kafka-topic", "checked"),
            *("--kafka-create", "--nats-servers", nats.url, "--nats-subject", "checked"),
            *("--nats-stream", "checked", "--nats-create"),
            *("--file-path", str(tmp_path / "events.ndjson"), "--console-output", "stderr"),
        ],
        {},
    )

    reached = dict.fromkeys(["api", "kafka", "nats", "console", "file"], "ok")
    assert lines(capsys) == {"config": "warn"} | reached  # the sample is synthetic
    assert code == 0
    assert "checked" not in topics(kafka.address)
    assert not (tmp_path / "events.ndjson").exists()


def test_one_bus_out_of_reach_does_not_hide_the_others(
    nats: NatsServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    code = main(
        [
            *("--sample-data", "--nats-servers", nats.url, "--nats-subject", "no.stream"),
            *("--file-path", str(tmp_path / "events.ndjson")),
        ],
        {},
    )

    assert lines(capsys) == {"config": "warn", "api": "ok", "nats": "fail", "file": "ok"}
    assert code == 1


def test_what_credentials_of_nats_need_is_named_with_its_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Who has the client from elsewhere may lack it."""
    creds = tmp_path / "writer.creds"
    creds.write_text("-----BEGIN NATS USER JWT-----\nx\n------END NATS USER JWT------\n")
    monkeypatch.setitem(sys.modules, "nkeys", None)
    flags = ("--nats-servers", "nats://127.0.0.1:1", "--nats-subject", "s")
    assert main(["--sample-data", *flags, "--nats-creds", str(creds)], {}) == 1
    said = "fail  nats     nkeys is not installed: pip install 'tardis-machine[nats]' brings it"
    assert said in capsys.readouterr().out


def test_a_bad_setting_is_named(capsys: pytest.CaptureFixture[str]):
    assert main(["--kafka-topic", "t"], {}) == 1
    assert "--kafka-brokers" in capsys.readouterr().out


def test_the_api_is_reached_with_the_key(tardis_api: TardisApi, capsys: pytest.CaptureFixture[str]):
    tardis_api.api_key = "right"

    assert main(["--endpoint", tardis_api.endpoint], {"TM_API_KEY": "right"}) == 0
    assert lines(capsys)["api"] == "ok"
    assert main(["--endpoint", tardis_api.endpoint], {"TM_API_KEY": "wrong"}) == 1
    said = capsys.readouterr().out
    assert "refuses the key" in said
    assert "wrong" not in said


def test_an_api_out_of_reach_fails(capsys: pytest.CaptureFixture[str]):
    assert main(["--endpoint", "http://127.0.0.1:1"], {}) == 1
    assert lines(capsys) == {"config": "ok", "api": "fail"}


def test_the_api_is_reached_through_the_proxy_that_the_server_uses(
    tardis_api: TardisApi, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("http_proxy", tardis_api.endpoint.removesuffix("/v1"))
    monkeypatch.setenv("no_proxy", "direct.invalid")

    assert main(["--endpoint", "http://proxied.invalid/v1"], {}) == 0
    assert tardis_api.calls[0].headers["Host"] == "proxied.invalid"
    assert main(["--endpoint", "http://direct.invalid/v1"], {}) == 1
    assert len(tardis_api.calls) == 1
    assert "direct.invalid/v1 cannot be reached" in capsys.readouterr().out


def test_server_open_to_others_without_token_fails(capsys: pytest.CaptureFixture[str]):
    assert main(["--sample-data", "--host", "0.0.0.0"], {}) == 1
    assert "expected --auth-token, or --allow-anonymous" in capsys.readouterr().out
