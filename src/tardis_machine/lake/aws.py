"""Clients of AWS for readers, with the settings of the publisher's buses."""

from typing import Any, Final, Generic, TypeVar

from tardis_machine.extras import require
from tardis_machine.lake.shipping import Shipped
from tardis_machine.publish.buses.aws import AwsConfig

_EXTRA: Final = "aws"
_TIMEOUT_S: Final = 30.0
_CONNECTIONS: Final = 32


C = TypeVar("C", bound=AwsConfig)


class Service(Generic[C]):
    """A service of AWS, and a client of it in each process that asks for one."""

    def __init__(self, name: str, config: C) -> None:
        self._name = name
        self._settings = Shipped(config)
        self._client: Any = None

    @property
    def client(self) -> Any:
        """Give a client that waits and tries again by itself when it is throttled."""
        if self._client is None:
            self._client = self._made()
        return self._client

    def _made(self) -> Any:
        config = self._settings.unpacked()
        session = require("boto3", extra=_EXTRA).session.Session(
            aws_access_key_id=config.access_key_id,
            aws_secret_access_key=config.secret_access_key,
            aws_session_token=config.session_token,
            region_name=config.region,
        )
        return session.client(
            self._name,
            region_name=session.region_name,
            endpoint_url=config.endpoint_url,
            config=require("botocore.config", extra=_EXTRA).Config(
                connect_timeout=_TIMEOUT_S,
                read_timeout=_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": 10},
                max_pool_connections=_CONNECTIONS,
                user_agent_extra="tardis-machine-lake",
            ),
        )

    def __getstate__(self) -> dict[str, object]:
        """Leave the client: another process makes its own."""
        return {**self.__dict__, "_client": None}
