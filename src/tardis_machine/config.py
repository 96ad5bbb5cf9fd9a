"""Everything configurable, written once: flags, environment, file and documentation derive from it.

A part declares a frozen dataclass of settings:

    @dataclass(frozen=True, kw_only=True)
    class KafkaConfig(Section, section="kafka", title="Kafka"):
        topic: str | None = setting(None, help="topic that receives every event")

which gives the flag `--kafka-topic`, the variable `TM_KAFKA_TOPIC` (secrets also
`TM_…_FILE`), the key `topic` of the table `[kafka]` in a TOML file, a line of `--help`, a row of
the configuration page, and `from_dict(KafkaConfig, {"topic": …})` for Python.
Precedence: flag, environment, file, default.
"""

import argparse
import difflib
import math
import os
import re
import shutil
import sys
import textwrap
import tomllib
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import (
    Any,
    ClassVar,
    Final,
    NamedTuple,
    NoReturn,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from tardis_machine import __version__
from tardis_machine.errors import TardisMachineError

T = TypeVar("T")
S = TypeVar("S", bound="Section")

REDACTED: Final = "***"
_PREFIX: Final = "TM_"
_CONFIG_FLAG: Final = "--config"
_CONFIG_VARIABLE: Final = "TM_CONFIG"
_SECRET_KEY: Final = re.compile(r"password|secret|token|authorization|\.pem$", re.IGNORECASE)
_UNITS: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(?:I?B)?|B)?", re.IGNORECASE)


class ConfigError(TardisMachineError):
    """A setting that cannot be used: which one, what it was, what would be right."""

    def __init__(
        self, flag: str, value: object, allowed: str, *, source: str | None = None
    ) -> None:
        self.flag = flag
        self.value = value
        self.allowed = allowed
        self.source = source
        given = "" if value is None else f" {value!r}" if isinstance(value, str) else f" {value}"
        where = "" if source is None or source == flag else f" (from {source})"
        super().__init__(f"{flag}{given}{where}: {allowed}")


class Origin(NamedTuple):
    """Where a value came from: flag, environment, file or default; and which one."""

    kind: str
    where: str

    def __str__(self) -> str:
        return self.where if self.kind != "default" else "default"


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

    def __init_subclass__(cls, *, section: str = "", title: str = "", note: str = "") -> None:
        """`section` prefixes flags and names the TOML table; `note` is a line under the title."""
        super().__init_subclass__()
        cls.section = section
        cls.title = title or section.replace("_", " ").capitalize() or "Settings"
        cls.note = note

    def validate(self) -> None:
        """Raise ConfigError for what no single setting can tell."""

    def warnings(self) -> list[str]:
        """Say what works but weakens a promise."""
        return []

    @classmethod
    def flag(cls, name: str) -> str:
        """Name a field's flag, for errors."""
        return "--" + _key(cls, name).replace("_", "-")


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
        return self.setting.env or _PREFIX + self.key.upper()

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
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(map(str, value))
        if isinstance(value, dict):
            return ",".join(f"{name}:{entry}" for name, entry in _masked(value).items())
        return str(value)


def options(owner: type[Section]) -> tuple[Option, ...]:
    """Derive the options of a section from its dataclass."""
    hints = get_type_hints(owner)
    found = []
    for entry in fields(owner):  # type: ignore[arg-type]  # every subclass is a dataclass
        known = entry.metadata.get("setting")
        if known is None:
            raise TypeError(f"{owner.__name__}.{entry.name} is not declared with setting()")
        kind, optional = _plain(hints[entry.name])
        key = _key(owner, entry.name)
        found.append(Option(owner, entry.name, key, kind, optional, _default(entry), known))
    return tuple(found)


