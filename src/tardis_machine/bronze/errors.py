"""What cannot become Bronze, and what is not Bronze."""

from tardis_machine.errors import TardisMachineError


class EncodeError(TardisMachineError):
    """A message, or its context, that no Bronze envelope can hold."""

    def __init__(
        self,
        reason: str,
        *,
        field: str | None = None,
        message_type: str | None = None,
        exchange: str | None = None,
        symbol: str | None = None,
    ) -> None:
        self.reason = reason
        self.field = field
        self.message_type = message_type
        self.exchange = exchange
        self.symbol = symbol
        what = message_type or "message"
        whose = " ".join(_short(name) for name in (exchange, symbol) if name)
        where = f" at {field}" if field else ""
        of = f" of {whose}" if whose else ""
        super().__init__(f"cannot encode {what}{of}{where}: {reason}")


class DecodeError(TardisMachineError):
    """Bytes that are no NormalizedEvent, or one that carries no whole message."""

    def __init__(self, reason: str, *, field: str | None = None, case: str | None = None) -> None:
        self.reason = reason
        self.field = field
        self.case = case
        of = f" of {case}" if case else ""
        where = f" at {field}{of}" if field else of
        super().__init__(f"not a NormalizedEvent{where}: {reason}")


def _short(name: str) -> str:
    return name if len(name) <= 60 else f"{name[:57]}..."
