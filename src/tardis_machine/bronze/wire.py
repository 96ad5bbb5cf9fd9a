"""Normalized messages as the encoder reads them: times left as text, null only as a bar's vwap."""

from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

import msgspec
from msgspec import UNSET, Meta, UnsetType

from tardis_machine import messages

MAX_NAME: Final = 1_000
"""Characters of an exchange, symbol, name or id; the longest seen on an exchange are below 100."""
MAX_DETAILS: Final = 100_000
"""Characters of an error's text."""

_Name = Annotated[str, Meta(max_length=MAX_NAME)]
_Details = Annotated[str, Meta(max_length=MAX_DETAILS)]
# Neither may be empty: that is how they are absent.
_Reason = Annotated[str, Meta(min_length=1, max_length=MAX_DETAILS)]
_CloseCode = Annotated[int, Meta(ge=1, le=2**32 - 1)]
_Count32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Count63 = Annotated[int, Meta(ge=0, le=2**63 - 1)]

_SPECIAL: Final[dict[tuple[str, str], Any]] = {
    ("ErrorMessage", "details"): _Details,
    ("ErrorMessage", "sub_sequent_errors_count"): _Count32,
    ("Disconnect", "reason"): _Reason | UnsetType,
    ("Disconnect", "close_code"): _CloseCode | UnsetType,
    ("BookSnapshot", "depth"): _Count32,
    ("TradeBar", "trades"): _Count63,
    ("TradeBar", "vwap"): float | None,
}


def _wire(struct: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """Derive the encoder's form of a message: the same keys, so that there is one list of them."""
    config = struct.__struct_config__
    fields: list[tuple[str, Any, Any]] = []
    for field in msgspec.structs.fields(struct):
        kind = _SPECIAL.get((struct.__name__, field.name)) or _wire_type(field.type)
        default = msgspec.NODEFAULT if field.required else UNSET
        fields.append((field.name, kind, msgspec.field(default=default, name=field.encode_name)))
    return msgspec.defstruct(
        f"Wire{struct.__name__}",
        fields,
        tag_field=config.tag_field,
        tag=config.tag,
        kw_only=True,
        forbid_unknown_fields=True,
        gc=False,
    )


def _wire_type(kind: Any) -> Any:
    if kind is messages.Time:
        return str
    if kind is str:
        return _Name
    if get_origin(kind) is list:
        (item,) = get_args(kind)
        return list[_LEVELS.get(item) or _wire_type(item)]  # type: ignore[misc]
    if get_origin(kind) in (Union, UnionType):
        members = (UnsetType if m is NoneType else _wire_type(m) for m in get_args(kind))
        return Union[tuple(members)]  # noqa: UP007 - built at run time
    return kind


_LEVELS: dict[Any, Any] = {}
_LEVELS.update({level: _wire(level) for level in (messages.BookLevel, messages.BookSnapshotLevel)})

TYPES: Final[dict[str, type[msgspec.Struct]]] = {
    struct.__name__: _wire(struct) for struct in get_args(messages.Message)
}
"""The encoder's form of each message, by the message's name."""

DECODER: Final[msgspec.json.Decoder[Any]] = msgspec.json.Decoder(
    Union[tuple(TYPES.values())]  # noqa: UP007 - built at run time
)


def times(message: msgspec.Struct) -> Iterator[tuple[str, str]]:
    """Give each time of a wire message with its key."""
    for field in msgspec.structs.fields(_SOURCES[type(message)]):
        text = getattr(message, field.name)
        if messages.Time in (field.type, *get_args(field.type)) and text is not UNSET:
            yield field.encode_name, text


_SOURCES: Final = {TYPES[struct.__name__]: struct for struct in get_args(messages.Message)}