def bytes_size(text: str) -> int:
    """Parse `8GiB`, `512 MB` or a plain number of bytes; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError("expected a size such as 1048576, 512MB or 8GiB")
    return int(float(match[1]) * _UNITS[(match[2] or "").upper()])


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


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are ConfigErrors: the command answers them with exit 1."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (\S+)", message)
        if unknown is not None:
            given = unknown[1].split("=")[0]
            near = difflib.get_close_matches(given, self._option_string_actions, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
            raise ConfigError(given, None, f"unknown {_noun(given)}, {hint}")
        named = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
        flag = named[1].split("/")[-1] if named else self.prog
        raise ConfigError(flag, None, named[2] if named else message)


def add_flags(parser: argparse.ArgumentParser, sections: Iterable[type[Section]]) -> None:
    """Give a parser the flags of these sections (and --config), one group per section."""
    parser.add_argument(
        _CONFIG_FLAG, metavar="FILE.toml", dest="config", help="settings from a file"
    )
    for owner in sections:
        group = parser.add_argument_group(owner.title, owner.note or None)
        for option in options(owner):
            names = [option.flag]
            if option.setting.short:
                names.insert(0, option.setting.short)
            text = _help(option).replace("%", "%%")
            if option.kind is bool:
                group.add_argument(
                    *names,
                    dest=option.key,
                    nargs="?",
                    const="true",
                    metavar="true|false",
                    default=argparse.SUPPRESS,
                    help=text,
                )
                group.add_argument(
                    "--no-" + option.flag[2:],
                    dest=option.key,
                    action="store_const",
                    const="false",
                    default=argparse.SUPPRESS,
                    help=argparse.SUPPRESS,
                )
            else:
                group.add_argument(
                    *names,
                    dest=option.key,
                    action="append" if option.kind in {tuple, dict} else "store",
                    metavar=option.metavar,
                    default=argparse.SUPPRESS,
                    help=text,
                )


class Loaded:
    """The configuration in force: a value per section, and where each setting came from."""

    def __init__(
        self,
        values: Mapping[type[Section], Section],
        origins: Mapping[str, Origin],
        warnings: Sequence[str],
    ) -> None:
        self._values = dict(values)
        self.origins = dict(origins)
        self.warnings = list(warnings)

    def __getitem__(self, owner: type[S]) -> S:
        value = self._values[owner]
        assert isinstance(value, owner)
        return value

    @property
    def sections(self) -> tuple[Section, ...]:
        return tuple(self._values.values())

    def given(self, owner: type[Section]) -> bool:
        """Tell whether anything of this section was set at all."""
        return any(self.origins[option.key].kind != "default" for option in options(owner))

    def entries(self) -> Iterator[tuple[Option, Any, Origin]]:
        """Walk every setting: what it is, its value, where that came from."""
        for owner, value in self._values.items():
            for option in options(owner):
                yield option, getattr(value, option.name), self.origins[option.key]

    def redacted(self) -> dict[str, dict[str, Any]]:
        """Give every setting by flag name with value, kind and place of origin; no secret in it."""
        found: dict[str, dict[str, Any]] = {}
        for option, value, origin in self.entries():
            hidden = option.setting.secret and value is not None
            plain = REDACTED if hidden else _jsonable(_masked(value))
            found[option.key] = {"value": plain, "from": origin.kind, "where": origin.where}
        return found


def load(
    sections: Sequence[type[Section]],
    arguments: Sequence[str],
    environ: Mapping[str, str] | None = None,
    *,
    prog: str = "tardis-machine",
    description: str = "",
    epilog: str = "",
    also: Sequence[type[Section]] = (),
) -> Loaded:
    """Read flags, environment and file. Exits after --help and --version.

    `also` names sections of other commands: a file shared with them may hold their tables.
    """
    if _asks_for_help(arguments):
        print_help(sections, arguments, prog=prog, description=description, epilog=epilog)
        raise SystemExit(0)
    if any(argument in {"-v", "--version"} for argument in arguments):
        sys.stdout.write(f"{__version__}\n")
        raise SystemExit(0)
    parser = Parser(prog=prog, add_help=False)
    add_flags(parser, sections)
    return resolve(sections, vars(parser.parse_args(list(arguments))), environ, also=also)


def resolve(
    sections: Sequence[type[Section]],
    flags: Mapping[str, Any],
    environ: Mapping[str, str] | None = None,
    *,
    also: Sequence[type[Section]] = (),
) -> Loaded:
    """Join parsed flags (of `add_flags`), environment and file into values and their origins."""
    environment = os.environ if environ is None else environ
    path = flags.get("config") or environment.get(_CONFIG_VARIABLE) or None
    content = {} if path is None else _read_file(Path(path))
    if path is not None:
        _check_file(content, [*sections, *also], str(path))
    values: dict[type[Section], Section] = {}
    origins: dict[str, Origin] = {}
    warnings: list[str] = []
    for owner in sections:
        table = content if not owner.section else content.get(owner.section, {})
        present = _flatten(owner, table)
        chosen: dict[str, Any] = {}
        for option in options(owner):
            value, origin = _choose(
                option, flags, environment, present, path=str(path), warnings=warnings
            )
            origins[option.key] = origin
            if origin.kind != "default":
                chosen[option.name] = value
        made = owner(**chosen)
        made.validate()
        warnings += made.warnings()
        values[owner] = made
        warnings += _strangers(owner, environment)
    return Loaded(values, origins, warnings)


def from_dict(owner: type[S], given: Mapping[str, Any]) -> S:
    """Make a section from a mapping with snake_case or camelCase keys; nested ones are joined."""
    known = {option.name: option for option in options(owner)}
    chosen: dict[str, Any] = {}
    for name, value in _flatten(owner, given).items():
        where = f"{owner.section}.{name}" if owner.section else name
        if name not in known:
            raise ConfigError(where, None, _allowed_keys(name, known))
        if value is not None:
            chosen[name] = _checked(known[name], _native(known[name], value, where), where)
    made = owner(**chosen)
    made.validate()
    return made


def to_dict(section: Section) -> dict[str, Any]:
    """Turn a section into plain JSON types that `from_dict` reads back; secrets included."""
    return {
        option.name: _jsonable(getattr(section, option.name)) for option in options(type(section))
    }


def redacted(section: Section) -> dict[str, Any]:
    """Turn a section into plain JSON types, secrets as stars."""
    return {
        option.name: REDACTED
        if option.setting.secret and getattr(section, option.name) is not None
        else _jsonable(_masked(getattr(section, option.name)))
        for option in options(type(section))
    }


def describe(sections: Iterable[type[Section]]) -> str:
    """Write the configuration page: a Markdown table per section."""
    parts = []
    for owner in sections:
        table = f"[{owner.section}]" if owner.section else "top level"
        lines = [f"## {owner.title}", ""]
        if owner.note:
            lines += [owner.note, ""]
        lines += [
            f"In a file: {table}." if not owner.section else f"In a file: table `{table}`.",
            "",
            "| flag | variable | key in a file | default | meaning |",
            "|---|---|---|---|---|",
        ]
        for option in options(owner):
            known = option.setting
            variables = [f"`{option.variable}`"]
            if known.secret:
                variables.append(f"`{option.variable}_FILE`")
            if known.env_override:
                variables.insert(0, f"`{known.env_override}`")
            flag = f"`{option.flag}`"
            if known.short:
                flag = f"`{known.short}` {flag}"
            if option.kind is not bool:
                flag += f" {option.metavar}".replace("|", "\\|")
            default = f"`{option.shown(option.default)}`" if option.default not in EMPTY else ""
            meaning = (known.help + _bounds(known)).replace("|", "\\|")
            name = option.name.removesuffix("_")
            row = (flag, " ".join(variables), f"`{name}`", default, meaning)
            lines.append("| " + " | ".join(row) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


EMPTY: Final[tuple[object, ...]] = (None, (), {}, "")


def print_help(
    sections: Sequence[type[Section]],
    arguments: Sequence[str],
    *,
    prog: str,
    description: str,
    epilog: str,
) -> None:
    """Print help: prefixed sections only by their flags' names, unless asked for by name."""
    width = min(shutil.get_terminal_size((100, 24)).columns, 100)
    position = next(i for i, given in enumerate(arguments) if given in {"-h", "--help"})
    topic = arguments[position + 1] if position + 1 < len(arguments) else ""
    topics = [owner.section for owner in sections if owner.section]
    lines: list[str] = []
    if topic not in topics and topic != "all":
        lines += [f"usage: {prog} [flags]", ""]
        if description:
            lines += [description, ""]
    for owner in sections:
        if topic in topics and owner.section != topic:
            continue
        if owner.section and topic not in topics and topic != "all":
            names = " ".join(option.flag for option in options(owner))
            lines.append(f"{owner.title}: {prog} --help {owner.section}")
            lines += textwrap.wrap(
                names,
                width - 2,
                initial_indent="  ",
                subsequent_indent="  ",
                break_on_hyphens=False,
            )
        else:
            lines.append(f"{owner.title}:" + (f" {owner.note}" if owner.note else ""))
            for option in options(owner):
                lines += _help_lines(option, width)
        lines.append("")
    if topic not in topics:
        lines += [
            "Every flag is also a variable (--cache-dir: TM_CACHE_DIR); --config FILE.toml reads a",
            "file. Precedence: flag, environment, file, default. -v prints the version.",
        ]
    if epilog and topic not in topics:
        lines += ["", epilog]
    sys.stdout.write("\n".join(lines).rstrip() + "\n")


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(argument in {"-h", "--help"} for argument in arguments)


