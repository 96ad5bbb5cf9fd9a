"""Loading of the configuration: flags, environment and file merged, with each value's origin."""

import argparse
import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn, TypeVar

from tardis_machine.config.help import help_text, print_help
from tardis_machine.config.section import (
    PREFIX,
    REDACTED,
    ConfigError,
    Option,
    Section,
    masked,
    options,
    readable_by_others,
)
from tardis_machine.config.values import (
    allowed_keys,
    flatten,
    from_plain,
    from_text,
    jsonable,
    snake,
    validated,
)

S = TypeVar("S", bound=Section)

_CONFIG_FLAG: Final = "--config"
_CONFIG_VARIABLE: Final = "TM_CONFIG"


class Origin(NamedTuple):
    """The origin of a value: `kind` is flag, environment, file or default; `where` names which."""

    kind: str
    where: str

    def __str__(self) -> str:
        return self.where if self.kind != "default" else "default"


class Parser(argparse.ArgumentParser):
    """An argument parser that raises ConfigError, which the command reports with exit code 1."""

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("allow_abbrev", False)
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**settings)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (\S*)", message)
        if unknown is not None:
            argument = unknown[1].split("=")[0]
            near = difflib.get_close_matches(argument, self._option_string_actions, n=1)
            hint = f"did you mean {near[0]}?" if near else f"see {self.prog} --help"
            raise ConfigError(argument or "''", None, f"unknown {_noun(argument)}, {hint}")
        invalid = re.match(r"argument ([^:]+): (.*)", message, re.DOTALL)
        flag = invalid[1].split("/")[-1] if invalid else self.prog
        raise ConfigError(flag, None, invalid[2] if invalid else message)


def add_flags(parser: argparse.ArgumentParser, sections: Iterable[type[Section]]) -> None:
    """Add `--config` and the flags of these sections to a parser, one group per section."""
    parser.add_argument(
        _CONFIG_FLAG, metavar="FILE.toml", dest="config", help="settings from a file"
    )
    for owner in sections:
        group = parser.add_argument_group(owner.title, owner.note or None)
        for option in options(owner):
            names = [option.flag]
            if option.setting.short:
                names.insert(0, option.setting.short)
            text = help_text(option).replace("%", "%%")
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
    """The configuration in force: an object per section, and the origin of each setting."""

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

    def has_values(self, owner: type[Section]) -> bool:
        """Return whether a flag, a variable or the file sets anything of this section."""
        return any(self.origins[option.key].kind != "default" for option in options(owner))

    def entries(self) -> Iterator[tuple[Option, Any, Origin]]:
        """Yield every setting with its value and the value's origin."""
        for owner, value in self._values.items():
            for option in options(owner):
                yield option, getattr(value, option.name), self.origins[option.key]

    def redacted(self) -> dict[str, dict[str, Any]]:
        """Return value and origin of every setting by its key, secrets replaced by stars."""
        settings: dict[str, dict[str, Any]] = {}
        for option, value, origin in self.entries():
            hidden = option.setting.secret and value is not None
            plain = REDACTED if hidden else jsonable(masked(value))
            settings[option.key] = {"value": plain, "from": origin.kind, "where": origin.where}
        return settings


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
    """Read flags, environment and file; print the help and raise SystemExit on `--help`.

    `also` has sections of other commands, whose tables the file may contain as well.
    """
    if _asks_for_help(arguments):
        print_help(sections, arguments, prog=prog, description=description, epilog=epilog)
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
    """Merge flags (parsed with `add_flags`), environment and file into values and their origins."""
    environment = os.environ if environ is None else environ
    file = flags.get("config")
    if file is not None and not file.strip():  # else every setting would silently be its default
        raise ConfigError(_CONFIG_FLAG, file, "expected a file")
    path = file or environment.get(_CONFIG_VARIABLE) or None
    content = {} if path is None else _read_file(Path(path))
    if path is not None:
        _check_file(content, [*sections, *also], str(path))
    values: dict[type[Section], Section] = {}
    origins: dict[str, Origin] = {}
    warnings: list[str] = []
    for owner in sections:
        table = content if not owner.section else content.get(owner.section, {})
        present = flatten(owner, table)
        chosen: dict[str, Any] = {}
        for option in options(owner):
            value, origin = _choose(
                option, flags, environment, present, path=str(path), warnings=warnings
            )
            origins[option.key] = origin
            if origin.kind != "default":
                chosen[option.name] = value
        section = owner(**chosen)
        section.validate()
        warnings += section.warnings()
        values[owner] = section
        warnings += _unknown_variables(owner, environment)
    return Loaded(values, origins, warnings)


