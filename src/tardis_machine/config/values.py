"""Values: from text, a file or a mapping to a setting's type, and back to plain ones."""

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


def from_dict(owner: type[S], given: Mapping[str, Any]) -> S:
    """Make a section from a mapping with snake_case or camelCase keys; nested ones are joined."""
    known = {option.name: option for option in options(owner)}
    chosen: dict[str, Any] = {}
    for name, value in flatten(owner, given).items():
        where = f"{owner.section}.{name}" if owner.section else name
        if name not in known:
            raise ConfigError(where, None, allowed_keys(name, known))
        if value is not None:
            chosen[name] = checked(known[name], native(known[name], value, where), where)
    made = owner(**chosen)
    made.validate()
    return made


def to_dict(section: Section) -> dict[str, Any]:
    """Turn a section into plain JSON types that `from_dict` reads back; secrets included."""
    return {
        option.name: jsonable(getattr(section, option.name)) for option in options(type(section))
    }


def anchored(section: S) -> S:
    """Make a section's paths absolute: they are meant from where the process is now."""
    given = ((option.name, getattr(section, option.name)) for option in options(type(section)))
    paths = {name: value.absolute() for name, value in given if isinstance(value, Path)}
    return replace(section, **paths)  # type: ignore[type-var]  # every section is a dataclass


def redacted(section: Section) -> dict[str, Any]:
    """Turn a section into plain JSON types, secrets as stars."""
    return {
        option.name: REDACTED
        if option.setting.secret and getattr(section, option.name) is not None
        else jsonable(masked(getattr(section, option.name)))
        for option in options(type(section))
    }


def from_text(option: Option, text: str, source: str) -> Any:
    return checked(option, _parsed(option, text, source), source)


def native(option: Option, value: Any, source: str) -> Any:
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


def checked(option: Option, value: Any, source: str) -> Any:
    """Hold a value against choices and bounds, and against what no text can have."""
    known = option.setting
    for text in _texts(value):
        if "\0" in text:
            raise _refused(option, option.shown(value), "expected no NUL characters", source)
        if not _is_unicode(text):  # bytes that came in from a shell of another encoding
            raise _refused(option, option.shown(value), "expected text in UTF-8", source)
    if isinstance(value, Path) and (trouble := _impossible(value)):
        raise _refused(option, str(value), f"expected a possible path: {trouble}", source)
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
            reason = f"expected at most {high}" if low is None else f"expected {low:.15g} or more"
            if low is not None and high is not None:
                reason = f"expected {low:.15g} to {high:.15g}"
            raise _refused(option, value, reason, source)
    return value


def flatten(
    owner: type[Section], table: Mapping[str, Any], known: Iterable[str] | None = None
) -> dict[str, Any]:
    """Bring keys to snake_case; a table that is no setting itself (`sasl`) prefixes its keys."""
    names = {option.name for option in options(owner)} if known is None else set(known)
    found: dict[str, Any] = {}
    for key, value in table.items():
        name = snake(key)
        name = f"{name}_" if f"{name}_" in names else name
        prefixed = f"{name}_"
        nested = isinstance(value, Mapping) and any(n.startswith(prefixed) for n in names)
        if name not in names and nested:
            for inner, entry in flatten(
                owner, value, {n.removeprefix(prefixed) for n in names if n.startswith(prefixed)}
            ).items():
                found[prefixed + inner] = entry
        else:
            found[name] = value
    return found


def snake(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).replace("-", "_").lower()


def allowed_keys(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(snake(name), names, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"unknown key; {hint}allowed: {', '.join(names)}"


def jsonable(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, tuple):
        return [str(entry) for entry in value]
    return value


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
            if not text.strip():  # it would be the folder that one happens to be in
                raise _refused(option, text, "expected a path", source)
            return Path(text).expanduser()
    except ValueError as error:
        allowed = {int: "expected a whole number", float: "expected a number"}
        reason = str(error) if option.setting.parse else allowed.get(option.kind, str(error))
        raise _refused(option, text, reason, source) from None
    return text


def _texts(value: Any) -> Iterable[str]:
    """Give all text that a value is made of."""
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


def _impossible(path: Path) -> str:
    """Say why nothing can ever be at a path."""
    try:
        path.lstat()
    except OSError as error:
        return (error.strerror or "") if error.errno == errno.ENAMETOOLONG else ""
    return ""


def _text(value: Any) -> str:
    return ("true" if value else "false") if isinstance(value, bool) else str(value)


def _refused(option: Option, value: object, allowed: str, source: str) -> ConfigError:
    shown = REDACTED if option.setting.secret else value
    return ConfigError(option.flag, shown, allowed, source=source)
