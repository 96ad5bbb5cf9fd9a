"""Fixtures that several test packages share: each real server is a plugin of its own."""

pytest_plugins = ("tests.servers.tardis_api", "tests.servers.kafka", "tests.servers.nats")
