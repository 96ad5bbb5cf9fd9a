"""Declaration of settings: a Section is a dataclass, an Option one of its fields."""

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
"""The scheme, if any, and the user and password before the host of an address."""
_SECRET_PARAMETER: Final = re.compile(
    r"([?&;][^=&;]*(?:pass|secret|token)[^=&;]*=)[^&;]*", re.IGNORECASE
)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:I?B)?|B)?", re.IGNORECASE)


class ConfigError(TardisMachineError):
    """An invalid setting: its flag, its value and the values that are allowed.

    The text repeats no password that is part of an address.
    """

    def __init__(
        self, flag: str, value: object, allowed: str, *, source: str | None = None
    ) -> None:
        self.flag = flag
        self.value = value = without_password(value) if isinstance(value, str) else value
        self.allowed = allowed
        self.source = source
        shown = "" if value is None else f" {value!r}" if isinstance(value, str) else f" {value}"
        where = "" if source is None or source == flag else f" (from {source})"
        super().__init__(f"{flag}{shown}{where}: {allowed}")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The declaration of one setting beside its name, type and default; see `setting`."""

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

    `parse` is called while the configuration is loaded, with the text of a flag, a variable or a
    TOML string. It returns the value, or raises ValueError with the values that are allowed.
    `env` replaces the derived name of the variable. `env_override` names another variable that
    takes precedence over the flag (`PORT` for the port). `choices` apply to each entry of a tuple.
    """
    declared = Setting(
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
    metadata = {"setting": declared}
    entry: Any = (
        field(default_factory=default.copy, metadata=metadata)
        if isinstance(default, dict)
        else field(default=default, metadata=metadata)
    )
    declared_field: T = entry  # the dataclass decorator replaces the field by its default
    return declared_field


class Section:
    """A group of settings. Subclasses are dataclasses, frozen and keyword-only."""

    section: ClassVar[str] = ""
    title: ClassVar[str] = ""
    note: ClassVar[str] = ""
    help_topic: ClassVar[str] = ""

    def __init_subclass__(
        cls, *, section: str = "", title: str = "", note: str = "", help_topic: str = ""
    ) -> None:
        """Set what documentation and file need of a section; called for each subclass.

        `section` is the prefix of the flags and the name of the TOML table. `note` is a line below
        the title. `--help` lists only the names of the flags of a `help_topic` (default: the
        section itself); `--help TOPIC` explains them.
        """
        super().__init_subclass__()
        # The dataclass decorator keeps a __repr__ of the class; its own would print secrets.
        cls.__repr__ = Section.__repr__  # type: ignore[method-assign]
        cls.section = section
        cls.title = title or section.replace("_", " ").capitalize() or "Settings"
        cls.note = note
        cls.help_topic = help_topic or section

    def __repr__(self) -> str:
        """Return the text that a dataclass has, with secrets replaced by stars."""
        shown = []
        for option in options(type(self)):
            value = getattr(self, option.name)
            hidden = option.setting.secret and value is not None
            shown.append(f"{option.name}={REDACTED if hidden else masked(value)!r}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def validate(self) -> None:
        """Raise ConfigError if settings contradict each other.

        Called by `load` and `from_dict` after each setting has been checked alone.
        """

    def warnings(self) -> list[str]:
        """Return warnings about settings that are valid but weaken a guarantee.

        Called by `load` after `validate`; the command logs them.
        """
        return []

    @classmethod
    def flag(cls, name: str) -> str:
        """Return the flag of a field of this section (`--kafka-topic`), for error messages."""
        return "--" + key_of(cls, name).replace("_", "-")


class Option(NamedTuple):
    """One setting of a section, with the names derived from it."""

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
        if self.setting.metavar:
            return self.setting.metavar
        if self.setting.choices:
            return "|".join(self.setting.choices)
        kinds = {int: "N", float: "N", Path: "PATH", tuple: "A,B,…", dict: "K:V,…"}
        return kinds.get(self.kind, "TEXT")

    def shown(self, value: object) -> str:
        """Return a value as it is typed on the command line, or stars if it is a secret."""
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
    """Return the options of a section in their order of declaration, inherited ones last."""
    hints = get_type_hints(owner)
    derived = []
    own_names = list(inspect.get_annotations(owner))
    entries = fields(owner)  # type: ignore[arg-type]  # every subclass is a dataclass
    for entry in sorted(
        entries, key=lambda e: own_names.index(e.name) if e.name in own_names else len(own_names)
    ):
        declared = entry.metadata.get("setting")
        if declared is None:
            raise TypeError(f"{owner.__name__}.{entry.name} is not declared with setting()")
        kind, optional = _type_of(hints[entry.name])
        key = key_of(owner, entry.name)
        derived.append(Option(owner, entry.name, key, kind, optional, _default(entry), declared))
    return tuple(derived)


def bytes_size(text: str) -> int:
    """Return the bytes of `8GiB`, `512 MB` or a plain number; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    size = math.inf if match is None else float(match[1]) * _UNITS[(match[2] or "").upper()]
    if math.isinf(size):
        raise ValueError("expected a size such as 1048576, 512MB or 8GiB")
    return int(size)


def pairs(text: str) -> dict[str, str]:
    """Return the entries of `key:value,…` or `key=value,…`; raise ValueError for other text.

    A key ends at the first `:` or `=`; the value may contain both.
    """
    entries: dict[str, str] = {}
    for part in text.split(","):
        if not part.strip():
            continue
        match = re.match(r"([^:=]+)[:=](.*)", part.strip(), re.DOTALL)
        name = "" if match is None else match[1].strip()
        if match is None or not name:
            raise ValueError(f"expected key:value pairs separated by commas, not {part.strip()!r}")
        if name in entries:
            raise ValueError(f"expected each key once, {name!r} is there twice")
        entries[name] = match[2].strip()
    return entries


def readable_by_others(path: Path) -> bool:
    """Return whether a file's mode lets all users read it; false if the file is missing."""
    try:
        return bool(path.stat().st_mode & 0o004)
    except OSError:
        return False


def key_of(owner: type[Section], name: str) -> str:
    """Return a field's name with the prefix of its section: `kafka_topic`."""
    word = name.removesuffix("_")  # a field called `pass_` is still --nats-pass
    return f"{owner.section}_{word}" if owner.section else word


def split_url(url: str) -> SplitResult | None:
    """Return the parts of a URL, or None if its host or port is invalid."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return None
    return None if port == 0 else parts


def without_password(address: str) -> str:
    """Return an address with stars for user, password and secret parameters."""
    hidden = _USERINFO.sub(rf"\g<1>{REDACTED}@", address)
    return _SECRET_PARAMETER.sub(rf"\g<1>{REDACTED}", hidden)


def masked(value: Any) -> Any:
    """Return a value with stars for passwords in URLs and for secret entries of a table.

    An entry is secret if its key contains a word such as `password` (`ssl.key.password`).
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


def _type_of(hint: Any) -> tuple[type, bool]:
    """Return the supported type of an annotation, and whether None is allowed as well."""
    if get_origin(hint) in {Union, types.UnionType}:
        rest = [part for part in get_args(hint) if part is not type(None)]
        if len(rest) == 1:
            return _type_of(rest[0])[0], True
    kind = get_origin(hint) or hint
    if kind not in {str, int, float, bool, Path, tuple, dict}:
        raise TypeError(f"settings are str, int, float, bool, Path, tuple or dict, not {hint}")
    return kind, False
