"""What the buses of AWS share: credentials, clients, and what their errors mean."""

import math
import re
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeVar

from tardis_machine.config import ConfigError, setting
from tardis_machine.extras import require
from tardis_machine.publish.buses.base import BrokerConfig, EventBus, Limits, Order
from tardis_machine.publish.buses.calls import CallLimits, Calls
from tardis_machine.publish.buses.errors import (
    BusError,
    BusUnavailableError,
    MissingError,
    RecordRejectedError,
    ThrottledError,
)
from tardis_machine.publish.buses.fates import Fates
from tardis_machine.publish.record import Record

_EXTRA: Final = "aws"
_CONNECT_TIMEOUT_S: Final = 5.0
_READ_TIMEOUT_S: Final = 10.0
_CALLS_PER_BATCH: Final = 4
_ENDPOINT: Final = re.compile(r"https?://[^\s/@]+/?")
_THROTTLED: Final = re.compile(
    r"Thrott|ThroughputExceeded|LimitExceeded|SlowDown|TooManyRequests|OverLimit"
)
_REFUSED: Final = re.compile(
    r"Validation|InvalidArgument|InvalidParameter|Serialization|BatchRequestTooLong"
    r"|InvalidMessageContents|InvalidBatchEntryId|InvalidAttribute"
)
"""What is said of a call that will never be accepted as it is."""
NOT_THERE: Final = "ResourceNotFoundException"
_UNKNOWN_CALLER: Final = re.compile(
    r"UnrecognizedClient|InvalidClientToken|ExpiredToken|InvalidSignature|SignatureDoesNotMatch"
    r"|InvalidAccessKey|InvalidSecurity|MissingAuthentication"
)


@dataclass(frozen=True, kw_only=True)
class AwsConfig(BrokerConfig):
    """Where a service of AWS is, and as whom it is called."""

    client = ("boto3", _EXTRA)
    in_flight: ClassVar[int] = 4

    service = ("region", "endpoint_url")

    region: str | None = setting(None, help="region; without it what the SDK finds")
    endpoint_url: str | None = setting(
        None, help="another endpoint than the region's", metavar="URL"
    )
    access_key_id: str | None = setting(
        None, secret=True, help="key; without it the SDK's own chain of credentials"
    )
    secret_access_key: str | None = setting(None, secret=True, help="the key's secret")
    session_token: str | None = setting(None, secret=True, help="token of a temporary key")
    order: str = setting(
        "relaxed",
        choices=("relaxed", "strict"),
        help="strict: at most one record of a key in a call, so that none overtakes a failed one",
    )
    max_batch_bytes: int = setting(0, help="bytes in one call")

    @property
    def calls(self) -> CallLimits:
        """Give what one call takes."""
        return CallLimits(self.max_batch_size, self.max_batch_bytes, self.in_flight)

    @property
    def limits(self) -> Limits:
        """Hand over several calls' worth at once, so that several can be under way."""
        worth = self.in_flight * _CALLS_PER_BATCH
        return Limits(
            self.max_batch_size * worth,
            self.max_batch_bytes * worth,
            self.max_batch_delay_ms / 1000,
        )

    def validate(self) -> None:
        """Refuse half of a pair of keys, and what is no endpoint."""
        super().validate()
        self.both_or_neither("access_key_id", "secret_access_key")
        self.together("session_token", "access_key_id")
        if self.endpoint_url is not None:
            allowed = "expected http(s)://host:port"
            if not _ENDPOINT.fullmatch(self.endpoint_url):
                raise ConfigError(self.flag("endpoint_url"), self.endpoint_url, allowed)
            self.check_port("endpoint_url", allowed)

    def warnings(self) -> list[str]:
        """Say that a token goes in clear, where it does; a key only signs."""
        found = super().warnings()
        if self.session_token is not None and (self.endpoint_url or "").startswith("http://"):
            found.append(
                f"{self.flag('session_token')} goes to {self.endpoint_url} in clear: use https://"
            )
        return found


A = TypeVar("A", bound=AwsConfig)


