"""Runs a replay file: recorded minutes, and whole answers that a server gave on them."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec

from tardis_machine.server.app import TardisMachine
from tests.support.servers.tardis_api import TardisApi
from tests.vectors.compute import Outcome


class Answer(msgspec.Struct):
    path: str
    options: Any
    body: str


class ReplayFile(msgspec.Struct, rename={"start": "from"}):
    start: str
    minutes: dict[str, list[str]]
    channels: dict[str, list[list[str]]]
    """The channel of each line; a disconnect has none."""
    answers: list[Answer]


def is_replay_file(path: Path) -> bool:
    try:
        msgspec.json.decode(path.read_bytes(), type=ReplayFile)
    except msgspec.ValidationError:
        return False
    return True


def run(path: Path) -> Iterator[Outcome]:
    """Compare every answer byte by byte."""
    file = msgspec.json.decode(path.read_bytes(), type=ReplayFile)
    api = _Recorded(file)
    try:
        with TemporaryDirectory() as cache:
            bodies = asyncio.run(_answers(file, api.endpoint, cache))
    finally:
        api.close()
    by_label: dict[str, list[str | None]] = {}
    for answer, (status, body) in zip(file.answers, bodies, strict=True):
        asked = answer.options if isinstance(answer.options, list) else [answer.options]
        label = f"{answer.path} {'+'.join(each['exchange'] for each in asked)}"
        by_label.setdefault(label, []).append(_difference(answer, status, body))
    for label, results in by_label.items():
        differences = [result for result in results if result is not None]
        yield Outcome(
            label,
            len(results) - len(differences),
            len(results),
            differences[0] if differences else None,
        )


class _Recorded(TardisApi):
    """Serves the file's minutes, filtered by channel."""

    def __init__(self, file: ReplayFile) -> None:
        super().__init__(lambda exchange, minute: b"")
        self._first = int(datetime.fromisoformat(file.start).timestamp()) // 60
        self._file = file

    def selected(
        self, exchange: str, minute: int, wanted: Mapping[str, tuple[str, ...] | None]
    ) -> bytes:
        lines = self._file.minutes[exchange][minute - self._first].splitlines(keepends=True)
        channels = self._file.channels[exchange][minute - self._first]
        labelled = zip(lines, channels, strict=True)
        return "".join(
            line for line, channel in labelled if not channel or not wanted or channel in wanted
        ).encode()


async def _answers(file: ReplayFile, endpoint: str, cache_dir: str) -> list[tuple[int, bytes]]:
    machine = TardisMachine(endpoint=endpoint, cache_dir=cache_dir)
    await machine.start(0)
    found = []
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(60)) as client:
            for answer in file.answers:
                query = quote(json.dumps(answer.options))
                url = f"http://127.0.0.1:{machine.port}{answer.path}?options={query}"
                async with client.get(url) as response:
                    found.append((response.status, await response.read()))
    finally:
        await machine.stop()
    return found


def _difference(answer: Answer, status: int, body: bytes) -> str | None:
    expected, given = answer.body.encode().splitlines(), body.splitlines()
    if status == 200 and body == answer.body.encode():
        return None
    for index, (right, ours) in enumerate(zip_longest(expected, given)):
        if right != ours:
            return (
                f"{json.dumps(answer.options)} line {index}\n"
                f"  expected {right!r}\n  got      {ours!r}"
            )
    return f"{json.dumps(answer.options)}: status {status}, line ends differ"