def _help_lines(option: Option, width: int) -> list[str]:
    indent = 34
    name = option.flag
    if option.setting.short:
        name = f"{option.setting.short} {name}"
    if option.kind is bool:
        name = name if not option.default else f"--no-{option.flag[2:]}"
    else:
        name = f"{name} {option.metavar}"
    body = textwrap.wrap(_help(option), width - indent) or [""]
    head = f"  {name}"
    first = [head] if len(head) >= indent else [head.ljust(indent) + body.pop(0)]
    return first + [" " * indent + line for line in body]


def _help(option: Option) -> str:
    text = option.setting.help + _bounds(option.setting)
    if option.kind is bool or option.default in EMPTY:
        return text
    return f"{text} [{option.shown(option.default)}]"


def _bounds(known: Setting) -> str:
    if known.minimum is not None and known.maximum is not None:
        return f" ({known.minimum:g}..{known.maximum:g})".replace("e+04", "0000")
    return ""


def _noun(given: str) -> str:
    return "flag" if given.startswith("-") else "argument"


def _key(owner: type[Section], name: str) -> str:
    word = name.removesuffix("_")  # a field called `pass_` is still --nats-pass
    return f"{owner.section}_{word}" if owner.section else word


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


def _choose(
    option: Option,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    *,
    path: str,
    warnings: list[str],
) -> tuple[Any, Origin]:
    known = option.setting
    override = known.env_override
    if override and environ.get(override):
        origin = Origin("environment", override)
        return _from_text(option, environ[override], override), origin
    if option.key in flags:
        if known.secret:
            warnings.append(
                f"{option.flag} on the command line can be read by every user of this machine; "
                f"use {option.variable} or {option.variable}_FILE"
            )
        given = flags[option.key]
        text = ",".join(given) if isinstance(given, list) else str(given)
        if option.kind is bool and text not in {"true", "false"}:
            raise ConfigError(option.flag, text, "expected true or false")
        return _from_text(option, text, option.flag), Origin("flag", option.flag)
    variable = option.variable
    file_variable = f"{variable}_FILE"
    if known.secret and environ.get(file_variable):
        if environ.get(variable):
            raise ConfigError(
                option.flag,
                None,
                f"expected {variable} or {file_variable}, not both",
                source=variable,
            )
        secret = _read_secret(option, environ[file_variable], file_variable)
        return _from_text(option, secret, file_variable), Origin("environment", file_variable)
    if environ.get(variable):
        text = environ[variable]
        if option.kind is bool and text not in {"true", "false"}:
            warnings.append(f"{variable}={text} counts as false: only the text true turns it on")
            text = "false"
        return _from_text(option, text, variable), Origin("environment", variable)
    if option.name in table and table[option.name] is not None:
        where = f"{path} [{option.owner.section}]" if option.owner.section else path
        value = _native(option, table[option.name], f"{where} {option.name}")
        source = f"{where} {option.name}"
        return _checked(option, value, source), Origin("file", source)
    return option.default, Origin("default", "default")