class AwsEventBus(EventBus[A]):
    """Makes calls with several records each, several at a time."""

    service: ClassVar[str]

    def __init__(self, config: A) -> None:
        super().__init__(config)
        self._session: Any = None
        self._client: Any = None
        self._calls: Calls | None = None
        self._connect_timeout_s = _CONNECT_TIMEOUT_S
        self._patience_s = 0

    @property
    def order(self) -> Order:
        return Order.PER_KEY if self.config.order == "strict" else Order.BETWEEN_CALLS

    @property
    def _is_open(self) -> bool:
        return self._calls is not None

    def _open(self, timeout_s: float) -> None:
        boto3 = require("boto3", extra=_EXTRA)
        self._connect_timeout_s = timeout_s
        self._patience_s = 0
        settings = self.config
        try:
            self._session = self._session or boto3.session.Session(
                aws_access_key_id=settings.access_key_id,
                aws_secret_access_key=settings.secret_access_key,
                aws_session_token=settings.session_token,
                region_name=settings.region,
            )
        except require("botocore.exceptions", extra=_EXTRA).BotoCoreError as error:
            raise BusError(self.name, str(error)) from None  # a profile that is not there, for one
        self._make_client(min(timeout_s, _CONNECT_TIMEOUT_S), _READ_TIMEOUT_S)

    def _make_client(self, connect_timeout_s: float, read_timeout_s: float) -> None:
        config = require("botocore.config", extra=_EXTRA).Config(
            connect_timeout=connect_timeout_s,
            read_timeout=read_timeout_s,
            retries={"total_max_attempts": 1},  # when to try again is the publisher's to say
            max_pool_connections=32,
            parameter_validation=False,
            user_agent_extra="tardis-machine",
        )
        settings = self.config
        try:
            self._client = self._session.client(
                self.service,
                region_name=self._session.region_name or self._region(),
                endpoint_url=settings.endpoint_url,
                config=config,
            )
        except require("botocore.exceptions", extra=_EXTRA).NoRegionError:
            raise BusError(self.name, f"no region: set {settings.flag('region')}") from None
        except require("botocore.exceptions", extra=_EXTRA).BotoCoreError as error:
            raise BusError(self.name, str(error)) from None  # what is no region, for one

    def _be_patient(self, timeout_s: float) -> None:
        """Let a call take as long as a batch may: on a slow link, what is cut off never arrives.

        A client has its time-outs for good, and that to connect goes for what is sent first, too.
        """
        needed_s = math.ceil(timeout_s)
        if needed_s > self._patience_s:
            self._patience_s = needed_s
            hasty = self._client
            self._make_client(needed_s, needed_s)
            hasty.close()

    def _prepare(self, destinations: Sequence[str]) -> None:
        self._calls = Calls(
            self.name,
            self.config.calls,
            self._attempt,
            destinations=len(destinations),
            strict=self.config.order == "strict",
        )

    def _close(self) -> None:
        calls, self._calls = self._calls, None
        client, self._client = self._client, None
        if calls is not None:
            calls.close()
        if client is not None:
            client.close()

    def _address(self) -> str:
        return f"{self._client.meta.endpoint_url} ({self._client.meta.region_name})"

    def _region(self) -> str | None:
        """Give the region if something else than the SDK tells."""
        return None

    def _deliver(self, records: Sequence[Record], fates: Fates, deadline: float) -> None:
        assert self._calls is not None
        self._be_patient(deadline - time.monotonic())
        self._calls.send(records, fates, deadline)

    def _attempt(self, destination: str, records: Sequence[Record]) -> Sequence[BusError | None]:
        """Make a call from one of several threads."""
        exceptions = require("botocore.exceptions", extra=_EXTRA)
        try:
            return self._call(destination, records)
        except (exceptions.ClientError, exceptions.BotoCoreError) as error:
            raise self._said(error, destination) from None

    @abstractmethod
    def _call(self, destination: str, records: Sequence[Record]) -> Sequence[BusError | None]:
        """Send records in one call; tell what became of each, in order."""

    def _said(self, error: Any, destination: str) -> BusError:
        """Say in our words what a call that failed as a whole has failed for."""
        response = getattr(error, "response", None)
        if response is None:  # no answer at all
            return self._unavailable(str(error) or type(error).__name__)
        code = code_of(error)
        # To a wrong signature it answers with the request as it was to be signed, token and all.
        message = str(response.get("Error", {}).get("Message", "")).partition("\n")[0]
        if _UNKNOWN_CALLER.search(code):
            return self._unavailable(f"{code}: {message}")
        return self._error(code, message, destination)

    def _error(
        self, code: str, message: str, destination: str, *, refused: bool = False
    ) -> BusError:
        """Tell by its code whether a failure passes; `refused` is what the service says of it."""
        reason = f"{code}: {message}" if message else code
        if _THROTTLED.search(code):
            return ThrottledError(self.name, reason, destination=destination)
        if code == NOT_THERE:
            return MissingError(self.name, reason, destination=destination)
        if refused or _REFUSED.search(code):
            return RecordRejectedError(self.name, reason, destination=destination)
        return BusUnavailableError(self.name, reason, destination=destination)


def sdk_region() -> str | None:
    """Find the region as the SDK does: in its variables, else in its files."""
    session = require("botocore.session", extra=_EXTRA).Session()
    try:
        region: str | None = session.get_config_variable("region")
    except require("botocore.exceptions", extra=_EXTRA).BotoCoreError:
        return None  # a profile that is not there, for one: the client will say so
    return region


def code_of(error: Any) -> str:
    """Give the service's word for an error, if it has answered at all."""
    response = getattr(error, "response", None) or {}  # what timed out has one, and it is None
    return str(response.get("Error", {}).get("Code", ""))
