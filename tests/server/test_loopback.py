"""The default addresses: both loopbacks, however a client spells them."""

import json

import pytest

from tests.server.replays import OPTIONS
from tests.support.ports import needs_ipv6
from tests.support.requests import query
from tests.support.served import Start

HOSTS = ["127.0.0.1", "localhost", pytest.param("[::1]", marks=needs_ipv6)]


@pytest.mark.parametrize("host", HOSTS)
async def test_replay_over_http_is_served_on_each_loopback_address(start: Start, host: str) -> None:
    served = await start()
    url = f"http://{host}:{served.port}"
    async with served.client.get(f"{url}/health-check") as response:
        assert response.status == 200
    async with served.client.get(f"{url}/replay-normalized{query(OPTIONS)}") as response:
        assert response.status == 200
        assert (
            json.loads((await response.text()).splitlines()[0])["exchange"] == OPTIONS["exchange"]
        )


@pytest.mark.parametrize("host", HOSTS)
async def test_replay_over_websocket_is_served_on_each_loopback_address(
    start: Start, host: str
) -> None:
    served = await start()
    url = f"ws://{host}:{served.port + 1}/ws-replay-normalized{query(OPTIONS)}"
    async with served.client.ws_connect(url) as socket:
        assert json.loads(await socket.receive_str())["exchange"] == OPTIONS["exchange"]


@needs_ipv6
async def test_token_is_asked_of_clients_on_ipv6_loopback(start: Start) -> None:
    served = await start(auth_token="s3cret")
    url = f"http://[::1]:{served.port}/replay-normalized{query(OPTIONS)}"
    async with served.client.get(url) as response:
        assert response.status == 401


@needs_ipv6
async def test_foreign_host_is_refused_on_ipv6_loopback(start: Start) -> None:
    served = await start()
    url = f"http://[::1]:{served.port}/health-check"
    async with served.client.get(url, headers={"Host": "evil.example"}) as response:
        assert response.status == 403
