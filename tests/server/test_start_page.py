"""The start page: its headers, and what a person sees in a real browser."""

import json
import os
import re
import shutil
from collections.abc import AsyncIterator, Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

import pytest
from playwright.async_api import ConsoleMessage, Page, async_playwright, expect

from tests.support.ports import free_ports
from tests.support.served import Served, Start
from tests.support.servers.machine import Machine
from tests.support.servers.process import ServerProcess
from tests.support.waiting import until

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
in_a_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium on the PATH (Debian: apt install chromium)"
)


# The browser shares its machine with whatever else is tested.
expect.set_options(timeout=60_000)


@pytest.fixture(autouse=True, scope="module")
def _each_kernel() -> None:
    """Serve with the kernel that is there: a browser takes seconds to start."""


class Addresses(HTMLParser):
    """Collects what a page would load from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value or "" for name, value in attrs if name in {"src", "href", "action"}]


async def test_the_page_is_whole_and_asks_nothing_of_other_hosts(served: Served) -> None:
    async with served.client.get(served.http("/")) as response:
        text = await response.text()
        policy = response.headers["Content-Security-Policy"]
    parser = Addresses()
    parser.feed(text)
    assert parser.found == []
    assert "__FACTS__" not in text
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert not re.findall(r"https?://(?!www\.w3\.org/2000/svg)[^\s\"'`$]+", text)


async def test_page_of_a_server_with_sample_data_calls_it_synthetic(served: Served) -> None:
    async with served.client.get(served.http("/")) as response:
        assert '"sample": "synthetic sample data of bitmex' in await response.text()


async def test_page_of_a_server_with_history_names_no_sample(start: Start) -> None:
    served = await start(sample_data=False)
    async with served.client.get(served.http("/")) as response:
        assert '"sample": null' in await response.text()


async def test_page_knows_which_exchanges_have_closed(served: Served) -> None:
    async with served.client.get(served.http("/")) as response:
        found = re.search(r'"closed": (\[.*?\])', await response.text())
    assert found is not None
    closed = json.loads(found[1])
    assert "ftx" in closed
    assert "bitmex" not in closed


@in_a_browser
async def test_page_marks_closed_exchanges_as_history_only(served: Served, page: Page) -> None:
    await page.goto(served.http("/"))
    await expect(page.locator("#exchange option[value=ftx]")).to_have_text("ftx (history only)")
    await expect(page.locator("#exchange option[value=bitmex]")).to_have_text("bitmex")
    await page.select_option("#exchange", "ftx")
    await expect(page.locator("#command")).to_contain_text('"exchange":"ftx"')


async def test_the_page_is_there_without_the_token_it_asks_for(start: Start) -> None:
    served = await start(auth_token="secret")
    async with served.client.get(served.http("/")) as response:
        assert response.status == 200
        assert "secret" not in await response.text()
    async with served.client.get(served.http("/metrics")) as response:
        assert response.status == 401


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One Chromium for all tests: it takes seconds to start."""
    assert CHROMIUM is not None
    folder = tmp_path_factory.mktemp("chromium")
    [port] = free_ports(1)
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking")
    told = (f"--remote-debugging-port={port}", f"--user-data-dir={folder / 'profile'}")
    running = ServerProcess([CHROMIUM, *flags, *told], port=port, log=folder / "log")
    running.start()
    yield f"http://127.0.0.1:{port}"
    running.stop()


@pytest.fixture
async def page(browser: str) -> AsyncIterator[Page]:
    async with async_playwright() as playwright:
        connected = await playwright.chromium.connect_over_cdp(browser)
        context = await connected.new_context()
        shown = await context.new_page()
        problems: list[str] = []
        shown.on("pageerror", lambda error: problems.append(str(error)))

        def note(said: ConsoleMessage) -> None:
            # An answer such as 400 is said, too; what the policy refuses is what matters.
            if said.type == "error" and not said.text.startswith("Failed to load resource"):
                problems.append(said.text)

        shown.on("console", note)
        yield shown
        await context.close()
    assert problems == []


@in_a_browser
async def test_a_person_fills_the_form_and_sees_rows_and_a_picture(
    served: Served, page: Page
) -> None:
    await page.goto(served.http("/"))
    await page.select_option("#exchange", "deribit")
    await page.fill("#symbols", "BTC-PERPETUAL")
    await page.fill("#computed", "book_snapshot_2_1s")
    await page.fill("#limit", "300")
    await page.keyboard.press("Enter")
    await expect(page.locator("#rows tr")).to_have_count(300)
    await expect(page.locator("#said")).to_contain_text("300 messages, prices of BTC-PERPETUAL")
    kinds = set(await page.locator("#rows td:nth-child(2)").all_inner_texts())
    assert kinds == {"trade", "book_snapshot_2_1s"}
    drawn = await page.locator("#chart path.price").get_attribute("d")
    assert drawn is not None
    assert drawn.count("L") > 100
    await expect(page.locator("#sample")).to_contain_text("synthetic sample data of bitmex")
    await expect(page.locator("#chart .synthetic")).to_have_text("synthetic sample data")
    await expect(page.locator("#state")).to_contain_text("messages sent")


@in_a_browser
async def test_a_mistake_is_told_where_it_was_made(served: Served, page: Page) -> None:
    await page.goto(served.http("/"))
    await page.fill("#from", "yesterday")
    await page.click("#start")
    await expect(page.locator("#said.bad")).to_contain_text("yesterday")


@in_a_browser
async def test_the_token_is_asked_for_and_used(start: Start, page: Page) -> None:
    served = await start(auth_token="secret")
    await page.goto(served.http("/"))
    await page.fill("#token", "secret")
    await page.click("#start")
    await expect(page.locator("#said")).to_contain_text("all there are")


@in_a_browser
async def test_a_replay_of_the_form_is_not_published_unless_asked_for(
    served: Served, page: Page
) -> None:
    await page.goto(served.http("/"))
    await expect(page.locator("#command")).to_contain_text('"publish":false')
    await page.check("#publish")
    await expect(page.locator("#command")).not_to_contain_text("publish")


@in_a_browser
async def test_a_replay_by_the_clock_is_seen_as_it_goes_and_can_be_stopped(
    served: Served, page: Page
) -> None:
    await page.goto(served.http("/"))
    await page.fill("#speed", "2")
    await expect(page.locator("#command")).to_contain_text('"speed":2')
    await page.click("#start")
    await expect(page.locator("#rows tr").first).to_be_visible()
    await expect(page.locator("#state")).to_contain_text("/replay-normalized")
    await page.click("#stop")
    await expect(page.locator("#said")).to_contain_text("stopped after")


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Machine]:
    """A cluster that publishes to a file."""
    bus = ("--file-path", str(tmp_path / "events"))
    machine = Machine(tmp_path, "--sample-data", "--cluster-mode", *bus)
    machine.start()
    yield machine
    machine.stop()


@in_a_browser
async def test_page_of_a_cluster_counts_what_its_processes_share_once(
    cluster: Machine, page: Page
) -> None:
    count = len(cluster.replay("bitmex", ["trade"]))
    url = f"http://127.0.0.1:{cluster.port}"
    delivered = rf'delivered_total{{bus="file",process="\d+"}} {count}\.0\n'

    def all_report() -> bool:
        with urlopen(f"{url}/metrics") as response:
            return len(re.findall(delivered, response.read().decode())) == os.cpu_count()

    await until(all_report)
    await page.goto(url)
    accepted = page.locator("#buses td.number").first
    await expect(accepted).to_have_text(f"{count:,}")
