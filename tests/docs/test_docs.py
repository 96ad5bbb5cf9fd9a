"""What README and docs tell people to type works, or is at least something one can type.

Blocks are run, or say what they need (`tests/docs/pages.py`) and are parsed: Python is compiled,
shell is read by bash and the flags of `tardis-machine` are looked up in its help.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tardis_machine import exchanges
from tardis_machine.cli import COMMANDS
from tardis_machine.cli.config import page as configuration_page
from tardis_machine.cli.exchanges import page as exchanges_page
from tests.docs.pages import blocks, environment_of, run_blocks
from tests.support.ports import free_port_pair

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
_SAMPLE = re.compile(r"--sample-data|sample=True|sample_data|sampleData|history.sample")
_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def names(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.fixture
def environment() -> dict[str, str]:
    return environment_of(Path(sys.executable))


@pytest.fixture
def ports() -> dict[str, str]:
    """Free ports in place of those that the pages name."""
    first, second = free_port_pair(), free_port_pair()
    return {
        "8000": str(first),
        "8001": str(first + 1),
        "8002": str(second),
        "8003": str(second + 1),
    }


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_every_block_says_what_becomes_of_it(page: Path) -> None:
    for block in blocks(page):
        assert block.fate in {"run", "serve"} or block.fate.startswith("needs="), block


def _on_spark(page: Path) -> bool:
    return any(b.fate == "run" and re.search(r"machine lake|pyspark", b.text) for b in blocks(page))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(p, marks=[pytest.mark.spark, pytest.mark.slow] if _on_spark(p) else [])
        for p in PAGES
        if any(b.fate == "run" for b in blocks(p))
    ],
    ids=names,
)
def test_blocks_run(page: Path, tmp_path: Path, ports: dict[str, str]) -> None:
    run_blocks(page, tmp_path, Path(sys.executable), ports)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_other_blocks_parse(page: Path, environment: dict[str, str]) -> None:
    for block in blocks(page):
        if block.language == "python":
            compile(block.text, names(page), "exec")
            continue
        subprocess.run(["bash", "-n", "-c", block.text], check=True)
        for command in commands(block.text):
            known = help_of(command, environment)
            for flag in (word.partition("=")[0] for word in command if word.startswith("--")):
                assert flag in known, f"{names(page)}: {shlex.join(command)}: unknown {flag}"


def commands(text: str) -> Iterator[list[str]]:
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and "=" in words[0] and not words[0].startswith("-"):
            del words[0]  # variables set for the command
        if words and words[0] == "tardis-machine":
            end = next((at for at, word in enumerate(words) if word in {"|", ">", "&", "<"}), None)
            yield words[:end]


def help_of(command: list[str], environment: dict[str, str]) -> set[str]:
    taken = []
    for word in command[1:3]:
        if word.startswith("-") or (not taken and word not in COMMANDS):
            break
        taken.append(word)
    return flags_of((command[0], *taken), environment["PATH"])


@cache
def flags_of(command: tuple[str, ...], path: str) -> set[str]:
    done = subprocess.run(
        [*command, "--help"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z][a-z0-9-]*", done.stdout)) | {"--version"}


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in [*PAGES, *sorted((ROOT / "examples").glob("*.py")), ROOT / "compose.yaml"]
        if _SAMPLE.search(page.read_text())
    ],
    ids=names,
)
def test_page_that_uses_the_sample_calls_it_synthetic(page: Path) -> None:
    assert "synthetic" in page.read_text()


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    for target in _LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{names(page)} links to {target}"


@pytest.mark.parametrize(
    ("name", "page"),
    [("configuration.md", configuration_page), ("exchanges.md", exchanges_page)],
    ids=["settings", "exchanges"],
)
def test_a_page_that_is_made_is_that_of_its_source(name: str, page: Callable[[], str]) -> None:
    assert (ROOT / "docs" / name).read_text() == page(), f"make docs renews docs/{name}"


def test_readme_counts_the_exchanges_and_those_that_have_closed() -> None:
    closed = [name for name in exchanges.names() if exchanges.get(name).closed]
    said = f"all {len(exchanges.names())} exchanges, {len(closed)} of which have closed"
    assert said in (ROOT / "README.md").read_text()