def _from_text(option: Option, text: str, source: str) -> Any:
    return _checked(option, _parsed(option, text, source), source)


def _parsed(option: Option, text: str, source: str) -> Any:
    """Turn text into the option's type."""
    try:
        if option.setting.parse is not None:
            return option.setting.parse(text)
        if option.kind is bool:
            return text == "true"
        if option.kind is int:
            return int(text)
        if option.kind is float:
            return float(text)
        if option.kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if option.kind is dict:
            return pairs(text)
        if option.kind is Path:
            return Path(text).expanduser()
    except ValueError as error:
        allowed = {int: "expected a whole number", float: "expected a number"}
        reason = str(error) if option.setting.parse else allowed.get(option.kind, str(error))
        raise _refused(option, text, reason, source) from None
    return text


def _native(option: Option, value: Any, source: str) -> Any:
    """Turn a value of a file or a mapping into the option's type."""
    kind = option.kind
    if isinstance(value, str) and kind is not str and kind is not bool:
        return _parsed(option, value, source)
    if isinstance(value, str) and kind is str and option.setting.parse is not None:
        return _parsed(option, value, source)
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(str(entry) for entry in value)
    if kind is dict and isinstance(value, Mapping):
        return {str(name): _text(entry) for name, entry in value.items()}
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind is Path and isinstance(value, os.PathLike):
        return Path(value)
    if isinstance(value, kind) and not (kind in {int, float} and isinstance(value, bool)):
        return value
    words = {
        str: "text",
        int: "a whole number",
        float: "a number",
        bool: "true or false",
        Path: "a path",
        tuple: "a list of texts",
        dict: "a table of texts",
    }
    raise _refused(option, value, f"expected {words[kind]}", source)


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _checked(option: Option, value: Any, source: str) -> Any:
    """Hold a value against choices and bounds."""
    known = option.setting
    if known.choices is not None:
        for entry in value if isinstance(value, tuple) else (value,):
            if entry not in known.choices:
                raise _refused(
                    option, str(entry), f"expected one of {', '.join(known.choices)}", source
                )
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = known.minimum, known.maximum
        out = (low is not None and value < low) or (high is not None and value > high)
        if out or not math.isfinite(value):
            reason = f"expected {low:g} or more" if low is not None else f"expected at most {high}"
            if low is not None and high is not None:
                reason = f"expected {low:.15g} to {high:.15g}"
            raise _refused(option, value, reason, source)
    return value


