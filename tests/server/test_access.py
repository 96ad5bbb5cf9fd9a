"""Who may pass: hosts and origins, as browsers and other clients send them."""

import pytest

from tests.support.served import Start

HERE = "http://127.0.0.1:{port}"
ALLOWED = {"allow_origin": ("https://here.example",), "allow_host": ("md.example",)}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "localhost"}, 200),
        ({"Host": "LOCALHOST:1234"}, 200),
        ({"Host": "[::1]:8000"}, 200),
        ({"Host": "127.0.0.2"}, 200),
        ({"Host": "MD.example:443"}, 200),
        ({"Host": "evil.example"}, 403),
        ({"Host": "evil.example:{port}"}, 403),
        ({"Host": "10.1.2.3"}, 403),
        ({"Host": "[::1"}, 403),
        ({"Host": "localhost:many"}, 403),
        ({"Host": ""}, 403),
        ({"Host": ":{port}"}, 403),
        ({"Origin": HERE}, 200),
        ({"Origin": "http://127.0.0.1:{ws}"}, 200),
        ({"Origin": "https://here.example"}, 200),
        ({"Origin": "http://127.0.0.1:1"}, 403),
        ({"Origin": "http://localhost:{port}"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "http://evil.example:{port}", "Host": "evil.example:{port}"}, 403),
        ({"Origin": "https://md.example", "Host": "md.example"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "https://here.example"}, 200),
    ],
)
async def test_browsers_of_others_are_refused(
    start: Start, headers: dict[str, str], status: int
) -> None:
    served = await start(**ALLOWED)
    sent = {
        name: value.format(port=served.port, ws=served.port + 1) for name, value in headers.items()
    }
    async with served.client.get(served.http("/health-check"), headers=sent) as response:
        assert response.status == status
        if status == 403:
            assert "see --allow-" in (await response.json())["message"]
    # The other port asks the same questions before it asks for a handshake.
    async with served.client.get(served.ws("/ws-replay-normalized"), headers=sent) as response:
        assert response.status == (426 if status == 200 else 403)


async def test_any_host_and_any_origin_can_be_allowed(start: Start) -> None:
    served = await start(allow_origin=("*",), allow_host=("*",))
    headers = {"Host": "anything.example", "Origin": "https://other.example"}
    async with served.client.get(served.http("/health-check"), headers=headers) as response:
        assert response.status == 200