def _asks_for_help(arguments: Sequence[str]) -> bool:
    return any(argument in {"-h", "--help"} for argument in arguments)


def _noun(argument: str) -> str:
    return "flag" if argument.startswith("-") else "argument"


def _choose(
    option: Option,
    flags: Mapping[str, Any],
    environ: Mapping[str, str],
    table: Mapping[str, Any],
    *,
    path: str,
    warnings: list[str],
) -> tuple[Any, Origin]:
    """Return an option's value from the source that takes precedence, and its origin.

    Appends to `warnings` what the user should change about that source.
    """
    declared = option.setting
    override = declared.env_override
    if override and environ.get(override):
        origin = Origin("environment", override)
        return from_text(option, environ[override], override), origin
    if option.key in flags:
        if declared.secret:
            warnings.append(
                f"{option.flag} on the command line can be read by every user of this machine; "
                f"use {option.variable} or {option.variable}_FILE"
            )
        argument = flags[option.key]
        text = ",".join(argument) if isinstance(argument, list) else str(argument)
        if option.kind is bool and text not in {"true", "false"}:
            raise ConfigError(option.flag, text, "expected true or false")
        return from_text(option, text, option.flag), Origin("flag", option.flag)
    variable = option.variable
    file_variable = f"{variable}_FILE"
    if declared.secret and environ.get(file_variable):
        if environ.get(variable):
            raise ConfigError(
                option.flag,
                None,
                f"expected {variable} or {file_variable}, not both",
                source=variable,
            )
        secret = _read_secret(option, environ[file_variable], file_variable)
        if readable_by_others(Path(environ[file_variable])):
            warnings.append(
                f"{file_variable} {environ[file_variable]} can be read by others: chmod 600 it"
            )
        return from_text(option, secret, file_variable), Origin("environment", file_variable)
    if environ.get(variable):
        text = environ[variable]
        if option.kind is bool and text not in {"true", "false"}:
            warnings.append(f"{variable}={text} counts as false: only the text true turns it on")
            text = "false"
        return from_text(option, text, variable), Origin("environment", variable)
    if option.name in table and table[option.name] is not None:
        where = f"{path} [{option.owner.section}]" if option.owner.section else path
        value = from_plain(option, table[option.name], f"{where} {option.name}")
        source = f"{where} {option.name}"
        return validated(option, value, source), Origin("file", source)
    return option.default, Origin("default", "default")


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
    """Raise ConfigError for a key that is no setting: a typo would leave the default in force."""
    top: dict[str, Option] = {}
    tables: dict[str, list[type[Section]]] = {}
    for owner in sections:
        if owner.section:
            tables.setdefault(owner.section, []).append(owner)
        else:
            top.update({option.key: option for option in options(owner)})
    for key, value in content.items():
        if key in tables and isinstance(value, Mapping):
            names = {option.name for owner in tables[key] for option in options(owner)}
            for name in flatten(tables[key][0], value, names):
                if name not in names:
                    raise ConfigError(f"{path} [{key}] {name}", None, allowed_keys(name, names))
        elif snake(key) not in top:
            raise ConfigError(f"{path} {key}", None, allowed_keys(key, [*top, *tables]))


def _unknown_variables(owner: type[Section], environ: Mapping[str, str]) -> list[str]:
    """Return a warning for each variable that has the section's prefix but is not a setting."""
    if not owner.section:
        return []
    settings = {option.variable for option in options(owner)}
    settings |= {f"{option.variable}_FILE" for option in options(owner) if option.setting.secret}
    prefix = f"{PREFIX}{owner.section.upper()}_"
    warnings = []
    for variable in sorted(environ):
        if variable.startswith(prefix) and variable not in settings:
            near = difflib.get_close_matches(variable, settings, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            warnings.append(f"{variable} is not a setting and has no effect{hint}")
    return warnings