def _refused(option: Option, value: object, allowed: str, source: str) -> ConfigError:
    shown = REDACTED if option.setting.secret else value
    return ConfigError(option.flag, shown, allowed, source=source)


def _read_secret(option: Option, path: str, source: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            option.flag, path, f"expected a readable file: {error}", source=source
        ) from None


def _read_file(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise ConfigError(_CONFIG_FLAG, str(path), f"cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(_CONFIG_FLAG, str(path), f"is not TOML: {error}") from None


def _check_file(content: Mapping[str, Any], sections: Sequence[type[Section]], path: str) -> None:
    """Refuse keys that no section knows: a typo must not be a silent default."""
    top: dict[str, Option] = {}
    tables: dict[str, list[type[Section]]] = {}
    for owner in sections:
        if owner.section:
            tables.setdefault(owner.section, []).append(owner)
        else:
            top.update({option.name: option for option in options(owner)})
    for key, value in content.items():
        if key in tables and isinstance(value, Mapping):
            known = {option.name: option for owner in tables[key] for option in options(owner)}
            for name in _flatten(tables[key][0], value, known):
                if name not in known:
                    raise ConfigError(f"{path} [{key}] {name}", None, _allowed_keys(name, known))
        elif _snake(key) not in top:
            raise ConfigError(f"{path} {key}", None, _allowed_keys(key, [*top, *tables]))


def _allowed_keys(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(_snake(name), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}allowed: {', '.join(names)}"


def _flatten(
    owner: type[Section], table: Mapping[str, Any], known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Bring keys to snake_case; a table that is no setting itself (`sasl`) prefixes its keys."""
    names = {option.name for option in options(owner)} if known is None else set(known)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = _snake(key)
        name = f"{name}_" if f"{name}_" in names else name
        prefixed = f"{name}_"
        nested = isinstance(value, Mapping) and any(n.startswith(prefixed) for n in names)
        if name not in names and nested:
            for inner, entry in _flatten(
                owner, value, {n.removeprefix(prefixed) for n in names if n.startswith(prefixed)}
            ).items():
                found[prefixed + inner] = entry
        else:
            found[name] = value
    return found


def _snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).replace("-", "_").lower()


def _strangers(owner: type[Section], environ: Mapping[str, str]) -> list[str]:
    """Warn of variables that look like this section's but are none of its settings."""
    if not owner.section:
        return []
    known = {option.variable for option in options(owner)}
    known |= {f"{option.variable}_FILE" for option in options(owner) if option.setting.secret}
    prefix = f"{_PREFIX}{owner.section.upper()}_"
    found = []
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in known:
            near = difflib.get_close_matches(variable, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            found.append(f"{variable} is not a setting and has no effect{hint}")
    return found


def _masked(value: Any) -> Any:
    """Star out entries of a table whose key says that they are secret (`ssl.key.password`)."""
    if not isinstance(value, dict):
        return value
    return {name: REDACTED if _SECRET_KEY.search(name) else v for name, v in value.items()}


def _jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [str(entry) for entry in value]
    return value
