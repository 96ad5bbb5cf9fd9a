"""Conversion of values: from text, file or mapping to the setting's type, and back to JSON."""

import difflib
import errno
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tardis_machine.config.section import (
    REDACTED,
    ConfigError,
    Option,
    Section,
    masked,
    options,
    pairs,
)

S = TypeVar("S", bound=Section)


def from_dict(owner: type[S], settings: Mapping[str, Any]) -> S:
    """Return a section with the settings of a mapping; raise ConfigError if one is invalid.

    Keys are snake_case or camelCase. The key of a nested mapping is a prefix of its keys.
    """
    by_name = {option.name: option for option in options(owner)}
    chosen: dict[str, Any] = {}
    for name, value in flatten(owner, settings).items():
        where = f"{owner.section}.{name}" if owner.section else name
        if name not in by_name:
            raise ConfigError(where, None, allowed_keys(name, by_name))
        if value is not None:
            option = by_name[name]
            chosen[name] = validated(option, from_plain(option, value, where), where)
    section = owner(**chosen)
    section.validate()
    return section


def to_dict(section: Section) -> dict[str, Any]:
    """Return a section as JSON types, with its secrets; `from_dict` reads them back."""
    return {
        option.name: jsonable(getattr(section, option.name)) for option in options(type(section))
    }


def with_absolute_paths(section: S) -> S:
    """Return a copy of a section with its paths resolved against the working directory."""
    values = ((option.name, getattr(section, option.name)) for option in options(type(section)))
    paths = {name: value.absolute() for name, value in values if isinstance(value, Path)}
    return replace(section, **paths)  # type: ignore[type-var]  # every section is a dataclass


def redacted(section: Section) -> dict[str, Any]:
    """Return a section as JSON types, with secrets replaced by stars."""
    return {
        option.name: REDACTED
        if option.setting.secret and getattr(section, option.name) is not None
        else jsonable(masked(getattr(section, option.name)))
        for option in options(type(section))
    }


def from_text(option: Option, text: str, source: str) -> Any:
    """Return the value of a text; raise ConfigError, which names `source`, if it is invalid."""
    return validated(option, _parse(option, text, source), source)


def from_plain(option: Option, value: Any, source: str) -> Any:
    """Convert a value of a TOML file or a mapping to the option's type."""
    kind = option.kind
    if isinstance(value, str) and kind is not str and kind is not bool:
        return _parse(option, value, source)
    if isinstance(value, str) and kind is str and option.setting.parse is not None:
        return _parse(option, value, source)
    if kind is tuple and isinstance(value, list | tuple):
        return tuple(str(entry) for entry in value)
    if kind is dict and isinstance(value, Mapping):
        return {str(name): _text_of_entry(entry) for name, entry in value.items()}
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
    raise _invalid(option, value, f"expected {words[kind]}", source)


def validated(option: Option, value: Any, source: str) -> Any:
    """Return a value that is within the option's choices and bounds; else raise ConfigError.

    Text with NUL characters or outside of Unicode is refused as well.
    """
    declared = option.setting
    for text in _texts_of(value):
        if "\0" in text:
            raise _invalid(option, option.shown(value), "expected no NUL characters", source)
        if not _is_unicode(text):  # arguments of a shell with another encoding
            raise _invalid(option, option.shown(value), "expected text in UTF-8", source)
    if isinstance(value, Path) and (problem := _path_problem(value)):
        raise _invalid(option, str(value), f"expected a possible path: {problem}", source)
    if declared.choices is not None:
        for entry in value if isinstance(value, tuple) else (value,):
            if entry not in declared.choices:
                raise _invalid(
                    option, str(entry), f"expected one of {', '.join(declared.choices)}", source
                )
    if isinstance(value, int | float) and not isinstance(value, bool):
        low, high = declared.minimum, declared.maximum
        is_outside = (low is not None and value < low) or (high is not None and value > high)
        if is_outside or not math.isfinite(value):
            reason = f"expected at most {high}" if low is None else f"expected {low:.15g} or more"
            if low is not None and high is not None:
                reason = f"expected {low:.15g} to {high:.15g}"
            raise _invalid(option, value, reason, source)
    return value


def flatten(
    owner: type[Section], table: Mapping[str, Any], field_names: Iterable[str] | None = None
) -> dict[str, Any]:
    """Return a table with keys in snake_case and nested tables merged into it.

    The key of a nested table (`sasl`) is the prefix of its keys, unless it is a setting itself.
    `field_names` replaces the section's own.
    """
    names = {option.name for option in options(owner)} if field_names is None else set(field_names)
    flat: dict[str, Any] = {}
    for key, value in table.items():
        name = snake(key)
        name = f"{name}_" if f"{name}_" in names else name
        prefixed = f"{name}_"
        nested = isinstance(value, Mapping) and any(n.startswith(prefixed) for n in names)
        if name not in names and nested:
            for inner, entry in flatten(
                owner, value, {n.removeprefix(prefixed) for n in names if n.startswith(prefixed)}
            ).items():
                flat[prefixed + inner] = entry
        else:
            flat[name] = value
    return flat


def snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).replace("-", "_").lower()


def allowed_keys(name: str, keys: Iterable[str]) -> str:
    """Return the reason of an error about an unknown key: a similar key, and all that exist."""
    names = sorted(keys)
    near = difflib.get_close_matches(snake(name), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}allowed: {', '.join(names)}"


def jsonable(value: Any) -> Any:
    """Return a setting's value as a JSON type."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [str(entry) for entry in value]
    return value


def _parse(option: Option, text: str, source: str) -> Any:
    """Convert text to the option's type."""
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
            if not text.strip():  # Path("") is the working directory
                raise _invalid(option, text, "expected a path", source)
            return Path(text).expanduser()
    except ValueError as error:
        allowed = {int: "expected a whole number", float: "expected a number"}
        reason = str(error) if option.setting.parse else allowed.get(option.kind, str(error))
        raise _invalid(option, text, reason, source) from None
    return text


def _texts_of(value: Any) -> Iterable[str]:
    """Return the texts that a value contains."""
    if isinstance(value, str | Path):
        return (str(value),)
    if isinstance(value, dict):
        return (*value, *value.values())
    return value if isinstance(value, tuple) else ()


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path_problem(path: Path) -> str:
    """Return the system's error if no file can have this path, since it is too long; else ''."""
    try:
        path.lstat()
    except OSError as error:
        return (error.strerror or "") if error.errno == errno.ENAMETOOLONG else ""
    return ""


def _text_of_entry(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _invalid(option: Option, value: object, allowed: str, source: str) -> ConfigError:
    shown = REDACTED if option.setting.secret else value
    return ConfigError(option.flag, shown, allowed, source=source)
