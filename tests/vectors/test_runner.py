from pathlib import Path
from typing import Any

import msgspec
import pytest

from tardis_machine import exchanges
from tests.vectors.__main__ import main

RAW = (
    '{"table":"trade","action":"insert","data":[{"timestamp":"2024-03-01T00:00:00.500Z",'
    '"symbol":"XBTUSD","side":"Buy","size":61130.0,"price":1E-7}]}'
)
OUT = (
    '{"type":"trade","symbol":"XBTUSD","exchange":"bitmex","price":1e-7,"amount":61130,'
    '"side":"buy","timestamp":"2024-03-01T00:00:00.500Z",'
    '"localTimestamp":"2024-03-01T00:00:01.000Z"}'
)


def _step(**more: Any) -> dict[str, Any]:
    step = {
        "raw": msgspec.Raw(RAW),
        "localTimestamp": "2024-03-01T00:00:01.000Z",
        "handled": True,
        "out": [msgspec.Raw(OUT)],
    }
    return step | more


def _run(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"dataType": "trade", "created": None, "steps": steps, **more}


def _write(path: Path, *runs: dict[str, Any]) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(msgspec.json.encode(runs))
    return str(path)


def test_what_agrees_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = {"symbols": ["xbtusd"], "filters": [{"channel": "trade", "symbols": ["XBTUSD"]}]}
    file = _write(tmp_path / "bitmex.json", _run(_step(), filters=[question]), _run(_step()))
    assert main([file]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0].endswith("bitmex.json bitmex trade: 3 of 3")
    assert printed[-1] == "passed 3 of 3"


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ({"out": [msgspec.Raw(OUT.replace("61130", "61130.0"))]}, '"amount":61130.0'),
        ({"out": []}, "expected handled"),
        ({"handled": False}, "expected ignored"),
        ({"error": "no overlap", "out": []}, "expected an error"),
        ({"raw": {"table": "trade", "data": [{}], "action": "insert"}}, "got ValidationError"),
    ],
)
def test_the_first_difference_is_shown(
    step: dict[str, Any], shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _write(tmp_path / "bitmex.json", _run(_step(), _step(**step)), _run(_step(out=[])))
    assert main([file]) == 1
    printed = capsys.readouterr().out
    assert "first difference: run 0, 1: " in printed
    assert shown in printed
    assert "passed 1 of 3" in printed


def test_a_filter_that_differs_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    question = {"symbols": None, "filters": [{"channel": "trades"}]}
    assert main([_write(tmp_path / "bitmex.json", _run(filters=[question]))]) == 1
    assert "filters of None" in capsys.readouterr().out


def test_mappers_made_in_that_month_are_made_for_live(tmp_path: Path) -> None:
    levels: dict[str, Any] = {"bids": [], "asks": []}
    update = {"E": 1, "s": "A", "U": 102, "u": 105, "pu": 101, "b": [], "a": []}
    steps = [
        {"raw": {"stream": "a@depth", "data": update}, "handled": True, "out": []},
        {
            "raw": {"stream": "a@depthSnapshot", "data": {"lastUpdateId": 100, **levels}},
            "localTimestamp": "2024-03-01T00:00:01.000Z",
            "handled": True,
            "out": [],
            "error": "Book depth snapshot has no overlap with first update",
        },
    ]
    live = {"dataType": "book_change", "created": "2026-11-15T00:00:00.000Z", "steps": steps}
    assert main([_write(tmp_path / "binance-futures.json", live)]) == 0
    history = live | {"created": "2021-11-15T00:00:00.000Z"}
    assert main([_write(tmp_path / "binance-futures.json", history)]) == 1


def test_exchanges_without_mappers_fail_only_when_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchanges, "names", lambda: ("bitmex",))
    _write(tmp_path / "more" / "bitmex.json", _run(_step()))
    named = _write(tmp_path / "more" / "kraken.json", _run())
    (tmp_path / "subscriptions.json").write_text("{}")
    assert main([str(tmp_path)]) == 0
    assert "no mappers yet: kraken\npassed 1 of 1\n" in capsys.readouterr().out
    assert main([named]) == 1
    assert f"no mappers yet: {named}" in capsys.readouterr().out


def test_the_exchange_of_a_file_with_another_name_is_read_from_it(tmp_path: Path) -> None:
    assert main([_write(tmp_path / "hidden.json", _run(_step()))]) == 0


def test_compute_files_run_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "compute.json"
    file.write_text(f'{{"input":[{OUT}],"output":{{"trade_bar_1s":[]}},"order":["trade"]}}')
    assert main([str(file)]) == 0
    assert "passed 1 of 1" in capsys.readouterr().out


def test_subscriptions_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = {"op": "subscribe", "args": ["trade:XBTUSD"]}
    filters = [{"channel": "trade", "symbols": ["XBTUSD"]}]
    cases = [
        {"message": asked, "handled": True, "filters": filters},
        {"message": asked, "error": "a crash"},
        {"message": {"op": "help"}, "handled": False},
    ]
    file = tmp_path / "subscriptions.json"
    file.write_bytes(msgspec.json.encode({"bitmex": cases, "new-exchange": cases}))
    assert main([str(file)]) == 0
    assert "subscriptions of bitmex: 3 of 3" in capsys.readouterr().out
    file.write_bytes(msgspec.json.encode({"bitmex": [{"message": asked, "handled": False}]}))
    assert main([str(file)]) == 1
    assert "expected None, got [Filter(" in capsys.readouterr().out


def test_subscribe_messages_are_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "wss://ws.bitmex.com/realtime"
    asked = {"op": "subscribe", "args": ["trade:XBTUSD"]}
    realtime = {"trade": [{"url": url, "subscribe": [asked]}]}
    facts = {"sampleSymbols": ["XBTUSD"], "realtime": realtime}
    file = tmp_path / "exchanges.json"
    file.write_bytes(msgspec.json.encode({"bitmex": facts}))
    assert main([str(file)]) == 0
    assert "live bitmex: 1 of 1" in capsys.readouterr().out
    realtime["trade"].append({"polling": True})
    file.write_bytes(msgspec.json.encode({"bitmex": facts}))
    assert main([str(file)]) == 1
    assert "first difference: trade" in capsys.readouterr().out


def test_no_files_is_a_question(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "python -m tests.vectors FILE" in capsys.readouterr().out


def _replay_file(path: Path, body: str) -> str:
    stamp = "2024-03-01T00:00:01.0000000Z"
    options = {
        "exchange": "bitmex",
        "from": "2024-03-01T00:00:00.000Z",
        "to": "2024-03-01T00:01:00.000Z",
        "filters": [{"channel": "trade"}],
        "withDisconnects": True,
    }
    file = {
        "from": "2024-03-01T00:00:00.000Z",
        "minutes": {"bitmex": [f"\n{stamp} {RAW}\n{stamp} {{}}\n"]},
        "channels": {"bitmex": [["", "trade", "quote"]]},
        "answers": [{"path": "/replay", "options": options, "body": body}],
    }
    path.write_bytes(msgspec.json.encode(file))
    return str(path)


def test_whole_answers_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    body = f'\n{{"localTimestamp":"2024-03-01T00:00:01.0000000Z","message":{RAW}}}\n'
    file = tmp_path / "answers.json"
    assert main([_replay_file(file, body)]) == 0
    assert "answers.json /replay bitmex: 1 of 1" in capsys.readouterr().out
    assert main([_replay_file(file, body.lstrip())]) == 1
    assert "line 0" in capsys.readouterr().out
    assert main([_replay_file(file, body.rstrip())]) == 1
    assert "line ends differ" in capsys.readouterr().out
