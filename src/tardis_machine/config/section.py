"""A section of settings, declared once as a dataclass; everything else is derived from it."""

import inspect
import math
import re
import types
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)
from urllib.parse import SplitResult, urlsplit

from tardis_machine.errors import TardisMachineError

T = TypeVar("T")

REDACTED: Final = "***"
EMPTY: Final[tuple[object, ...]] = (None, (), {}, "")
PREFIX: Final = "TM_"
_SECRET_KEY: Final = re.compile(r"password|secret|token|authorization|\.pem$", re.IGNORECASE)
_USERINFO: Final = re.compile(r"^([a-z][\w+.-]*://|(?=.*:)).*@", re.IGNORECASE | re.DOTALL)
"""What stands before the host of an address, with a scheme or without one."""
_SECRET_PARAMETER: Final = re.compile(
    r"([?&;][^=&;]*(?:pass|secret|token)[^=&;]*=)[^&;]*", re.IGNORECASE
)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:I?B)?|B)?", re.IGNORECASE)


class ConfigError(TardisMachineError):
    """A setting that cannot be used: which one, what it was, what would be right.

    Whatever it was, no password that somebody has put into an address is repeated.
    """

    def __init__(
        self, flag: str, value: object, allowed: str, *, source: str | None = None
    ) -> None:
        self.flag = flag
        self.value = value = without_password(value) if isinstance(value, str) else value
        self.allowed = allowed
        self.source = source
        given = "" if value is None else f" {value!r}" if isinstance(value, str) else f" {value}"
        where = "" if source is None or source == flag else f" (from {source})"
        super().__init__(f"{flag}{given}{where}: {allowed}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What is known about one setting, beside its name, type and default."""

    help: str
    secret: bool = False
    choices: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    metavar: str | None = None
    parse: Callable[[str], Any] | None = None
    env: str | None = None
    env_override: str | None = None
    short: str | None = None


def setting(
    default: T,
    *,
    help: str,  # noqa: A002 - the word argparse and every reader knows
    secret: bool = False,
    choices: Sequence[str] | None = None,
    minimum: float | None = None,
    maximum: float | None = None,
    metavar: str | None = None,
    parse: Callable[[str], Any] | None = None,
    env: str | None = None,
    env_override: str | None = None,
    short: str | None = None,
) -> T:
    """Declare a field of a Section.

    `parse` turns text (of a flag, a variable, or a string in TOML) into the value and raises
    ValueError with what is allowed. `env` replaces the derived variable's name; `env_override`
    names a further variable that beats even the flag (the port's `PORT`). `choices` hold for
    each entry of a tuple.
    """
    known = Setting(
        help=help,
        secret=secret,
        choices=None if choices is None else tuple(choices),
        minimum=minimum,
        maximum=maximum,
        metavar=metavar,
        parse=parse,
        env=env,
        env_override=env_override,
        short=short,
    )
    metadata = {"setting": known}
    made: Any = (
        field(default_factory=default.copy, metadata=metadata)
        if isinstance(default, dict)
        else field(default=default, metadata=metadata)
    )
    declared: T = made
    return declared


class Section:
    """A group of settings. Subclasses are dataclasses, frozen and keyword-only."""

    section: ClassVar[str] = ""
    title: ClassVar[str] = ""
    note: ClassVar[str] = ""
    help_topic: ClassVar[str] = ""

    def __init_subclass__(
        cls, *, section: str = "", title: str = "", note: str = "", help_topic: str = ""
    ) -> None:
        """`section` prefixes flags and names the TOML table; `note` is a line under the title.

        Of a `help_topic`, which a section is by itself, help names the flags only, unless asked.
        """
        super().__init_subclass__()
        # Set here, or each dataclass would bring its own, secrets and all.
        cls.__repr__ = Section.__repr__  # type: ignore[method-assign]
        cls.section = section
        cls.title = title or section.replace("_", " ").capitalize() or "Settings"
        cls.note = note
        cls.help_topic = help_topic or section

    def __repr__(self) -> str:
        """Print a section as its dataclass would, but secrets as stars."""
        shown = []
        for option in options(type(self)):
            value = getattr(self, option.name)
            hidden = option.setting.secret and value is not None
            shown.append(f"{option.name}={REDACTED if hidden else masked(value)!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def validate(self) -> None:
        """Raise ConfigError for what no single setting can tell."""

    def warnings(self) -> list[str]:
        """Say what works but weakens a promise."""
        return []

    @classmethod
    def flag(cls, name: str) -> str:
        """Name a field's flag, for errors."""
        return "--" + key_of(cls, name).replace("_", "-")


class Option(NamedTuple):
    """One setting with everything derived from it."""

    owner: type[Section]
    name: str
    key: str
    kind: type
    optional: bool
    default: Any
    setting: Setting

    @property
    def flag(self) -> str:
        return "--" + self.key.replace("_", "-")

    @property
    def variable(self) -> str:
        return self.setting.env or PREFIX + self.key.upper()

    @property
    def metavar(self) -> str:
        known = self.setting
        if known.metavar:
            return known.metavar
        if known.choices:
            return "|".join(known.choices)
        kinds = {int: "N", float: "N", Path: "PATH", tuple: "A,B,…", dict: "K:V,…"}
        return kinds.get(self.kind, "TEXT")

    def shown(self, value: object) -> str:
        """Print a value as one would type it, a secret as stars."""
        if value is None:
            return ""
        if self.setting.secret:
            return REDACTED
        value = masked(value)
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, dict):
            return ",".join(f"{name}:{entry}" for name, entry in value.items())
        return str(value)


def options(owner: type[Section]) -> tuple[Option, ...]:
    """Derive the options of a section from its dataclass; what it inherits comes last."""
    hints = get_type_hints(owner)
    found = []
    own = list(inspect.get_annotations(owner))
    entries = fields(owner)  # type: ignore[arg-type]  # every subclass is a dataclass
    for entry in sorted(entries, key=lambda e: own.index(e.name) if e.name in own else len(own)):
        known = entry.metadata.get("setting")
        if known is None:
            raise TypeError(f"{owner.__name__}.{entry.name} is not declared with setting()")
        kind, optional = _plain(hints[entry.name])
        key = key_of(owner, entry.name)
        found.append(Option(owner, entry.name, key, kind, optional, _default(entry), known))
    return tuple(found)


def bytes_size(text: str) -> int:
    """Parse `8GiB`, `512 MB` or a plain number of bytes; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    size = math.inf if match is None else float(match[1]) * _UNITS[(match[2] or "").upper()]
    if math.isinf(size):
        raise ValueError("expected a size such as 1048576, 512MB or 8GiB")
    return int(size)


def pairs(text: str) -> dict[str, str]:
    """Parse `key:value,…` or `key=value,…`: split at the first of either, values may hold both."""
    found: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        match = re.match(r"([^:=]+)[:=](.*)", part.strip(), re.DOTALL)
        name = "" if match is None else match[1].strip()
        if match is None or not name:
            raise ValueError(f"expected key:value pairs separated by commas, not {part.strip()!r}")
        if name in found:
            raise ValueError(f"expected each key once, {name!r} is there twice")
        found[name] = match[2].strip()
    return found


def readable_by_others(path: Path) -> bool:
    """Tell whether a file's mode lets other users read it."""
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:
        return False


def key_of(owner: type[Section], name: str) -> str:
    word = name.removesuffix("_")  # a field called `pass_` is still --nats-pass
    return f"{owner.section}_{word}" if owner.section else word


def split_url(url: str) -> SplitResult | None:
    """Take a URL apart; None where nobody could make sense of its host or port."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if port == 0 else parts


def without_password(address: str) -> str:
    """Star out what stands before an address's host, and secrets among its parameters."""
    hidden = _USERINFO.sub(rf"\g<1>{REDACTED}@", address)
    return _SECRET_PARAMETER.sub(rf"\g<1>{REDACTED}", hidden)


def masked(value: Any) -> Any:
    """Star out what is secret in a value that is not: passwords of URLs, entries of a table.

    Those are secret whose key says so (`ssl.key.password`).
    """
    if isinstance(value, str):
        return without_password(value) if "://" in value else value
    if isinstance(value, tuple):
        return tuple(map(masked, value))
    if not isinstance(value, dict):
        return value
    return {name: REDACTED if _SECRET_KEY.search(name) else v for name, v in value.items()}


def _default(entry: "Field[Any]") -> Any:
    if entry.default_factory is not MISSING:
        return entry.default_factory()
    return entry.default


def _plain(hint: Any) -> tuple[type, bool]:
    """Reduce an annotation to one of the supported types, and whether None is one of its values."""
    if get_origin(hint) in {Union, types.UnionType}:
        rest = [part for part in get_args(hint) if part is not type(None)]
        if len(rest) == 1:
            return _plain(rest[0])[0], True
    found = get_origin(hint) or hint
    if found not in {str, int, float, bool, Path, tuple, dict}:
        raise TypeError(f"settings are str, int, float, bool, Path, tuple or dict, not {hint}")
    return found, False
